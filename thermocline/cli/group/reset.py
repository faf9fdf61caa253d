"""`thermocline group reset`: moves a group's committed offsets (KIP-122).

The plan is shown first; nothing changes without --execute. A new offset outside of the log moves to the nearest one,
with a remark. A group with members is refused, because they would commit over the new offsets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.config.units import parse_duration_ms
from thermocline.cli.terminal.arguments import add_bootstrap, add_json, checked, natural
from thermocline.cli.terminal.outcome import CommandFailed, Exit, no_group, no_partition
from thermocline.cli.terminal.output import json_line, note, plain, table
from thermocline.cli.terminal.times import TIME_HELP, Instant, noted_ms, parse_time

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from thermocline.cli.group.offsets import Place
    from thermocline.cli.terminal.arguments import Parser, Subparsers


Target = tuple[int, str]
"""(offset, the reason why it is not the requested one, or "")."""


def register(verbs: Subparsers[Parser]) -> None:
    reset = verbs.add_parser(
        "reset",
        help="move a group's positions",
        description="Move the positions of a group without members. Shows the plan; changes nothing without --execute.",
        example="thermocline group reset billing --to-datetime 2026-11-01T08:30Z\n"
        "thermocline group reset billing --to-earliest --topic orders:0,2 --execute\n"
        "thermocline group reset billing --shift-by -100 --execute",
    )
    reset.add_argument("group", metavar="G")
    to = reset.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-offset", type=natural, metavar="N", help="this offset, or the nearest one in the log")
    to.add_argument(
        "--to-datetime",
        type=checked(_datetime),
        metavar="TIME",
        help=f"the first record at or after this time; as {TIME_HELP}, with the @ or without",
    )
    to.add_argument(
        "--by-duration",
        type=checked(parse_duration_ms),
        metavar="24h",
        help=("the first record that is not older than this"),
    )
    to.add_argument("--to-earliest", action="store_true", help="the beginning of the log, in both tiers")
    to.add_argument("--to-latest", action="store_true", help="the end of the log")
    to.add_argument(
        "--to-current",
        action="store_true",
        help="the present position of the group; the end of the log where it has none",
    )
    to.add_argument("--shift-by", type=checked(int), metavar="N", help="N offsets forward; -N: N offsets backward")
    reset.add_argument(
        "--topic",
        type=checked(_topic),
        action="append",
        default=[],
        metavar="T[:P,P…]",
        help="only this topic, or these partitions of it; repeatable; default: all that the group committed",
    )
    reset.add_argument("--execute", action="store_true", help="change the positions; without it only the plan is shown")
    add_json(reset)
    add_bootstrap(reset)
    reset.set_defaults(run=reset_group)


def _datetime(text: str) -> Instant:
    return parse_time(text if text.startswith("@") else f"@{text}")


def _topic(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse `orders` or `orders:0,2`, as in Kafka's tool. Without numbers, all partitions are meant."""
    topic, colon, indexes = text.partition(":")
    parts = indexes.split(",") if colon else []
    if not topic or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise ValueError(f"{text!r} is not a topic; write T or T:0,2")
    return topic, tuple(int(part) for part in parts)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The plan of one partition. `why`: why `new` is not the requested offset, or ""."""

    topic: str
    partition: int
    committed: int | None
    new: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """First offset and high watermark of a partition."""

    first: int
    end: int


def within(log: Log, asked: int) -> tuple[int, str]:
    """The nearest offset in the log, and a remark if it differs."""
    if asked < log.first:
        return log.first, f"the log begins here, not at {asked}"
    if asked > log.end:
        return log.end, f"the log ends here, not at {asked}"
    return asked, ""


def plan(
    targets: Mapping[Place, Target], committed: Mapping[Place, int], logs: Mapping[Place, Log]
) -> list[OffsetReset]:
    moves = []
    for (topic, partition), (asked, why) in sorted(targets.items()):
        new, nearest = within(logs[topic, partition], asked)
        moves.append(OffsetReset(topic, partition, committed.get((topic, partition)), new, why or nearest))
    return moves


def reset_group(arguments: argparse.Namespace) -> int:
    """Show the plan; execute it with --execute."""
    from thermocline.cli.clients.stock import connected_admin
    from thermocline.cli.group.lag import state_name
    from thermocline.cli.group.offsets import committed, described

    group = arguments.group
    admin = connected_admin(arguments.bootstrap_server)
    about = described(admin, group)
    if about is not None and about.members:
        members = f"{len(about.members)} member{'s' * (len(about.members) > 1)}"
        raise CommandFailed(
            f"group {group} is {state_name(about.state)} with {members}: stop them first: their commits would "
            "overwrite the new positions"
        )
    if about is None and not arguments.topic:
        raise no_group(group)
    positions = committed(admin, group)
    places = _places(admin, arguments, positions)
    logs = _logs(admin, places)
    moves = plan(_targets(admin, arguments, places, positions, logs), positions, logs)
    if arguments.execute:
        _execute(admin, group, moves)
    _show(group, moves, as_json=arguments.json, executed=arguments.execute)
    return Exit.DONE


def _places(admin: AdminClient, arguments: argparse.Namespace, positions: Mapping[Place, int]) -> list[Place]:
    from thermocline.cli.group.offsets import partitions_of

    if not arguments.topic:
        if not positions:
            raise CommandFailed(f"group {arguments.group} committed nothing; name topics with --topic")
        return sorted(positions)
    known = partitions_of(admin, [topic for topic, _ in arguments.topic])
    places: set[Place] = set()
    for topic, indexes in arguments.topic:
        for index in indexes or known[topic]:
            if index not in known[topic]:
                raise no_partition(topic, index, len(known[topic]))
            places.add((topic, index))
    return sorted(places)


def _logs(admin: AdminClient, places: Sequence[Place]) -> dict[Place, Log]:
    from thermocline.cli.group.offsets import end_offsets, first_offsets

    first, end = first_offsets(admin, places), end_offsets(admin, places)
    for topic, partition in places:
        if (topic, partition) not in first or (topic, partition) not in end:
            raise _silent(topic, partition)
    return {place: Log(first[place], end[place]) for place in places}


def _targets(
    admin: AdminClient,
    arguments: argparse.Namespace,
    places: Sequence[Place],
    positions: Mapping[Place, int],
    logs: Mapping[Place, Log],
) -> dict[Place, Target]:
    """The requested offset in each partition, which may lie outside its log."""
    if arguments.to_offset is not None:
        return dict.fromkeys(places, (arguments.to_offset, ""))
    if arguments.to_earliest:
        return {place: (logs[place].first, "") for place in places}
    if arguments.to_latest:
        return {place: (logs[place].end, "") for place in places}
    if arguments.to_current:
        ends = {place: (logs[place].end, "the end: the group committed nothing") for place in places}
        return ends | {place: (positions[place], "") for place in places if place in positions}
    if arguments.shift_by is not None:
        for topic, partition in places:
            if (topic, partition) not in positions:
                raise CommandFailed(f"{arguments.group} committed nothing in {topic}-{partition}: nothing to shift")
        return {place: (positions[place] + arguments.shift_by, "") for place in places}
    return _at_time(admin, arguments, places, logs)


def _at_time(
    admin: AdminClient, arguments: argparse.Namespace, places: Sequence[Place], logs: Mapping[Place, Log]
) -> dict[Place, Target]:
    from thermocline.cli.clients.stock import OffsetSpec
    from thermocline.cli.group.offsets import offsets

    if arguments.by_duration is not None:
        ms = max(0, int(time.time() * 1000) - arguments.by_duration)
    else:
        ms = noted_ms(arguments.to_datetime)
    found = offsets(admin, places, OffsetSpec.for_timestamp(ms))
    targets = {}
    for topic, partition in places:
        offset = found.get((topic, partition))
        if offset is None:
            raise _silent(topic, partition)
        end = logs[topic, partition].end
        targets[topic, partition] = (end, "the end: no record is as late as that time") if offset < 0 else (offset, "")
    return targets


def _silent(topic: str, partition: int) -> CommandFailed:
    return CommandFailed(f"{topic}-{partition} does not answer; see `thermocline tier status --topic {topic}`")


def _execute(admin: AdminClient, group: str, moves: Sequence[OffsetReset]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing, plainly

    wanted: list[Any] = [TopicPartition(move.topic, move.partition, move.new) for move in moves]
    with failing(f"resetting group {group}"):
        asked = [ConsumerGroupTopicPartitions(group, wanted)]
        answer = admin.alter_consumer_group_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)[group].result()
    refused = [place for place in answer.topic_partitions if place.error is not None]
    if refused:
        first = refused[0]
        message = plainly(f"resetting group {group} in {first.topic}-{first.partition}", first.error)
        raise CommandFailed(f"{len(refused)} of {len(moves)} partitions were not reset: {message}")


def _show(group: str, moves: Sequence[OffsetReset], *, as_json: bool, executed: bool) -> None:
    if as_json:
        for move in moves:
            print(
                json_line(
                    {
                        "group": group,
                        "topic": move.topic,
                        "partition": move.partition,
                        "committed_offset": move.committed,
                        "new_offset": move.new,
                        "executed": executed,
                    }
                )
            )
    else:
        print(picture(moves))
    if not executed:
        note("nothing was changed: add --execute to change the positions")
    elif not as_json:
        print(f"moved {group} in {len(moves)} partition{'s' * (len(moves) != 1)}")


def picture(moves: Sequence[OffsetReset]) -> str:
    header = ("topic", "partition", "committed", "new", "change", "")
    lines = [
        (
            move.topic,
            str(move.partition),
            plain(move.committed),
            str(move.new),
            "-" if move.committed is None else f"{move.new - move.committed:+d}",
            move.why,
        )
        for move in moves
    ]
    return table(header, lines, right=header[1:5])
