"""The copies of a partition's log on several brokers, side by side.

Owns what two copies owe each other (design of the cluster, 3 and 4): below the least high watermark of the two they
hold the same batches, byte for byte, and every member of the committed in-sync set has on its disk, so that no power
cut takes it, what its leader calls committed and what any client was told to be. Always true: it looks at what brokers
have open, in whatever role, and at the files of those that are down. Must not know requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from broker.metadata.image import ClusterImage, Topic
from broker.partition.following.follower_replica import FollowerReplica
from broker.partition.leading.leader_replica import LeaderReplica
from tests.sim.checks.history import Place
from tests.sim.checks.tables import Copied
from tests.sim.several.checks.acks import Acks
from tests.sim.several.checks.disks import Disks, Seen
from tests.sim.several.fleet import Fleet, Seat
from tests.sim.table import TABLE
from tests.sim.transactions.cast import COLD, HOT, WARM
from tests.sim.world.cluster import Node

LogKey = tuple[str, int]
"""Topic id, partition."""


class Copy(NamedTuple):
    """One broker's log of a partition. `leads` is the leader epoch it leads in; −1: it does not."""

    node: str
    node_id: int
    start: int
    high_watermark: int
    leads: int
    batches: tuple[Seen, ...]


class Kept(NamedTuple):
    """What a member of an in-sync set has on its disk, up to `end`; `name`: of the process there, or of the seat."""

    node_id: int
    name: str
    end: int


def _is_cleaned(topic: Topic) -> bool:
    """Whether records vanish from its copies."""
    of_transactions = topic.name in (COLD[0], WARM[0], HOT[0])
    return topic.name == TABLE or (of_transactions and "compact" in topic.configs.get("cleanup.policy", ""))


class Copies:
    """Of one fleet. `sync`: what counts is synced (`thermocline.flush`); else the page cache does."""

    def __init__(
        self, fleet: Fleet, acks: Acks, *, sync: bool, tell: Callable[[Copied], None] = lambda _: None
    ) -> None:
        self._tell = tell
        self._ends: dict[Place, tuple[tuple[int, int], ...]] = {}
        self._fleet = fleet
        self._acks = acks
        self._sync = sync
        self._disks = Disks()
        self._judged = 0
        self._alike: dict[LogKey, list[Copy]] = {}  # as they were when nothing was to be said of them

    def taken(self) -> int:
        """How many disks were judged since this was asked last."""
        judged, self._judged = self._judged, 0
        return judged

    def wrong(self) -> Iterator[str]:
        """What two copies do not have in common now, and ought to; what members lack of what was promised."""
        newest = self._fleet.newest()
        if newest is None:
            return
        by_log: dict[LogKey, list[Copy]] = defaultdict(list)
        for key, copy in self._all(_single(newest.image)):
            by_log[key].append(copy)
        kept = self._kept()
        self._note_ends(newest.image, kept)
        for topic in newest.image.topics.values():
            for index, row in enumerate(topic.rows):
                name, copies = f"{topic.name}-{index}", by_log.get((topic.topic_id, index), [])
                if not _is_cleaned(topic):  # each cleans its own: what they hold of each key is judged, not bytes
                    yield from (f"{name}: {said}" for said in self._unlike((topic.topic_id, index), copies))
                place = (topic.name, index)
                known = [
                    kept[node_id].get(place, Kept(node_id, f"node {node_id}", 0))
                    for node_id in row.in_sync
                    if node_id in kept and node_id not in self._rotten(place)
                ]
                self._judged += len(known)
                leaders = [copy for copy in copies if copy.leads == row.leader_epoch]
                yield from (f"{name}: {said}" for said in behind(leaders, row.in_sync, known))
                acked = self._acks.end((topic.name, index))
                yield from (f"{name}: {said}" for said in forgotten(acked, row.in_sync, known))

    def _unlike(self, key: LogKey, copies: list[Copy]) -> Iterator[str]:
        if self._alike.get(key) == copies:
            return
        said = list(unlike(copies))
        yield from said
        if not said:
            self._alike[key] = copies

    def _note_ends(self, image: ClusterImage, kept: dict[int, dict[Place, Kept]]) -> None:
        topic = image.topic_named(TABLE)
        for index, row in enumerate(() if topic is None else topic.rows):
            place = (TABLE, index)
            members = sorted({*row.replicas, *row.target})
            ends = tuple(
                (node_id, found.end if (found := kept.get(node_id, {}).get(place)) is not None else 0)
                for node_id in members
            )
            if self._ends.get(place) != ends:
                self._ends[place] = ends
                self._tell(Copied(place, self._fleet.loop.time(), ends))

    def begun(self) -> Iterator[tuple[str, Place, int]]:
        """Where each copy that is followed begins on the disk of its broker, which lives."""
        for seat in self._fleet.seats:
            node = seat.node
            broker = None if node is None or node.dead else node.broker
            if node is not None and broker is not None and broker.components.replicas is not None:
                for place, copy in broker.components.replicas._registry.followed.items():
                    yield node.name, place, copy.log.local_log_start_offset

    def _all(self, alone: set[LogKey]) -> Iterator[tuple[LogKey, Copy]]:
        """Every log that a living broker has open and plays a role for, but those with one replica, and those that are
        truncated or restarted now: nobody reads them (seed 92515 restarted a log at a batch across its log start)."""
        for seat in self._fleet.seats:
            node = seat.node
            if node is None or node.dead or node.broker is None or node.broker.components.replicas is None:
                continue
            places = self._disks.places(node.disk.inner, seat.directory, synced=False)
            registry = node.broker.components.replicas._registry
            for held in (*registry, *registry.followed.values()):
                key = (str(held.topic_id), held.index)
                paths = places.get((held.topic, held.index))
                if held.opened.is_torn or key in alone:
                    continue
                if paths is not None and not seat.rotten_in((held.topic, held.index)):
                    yield key, self._copy(node, seat.node_id, held, paths)

    def _copy(self, node: Node, node_id: int, held: LeaderReplica | FollowerReplica, paths: list[str]) -> Copy:
        leads = held.leader_epoch if isinstance(held, LeaderReplica) and held.leading else -1
        found = self._disks.log(node.disk.inner, paths, synced=False)
        start = max(found.start, held.log.local_log_start_offset)
        return Copy(node.name, node_id, start, held.high_watermark, leads, found.batches)

    def _rotten(self, place: Place) -> set[int]:
        return {seat.node_id for seat in self._fleet.seats if seat.rotten_in(place)}

    def _kept(self) -> dict[int, dict[Place, Kept]]:
        """By node: what its disk holds, but of those that lost it and were not told out of their sets yet."""
        found = {}
        for seat in self._fleet.seats:
            if not seat.blank:
                disk, name = seat.machine.disk, _who(seat)
                places = self._disks.places(disk, seat.directory, synced=self._sync)
                found[seat.node_id] = {
                    place: Kept(seat.node_id, name, self._disks.log(disk, paths, synced=self._sync).end)
                    for place, paths in places.items()
                }
        return found


def unlike(copies: Iterable[Copy]) -> Iterator[str]:
    """Batches that differ below what both of two copies call committed."""
    known = list(copies)
    for i, one in enumerate(known):
        for other in known[i + 1 :]:
            start, end = max(one.start, other.start), min(one.high_watermark, other.high_watermark)
            mine, theirs = ([batch for batch in copy.batches if start <= batch.base < end] for copy in (one, other))
            if mine != theirs:
                first = next((pair for pair in zip(mine, theirs, strict=False) if pair[0] != pair[1]), None)
                yield (
                    f"{one.node} and {other.node} differ in [{start}, {end}): {first or (len(mine), len(theirs))} "
                    f"(high watermarks {one.high_watermark}, {other.high_watermark})"
                )


def behind(leaders: Iterable[Copy], in_sync: Iterable[int], members: Iterable[Kept]) -> Iterator[str]:
    """Members of the committed in-sync set that do not have on their disks what a leader of its epoch calls
    committed."""
    known = list(members)
    for leader in leaders:
        for member in known:
            if member.end < leader.high_watermark:
                yield (
                    f"{leader.node} leads in epoch {leader.leads} with high watermark {leader.high_watermark}, and the "
                    f"disk of {member.name}, in its in-sync set {sorted(in_sync)}, ends at {member.end}"
                )


def forgotten(acked: int, in_sync: Iterable[int], members: Iterable[Kept]) -> Iterator[str]:
    """Members of the committed in-sync set that do not have on their disks what was acknowledged, up to `acked`."""
    for member in members:
        if member.end < acked:
            yield (
                f"acknowledged to {acked}, and the disk of {member.name}, in the in-sync set {sorted(in_sync)}, ends "
                f"at {member.end}"
            )


def _single(image: ClusterImage) -> set[LogKey]:
    """Partitions with one replica: nothing to compare."""
    return {
        (topic.topic_id, index)
        for topic in image.topics.values()
        for index, row in enumerate(topic.rows)
        if len({*row.replicas, *row.target}) == 1
    }


def _who(seat: Seat) -> str:
    return f"node {seat.node_id}, which is down" if seat.node is None or seat.node.dead else seat.node.name
