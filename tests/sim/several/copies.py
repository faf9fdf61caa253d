"""The copies of a partition's log on several brokers, side by side.

Owns what two copies owe each other (design of the cluster, 3 and 4): below the least high watermark of the two they
hold the same batches, byte for byte, and every member of the committed in-sync set has flushed what its leader calls
committed. Always true: it reads files behind the brokers' backs, and only what is new since the last look. Must not
know requests or roles beyond who leads.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broker.metadata.image import ClusterImage
from broker.partition.replica import Partition
from hotstore.segment import Segment
from logformat.record_batch import walk
from tests.sim.cluster import Node
from tests.sim.several.fleet import Fleet

LogKey = tuple[str, int]
"""Topic id, partition."""


class Seen(NamedTuple):
    """A batch: its offsets, and what its bytes are, leader epoch included."""

    base: int
    end: int
    digest: str


class Copy(NamedTuple):
    """One broker's log of a partition. `leads` is the leader epoch it leads in; −1: it does not."""

    node: str
    node_id: int
    start: int
    stable_end: int
    high_watermark: int
    leads: int
    batches: tuple[Seen, ...]


class Copies:
    """Of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._files: dict[
            tuple[str, str], tuple[int, bytes, list[Seen]]
        ] = {}  # parsed bytes, the last of them, batches

    def wrong(self) -> Iterator[str]:
        """What two copies do not have in common now, and ought to."""
        newest = self._fleet.newest()
        by_log: dict[LogKey, list[Copy]] = defaultdict(list)
        for key, copy in self._all():
            by_log[key].append(copy)
        for key, copies in by_log.items():
            name = _name(None if newest is None else newest.image, key)
            yield from (f"{name}: {said}" for said in unlike(copies))
            if newest is not None:
                yield from (f"{name}: {said}" for said in behind(copies, _members(newest.image, key)))

    def _all(self) -> Iterator[tuple[LogKey, Copy]]:
        """Every log that a living broker has open and plays a role for."""
        alone = self._single()
        for seat in self._fleet.seats:
            node = seat.node
            broker = None if node is None or node.dead else node.broker
            if node is None or broker is None or broker.rooms.replicas is None:
                continue
            for partition in broker.rooms.replicas._registry:
                key = (str(partition.topic_id), partition.index)
                if key not in alone:
                    yield key, self._copy(node, seat.node_id, partition)

    def _single(self) -> set[LogKey]:
        """Partitions with one replica: nothing to compare."""
        newest = self._fleet.newest()
        topics = () if newest is None else newest.image.topics.values()
        return {
            (topic.topic_id, index)
            for topic in topics
            for index, row in enumerate(topic.rows)
            if len({*row.replicas, *row.target}) == 1
        }

    def _copy(self, node: Node, node_id: int, partition: Partition) -> Copy:
        log = partition.log
        batches = [batch for segment in log._locator.segments for batch in self._of_file(node, segment)]
        return Copy(
            node.name,
            node_id,
            log.local_log_start_offset,
            log.stable_end_offset,
            partition.high_watermark,
            partition.leader_epoch if partition.leading else -1,
            tuple(batches),
        )

    def _of_file(self, node: Node, segment: Segment) -> list[Seen]:
        key = (node.name, segment.file.path)
        inode = node.disk.inner._names.get(segment.file.path)
        if inode is None:
            return []  # it is being deleted
        data = bytes(inode.data[: segment.size])
        parsed, tail, batches = self._files.get(key, (0, b"", []))
        if parsed > len(data) or data[parsed - len(tail) : parsed] != tail:
            parsed, batches = 0, []  # it was cut
        for at, header in walk(data, parsed):
            end = at + header.size
            batches.append(Seen(header.base_offset, header.next_offset, hashlib.sha256(data[at:end]).hexdigest()[:12]))
            parsed, tail = end, data[at:end]
        self._files[key] = (parsed, tail, batches)
        return batches


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


def behind(copies: Iterable[Copy], members: tuple[int, frozenset[int]]) -> Iterator[str]:
    """Members of the committed in-sync set that have not flushed what its leader calls committed; `members`: the leader
    epoch, and who they are in it."""
    known = list(copies)
    epoch, in_sync = members
    for leader in known:
        if leader.leads != epoch:
            continue  # of an older epoch: it may not know yet who else is in the set
        for copy in known:
            if copy.node_id in in_sync and copy.stable_end < leader.high_watermark:
                yield (
                    f"{leader.node} leads in epoch {epoch} with high watermark {leader.high_watermark}, and "
                    f"{copy.node} of its in-sync set {sorted(in_sync)} has flushed to {copy.stable_end}"
                )


def _members(image: ClusterImage, key: LogKey) -> tuple[int, frozenset[int]]:
    topic = image.topics.get(key[0])
    if topic is None or key[1] >= topic.partitions:
        return -2, frozenset()
    row = topic.rows[key[1]]
    return row.leader_epoch, frozenset(row.in_sync)


def _name(image: ClusterImage | None, key: LogKey) -> str:
    topic = None if image is None else image.topics.get(key[0])
    return f"{key[0] if topic is None else topic.name}-{key[1]}"
