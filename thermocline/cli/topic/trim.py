"""`thermocline topic trim`: deletes the beginning of a topic in both tiers (DeleteRecords, KIP-107, KIP-405).

The plan counts the deleted offsets in each tier. The request has the plan's offsets, not "the end", so records written
meanwhile stay. Nothing is sent without a confirmation.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_bootstrap, checked, filled, natural
from thermocline.cli.terminal.confirm import can_ask
from thermocline.cli.terminal.outcome import CommandFailed, Exit, no_partition
from thermocline.cli.terminal.output import note, plain, table
from thermocline.cli.terminal.times import TIME_HELP, Instant, noted_ms, parse_time

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from thermocline.cli.terminal.arguments import Parser, Subparsers
    from thermocline.cli.tier.status import StatusRow

_OFFSET_MAX = 2**63 - 1


def register(verbs: Subparsers[Parser]) -> None:
    trim = verbs.add_parser(
        "trim",
        help="delete the beginning of a topic, in both tiers",
        description="Delete records before an offset or a time, on the disk and in the bucket. Shows the plan first; "
        "deletes only with --yes, or when the topic's name is typed.",
        example="thermocline topic trim orders --before @2026-11-01\n"
        "thermocline topic trim orders -p 0 --before 150000 --yes",
    )
    trim.add_argument("topic", type=filled, metavar="T")
    trim.add_argument(
        "--before",
        required=True,
        type=checked(parse_before),
        metavar="OFFSET|@TIME",
        help=f"the first offset that stays; or a time, {TIME_HELP}: all before the first record of that time or later",
    )
    trim.add_argument("-p", "--partition", type=natural, metavar="P", help="default: all")
    trim.add_argument("--yes", action="store_true", help="delete, do not ask")
    add_bootstrap(trim)
    trim.set_defaults(run=trim_topic)


def parse_before(text: str) -> int | Instant:
    """An offset, or the instant of `@TIME`. Raises ValueError or InvalidRequest otherwise."""
    if text.startswith("@"):
        return parse_time(text)
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_OFFSET_MAX)) or int(text) > _OFFSET_MAX:
        raise ValueError(f"{text!r} is neither an offset nor a time; write 150000 or {TIME_HELP}")
    return int(text)


@dataclass(frozen=True, slots=True)
class PartitionTrim:
    """The plan of one partition: offsets below `new_start` are deleted. Counts of offsets; None = unknown."""

    partition: int
    log_start: int
    new_start: int
    on_disk: int | None
    in_bucket: int | None

    @property
    def offsets(self) -> int:
        return self.new_start - self.log_start


def plan(topic: str, found: Sequence[StatusRow], new_starts: Mapping[int, int]) -> list[PartitionTrim]:
    """The trims for `new_starts`, without unchanged partitions. Raises CommandFailed when a partition ends before its
    new start, or when no leader of it answers.
    """
    cuts, beyond = [], []
    for row in found:
        if row.partition not in new_starts:
            continue
        if row.log_start_offset is None or row.high_watermark is None:
            raise CommandFailed(f"{topic}-{row.partition} has no leader that answers; see `thermocline tier status`")
        first, new_start = row.log_start_offset, new_starts[row.partition]
        if new_start > row.high_watermark:
            beyond.append(f"{topic}-{row.partition} ends at {row.high_watermark}")
        elif new_start > first:
            local, remote = row.local_log_start_offset, row.remote_end_offset
            cuts.append(
                PartitionTrim(
                    row.partition,
                    first,
                    new_start,
                    None if local is None else max(0, new_start - max(local, first)),
                    None if remote is None else max(0, min(new_start, remote) - first),
                )
            )
    if beyond:
        shown = ", ".join(beyond[:5]) + (f" and {len(beyond) - 5} more" if len(beyond) > 5 else "")
        raise CommandFailed(f"{shown}, before the given offset; give a lower one, or one partition with -p")
    return cuts


def trim_topic(arguments: argparse.Namespace) -> int:
    from thermocline.cli.clients.stock import connected_admin
    from thermocline.cli.tier.reader import TierReader
    from thermocline.cli.topic.same_topic import confirm_for, topic_id_of

    bootstrap, topic = arguments.bootstrap_server, arguments.topic
    admin = connected_admin(bootstrap)
    topic_id = topic_id_of(bootstrap, topic)
    found = TierReader(bootstrap, topic, None).read()
    indexes = [row.partition for row in found]
    if arguments.partition is not None:
        if arguments.partition not in indexes:
            raise no_partition(topic, arguments.partition, len(indexes))
        indexes = [arguments.partition]
    cuts = plan(topic, found, _new_starts(admin, topic, arguments.before, found, indexes))
    if not cuts:
        print(f"nothing to trim: {topic} holds nothing before the given offset or time")
        return Exit.DONE
    print(picture(cuts))
    if not arguments.yes:
        if not can_ask():
            note("nothing was deleted: add --yes to delete these offsets")
            return Exit.DONE
        confirm_for(topic_id, f"Delete these offsets of {topic}, on the disk and in the bucket?", bootstrap, topic)
    _delete(admin, topic, cuts)
    return Exit.DONE


def _new_starts(
    admin: AdminClient, topic: str, before: int | Instant, found: Sequence[StatusRow], indexes: Sequence[int]
) -> dict[int, int]:
    if isinstance(before, int):
        return dict.fromkeys(indexes, before)
    from confluent_kafka import OFFSET_INVALID, TopicPartition

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, OffsetSpec, failing

    ms = noted_ms(before)
    with failing(f"asking for the time in {topic}"):
        asked = {TopicPartition(topic, index): OffsetSpec.for_timestamp(ms) for index in indexes}
        answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
    starts = {}
    ends = {row.partition: row.high_watermark for row in found}
    for partition, future in answers.items():
        with failing(f"asking for the time in {topic}-{partition.partition}"):
            offset = future.result().offset
        if offset == OFFSET_INVALID:  # librdkafka returns it, without error, for an unreachable leader
            raise CommandFailed(
                f"{topic}-{partition.partition} has no leader that answers: nothing is deleted; ask again when "
                "`thermocline cluster status` shows one"
            )
        # -1: no record of that time or later, so everything is deleted.
        starts[partition.partition] = offset if offset >= 0 else ends[partition.partition] or 0
    return starts


def picture(cuts: Sequence[PartitionTrim]) -> str:
    header = ("partition", "log start", "new start", "offsets that go", "on disk", "in the bucket")
    lines = [
        (
            str(cut.partition),
            str(cut.log_start),
            str(cut.new_start),
            str(cut.offsets),
            plain(cut.on_disk),
            plain(cut.in_bucket),
        )
        for cut in cuts
    ]
    total = sum(cut.offsets for cut in cuts)
    follows = f"{total} offsets will be deleted; a file or an object is deleted when it holds only deleted offsets"
    return f"{table(header, lines, right=header)}\n{follows}"


def _delete(admin: AdminClient, topic: str, cuts: Sequence[PartitionTrim]) -> None:
    """Delete in all partitions. Raises CommandFailed afterwards if a partition refused."""
    from confluent_kafka import KafkaException, TopicPartition

    from thermocline.cli.clients.stock import REQUEST_TIMEOUT_S, failing, plainly

    with failing(f"trimming {topic}"):
        asked = [TopicPartition(topic, cut.partition, cut.new_start) for cut in cuts]
        futures = admin.delete_records(asked, request_timeout=REQUEST_TIMEOUT_S, operation_timeout=REQUEST_TIMEOUT_S)
    refused = []
    for partition, future in sorted(futures.items(), key=lambda item: item[0].partition):
        try:
            print(f"{topic}-{partition.partition} begins at {future.result().low_watermark}")
        except KafkaException as failed:
            refused.append(plainly(f"{topic}-{partition.partition}", failed.args[0]))
    if refused:
        more = f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
        raise CommandFailed(f"{len(refused)} of {len(cuts)} partitions were not trimmed: {refused[0]}{more}")
