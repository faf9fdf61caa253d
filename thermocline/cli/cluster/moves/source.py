"""Asking for what a plan of moves is made of: who holds what, how much of it is hot, and what moves already.

Owns which broker is believed for which bytes. Always true: a broker that does not answer costs bytes (None), never the
plan; what Apache Kafka's replicas copy is what lies on their leader's disk, so that is what is hot there. Must not know
what is planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from broker.observe.cluster_status import BrokerRow, PartitionRow
from thermocline.cli.clients.connections import said
from thermocline.cli.clients.statuses import PartitionStatus
from thermocline.cli.clients.wire_client import BrokerUnreachable, WireClient
from thermocline.cli.cluster.client import Name, UnderWay, under_way
from thermocline.cli.cluster.moves.copying import Copying
from thermocline.cli.cluster.moves.plan import Held, Place
from thermocline.cli.cluster.source import ClusterSource
from thermocline.cli.cluster.status import Seen

_ASKED_MAX: Final = 16  # brokers at once
_STATUS_S: Final = 10.0  # 10 000 partitions take one some hundred ms


@dataclass(frozen=True, slots=True)
class Bytes:
    """Of a partition, None where nobody said: what a new replica copies, and what lies in the bucket."""

    hot: int | None = None
    cold: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """One look: the cluster, and the same as a plan sees it."""

    seen: Seen
    places: Sequence[Place]
    partitions: Sequence[Held]

    def broker(self, node: int) -> BrokerRow | None:
        return next((row for row in self.seen.brokers if row.node == node), None)


class MovesSource:
    """Repeated looks at one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self._cluster = ClusterSource(bootstrap)

    def connect(self) -> WireClient:
        """To any broker that answers. BrokerUnreachable when none does."""
        return self._cluster.connect(timeout_s=10.0)

    def look(self) -> Seen:
        """The cluster now, without bytes. BrokerUnreachable when no broker answers."""
        return self._cluster.read()

    def read(self) -> View:
        """The cluster now, with bytes. BrokerUnreachable when no broker answers."""
        seen = self.look()
        moving: Mapping[Name, UnderWay] = {}
        if seen.cluster.version is None:  # not by an image: Metadata shows those that join and leave as replicas
            with self.connect() as client:
                moving = under_way(client)
        sizes = self.bytes_of(seen, seen.partitions)
        held = [_held(row, moving.get(name := (row.topic, row.partition)), sizes[name]) for row in seen.partitions]
        return View(seen, [Place(row.node, domain_of(row), row.active) for row in seen.brokers], held)

    def copies(self, seen: Seen) -> list[Copying]:
        """Replicas that are being copied now: those that join, and those that are back and not in sync yet. Asks only
        where there are some."""
        active = {row.node for row in seen.brokers if row.active}
        found = [
            (row, node)
            for row in seen.partitions
            if row.leader is not None
            for node in dict.fromkeys((*(row.target or ()), *row.replicas))
            if node in active and node not in row.in_sync
        ]
        if not found:
            return []
        sizes = self.bytes_of(seen, [row for row, _ in found])
        wanted: dict[int, list[Name]] = {}
        for row, node in found:
            wanted.setdefault(node, []).append((row.topic, row.partition))
        copied = copied_bytes(seen.brokers, wanted)
        lacking = {(name, late.node): late.bytes for name, of in seen.late().items() for late in of}
        copies = []
        for row, node in found:
            name = row.topic, row.partition
            hot = sizes[name].hot
            done, lacks = copied.get((name, node)), lacking.get((name, node))
            if hot is not None and lacks is not None:
                done = max(hot - lacks, 0)  # it may hold older bytes too
            copies.append(
                Copying(
                    *name,
                    node,
                    done if done is None or hot is None else min(done, hot),
                    hot,
                    sizes[name].cold,
                    node not in row.replicas,
                )
            )
        return copies

    def bytes_of(self, seen: Seen, rows: Iterable[PartitionRow]) -> dict[Name, Bytes]:
        """Of these partitions, as their leaders say. Blocking; a request a broker."""
        of_leader: dict[int | None, list[Name]] = {}
        for row in rows:
            of_leader.setdefault(row.leader, []).append((row.topic, row.partition))
        found = {name: Bytes() for names in of_leader.values() for name in names}
        asked = [one for one in seen.brokers if of_leader.get(one.node) and one.node not in seen.silent]
        if asked:
            with ThreadPoolExecutor(min(len(asked), _ASKED_MAX)) as asking:
                for one, answer in zip(asked, asking.map(lambda one: self._of_leader(seen, one), asked), strict=True):
                    found |= {name: answer[name] for name in of_leader[one.node] if name in answer}
        return found

    def _of_leader(self, seen: Seen, broker: BrokerRow) -> dict[Name, Bytes]:
        address = self._cluster.http.get(broker.node)
        if address is not None:
            status = said(address, "/status", list[PartitionStatus], _STATUS_S) or []
            return {(one.topic, one.partition): Bytes(one.hot_bytes, one.cold_bytes) for one in status}
        if seen.cluster.version is not None:
            return {}  # one of ours, and how much of its disk the bucket has is not known
        try:
            with WireClient(broker.host, broker.port) as client:
                return {name: Bytes(size) for name, size in client.log_sizes().items()}
        except BrokerUnreachable:
            return {}


def copied_bytes(brokers: Iterable[BrokerRow], wanted: Mapping[int, Sequence[Name]]) -> dict[tuple[Name, int], int]:
    """How large the logs of these partitions are on these brokers by now; one that does not answer is left out."""

    def ask(broker: BrokerRow) -> dict[tuple[Name, int], int]:
        try:
            with WireClient(broker.host, broker.port) as client:
                return {(name, broker.node): size for name, size in client.log_sizes(wanted[broker.node]).items()}
        except BrokerUnreachable:
            return {}

    asked = [row for row in brokers if wanted.get(row.node)]
    if not asked:
        return {}
    with ThreadPoolExecutor(min(len(asked), _ASKED_MAX)) as asking:
        return {name: size for answer in asking.map(ask, asked) for name, size in answer.items()}


def domain_of(broker: BrokerRow) -> str:
    """What fails together (R15): its rack, else its machine, else itself."""
    if broker.rack is not None:
        return f"rack {broker.rack}"
    return f"boot {broker.machine}" if broker.machine else f"node {broker.node}"


def _held(row: PartitionRow, moving: UnderWay | None, size: Bytes) -> Held:
    replicas, target = row.replicas, row.target or ()
    if moving is not None:
        replicas, target = moving.before, moving.target
    return Held(row.topic, row.partition, replicas, target, not row.offline, size.hot, size.cold)
