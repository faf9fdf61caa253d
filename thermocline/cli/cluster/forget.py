"""`thermocline cluster forget`: gives up a node that does not come back.

First prints what happens to each partition of the node. Partitions without another complete replica come first, because
they continue without the records that only this node may hold. If the node had another session after the listing, it is
not given up.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from thermocline.cli.terminal.arguments import add_bootstrap, add_json, natural
from thermocline.cli.terminal.confirm import can_ask, confirm
from thermocline.cli.terminal.outcome import CommandFailed, Exit
from thermocline.cli.terminal.output import json_line, note, table
from thermocline.units import show_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from thermocline.cli.cluster.reader import Bytes
    from thermocline.cli.cluster.status import ClusterState
    from thermocline.cli.terminal.arguments import Parser, Subparsers


def register(verbs: Subparsers[Parser]) -> None:
    forget = verbs.add_parser(
        "forget",
        help="give up a broker that does not come back",
        description="Prints the partitions that the broker holds and the consequence for each, then asks. The broker "
        "leaves every in-sync set, and its directory counts as lost from then on. If no other broker has all records "
        "of a partition, the partition continues with the records of the best other replica. A broker without "
        "assigned partitions leaves the cluster.",
        example="thermocline cluster forget 3 --yes",
    )
    forget.add_argument("node", type=natural, metavar="NODE", help="its node id")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    add_bootstrap(forget)
    add_json(forget)
    forget.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Loss:
    """A partition after the loss of the node. `is_emptied`: it has no other in-sync replica, so it begins without the
    records that only the node may hold. `left`: in-sync replicas afterwards. `hot_bytes`: bytes a replacement copies
    (None: unknown, no leader). `cold_bytes`: bytes in the bucket (None: unknown).
    """

    topic: str
    partition: int
    is_emptied: bool
    left: tuple[int, ...]
    replicas: tuple[int, ...]
    hot_bytes: int | None = None
    cold_bytes: int | None = None


def plan(seen: ClusterState, node: int, sizes: Mapping[tuple[str, int], Bytes] | None = None) -> list[Loss]:
    """Losses of the node's partitions, emptied partitions first. Pure."""
    known = sizes or {}
    losses = [
        Loss(
            of.topic,
            of.partition,
            not any(member != node for member in of.in_sync),
            tuple(member for member in of.in_sync if member != node),
            of.replicas,
            None if (size := known.get((of.topic, of.partition))) is None else size.hot,
            None if size is None else size.cold,
        )
        for of in seen.partitions
        if node in of.replicas or node in (of.target or ())
    ]
    return sorted(losses, key=lambda loss: (not loss.is_emptied, loss.topic, loss.partition))


def run(arguments: argparse.Namespace) -> int:
    from thermocline.cli.clients.connections import note_token_refused
    from thermocline.cli.cluster.client import unregister
    from thermocline.cli.cluster.reader import ClusterReader

    node = arguments.node
    source = ClusterReader(arguments.bootstrap_server)
    seen = source.read()
    broker = next((row for row in seen.brokers if row.node == node), None)
    if broker is None:
        raise CommandFailed(f"broker {node} is not in the cluster: `thermocline cluster status` lists the brokers")
    if broker.active:
        raise CommandFailed(f"broker {node} has a session: stop it first, and give it up only if it never returns")
    held = [row for row in seen.partitions if node in row.replicas or node in (row.target or ())]
    note_token_refused("bytes of the partitions", seen.token_refused)
    losses = plan(seen, node, source.bytes_of(seen, held))
    if arguments.json:
        for loss in losses:
            print(json_line({"kind": "partition", **asdict(loss)}))
    elif losses:
        print(_picture(losses))
    emptied = sum(loss.is_emptied for loss in losses)
    if not arguments.yes:
        if not can_ask():
            raise CommandFailed(f"giving broker {node} up cannot be undone: add --yes", Exit.USAGE)
        confirm(f"Give broker {node} up? {_consequence(emptied, len(losses))}", str(node))
    with source.connect() as client:
        unregister(client, node, is_given_up=True, broker_epoch=broker.broker_epoch)
    note(f"broker {node} is given up: {_consequence(emptied, len(losses))}")
    return Exit.DONE


def _consequence(emptied: int, held: int) -> str:
    if not held:
        return "no partition is assigned to it; it leaves the cluster."
    if not emptied:
        return f"{held} partitions lose a replica until the broker is replaced or drained; no records are lost."
    return (
        f"{emptied} of its {held} partitions lose the records that only it may hold; they continue with the records of "
        "the best other replica or of the bucket."
    )


def _picture(losses: list[Loss]) -> str:
    rows = [
        (
            f"{loss.topic}-{loss.partition}",
            ",".join(map(str, loss.replicas)),
            ",".join(map(str, loss.left)) or "-",
            "-" if loss.hot_bytes is None else show_size(loss.hot_bytes),
            "-" if loss.cold_bytes is None else show_size(loss.cold_bytes),
            "begins without the records that only it may hold" if loss.is_emptied else "keeps all of it",
        )
        for loss in losses
    ]
    header = ("partition", "replicas", "in sync after", "hot", "in the bucket", "outcome")
    return table(header, rows, right=("hot", "in the bucket"))
