"""`thermocline group describe`: positions, lag and members of a group.

Lag is the distance from the committed offset to the high watermark, read at about one moment. Unknown values are - or
null.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.cli.terminal.arguments import add_bootstrap, add_json
from thermocline.cli.terminal.outcome import no_group
from thermocline.cli.terminal.output import json_line, plain, table, visible
from thermocline.cli.terminal.watch import show

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from thermocline.cli.group.offsets import Place
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(verbs: Subparsers[Parser]) -> None:
    describe = verbs.add_parser(
        "describe",
        help="positions, lag and members of a group",
        description="The group's position in each partition that it committed or reads, the end of that partition, "
        "and the lag between them. Runs against Apache Kafka too.",
        example="thermocline group describe billing\nthermocline group describe billing --watch",
    )
    describe.add_argument("group", metavar="G")
    describe.add_argument("--watch", action="store_true", help="repeat every second")
    add_json(describe)
    add_bootstrap(describe)
    describe.set_defaults(run=describe_group)


@dataclass(frozen=True, slots=True)
class LagReader:
    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class LagRow:
    """One partition. `reader` is None if no member reads it."""

    topic: str
    partition: int
    committed: int | None
    log_end: int | None
    reader: LagReader | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.log_end is None else self.log_end - self.committed


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group at one moment. `members`: the number of members, with those that have no partitions."""

    group: str
    state: str
    assignor: str
    members: int
    rows: Sequence[LagRow]


def rows_of(
    committed: Mapping[Place, int], readers: Mapping[Place, LagReader], ends: Mapping[Place, int]
) -> list[LagRow]:
    """Rows of committed or assigned partitions, sorted."""
    return [
        LagRow(
            topic,
            partition,
            committed.get((topic, partition)),
            ends.get((topic, partition)),
            readers.get((topic, partition)),
        )
        for topic, partition in sorted({*committed, *readers})
    ]


def state_name(state: Any) -> str:
    """A state as Kafka's tools print it: PREPARING_REBALANCING becomes PreparingRebalance."""
    words = state.name.replace("REBALANCING", "REBALANCE").split("_")
    return "".join(word.capitalize() for word in words)


def describe_group(arguments: argparse.Namespace) -> int:
    from thermocline.cli.clients.stock import connected_admin

    admin = connected_admin(arguments.bootstrap_server)

    def lines() -> list[str]:
        found = read(admin, arguments.group)
        return [*json_lines(found)] if arguments.json else [picture(found)]

    return show(lines, watch=arguments.watch, redraw=not arguments.json)


def read(admin: AdminClient, group: str) -> GroupLag:
    """Raises CommandFailed when there is no such group."""
    from thermocline.cli.group.offsets import committed, described, end_offsets

    about = described(admin, group)
    if about is None:
        raise no_group(group)
    readers = {
        (place.topic, place.partition): LagReader(member.member_id, member.client_id, member.host.removeprefix("/"))
        for member in about.members
        for place in member.assignment.topic_partitions
    }
    positions = committed(admin, group)
    rows = rows_of(positions, readers, end_offsets(admin, {*positions, *readers}))
    return GroupLag(group, state_name(about.state), about.partition_assignor, len(about.members), rows)


def picture(found: GroupLag) -> str:
    members = f"{found.members} member{'s' * (found.members != 1)}"
    assigned = f", assigned by {found.assignor}" if found.assignor else ""
    head = visible(f"{found.group}: {found.state}, {members}{assigned}")  # clients name the assignor
    if not found.rows:
        return f"{head}\nnothing committed, nothing read"
    header = ("topic", "partition", "committed", "log end", "lag", "client", "host")
    lines = [
        (
            row.topic,
            str(row.partition),
            plain(row.committed),
            plain(row.log_end),
            plain(row.lag),
            *(("-", "-") if row.reader is None else (row.reader.client_id, row.reader.host)),
        )
        for row in found.rows
    ]
    known = [row.lag for row in found.rows if row.lag is not None]
    total = f"lag {sum(known)} in {len(known)} partition{'s' * (len(known) != 1)}"
    return f"{head}\n{table(header, lines, right=header[1:5])}\n{total}"


def json_lines(found: GroupLag) -> Iterable[str]:
    for row in found.rows:
        yield json_line(
            {
                "group": found.group,
                "state": found.state,
                "topic": row.topic,
                "partition": row.partition,
                "committed_offset": row.committed,
                "log_end_offset": row.log_end,
                "lag": row.lag,
                "member_id": None if row.reader is None else row.reader.member_id,
                "client_id": None if row.reader is None else row.reader.client_id,
                "host": None if row.reader is None else row.reader.host,
            }
        )
