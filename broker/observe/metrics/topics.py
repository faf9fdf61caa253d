"""Metrics of topics and partitions: bytes produced and fetched, offsets, tiering lag.

The first TOPICS_MAX topics have separate series, and the first PARTITIONS_MAX partitions of these topics have offsets.
All other topics are summed under an empty label, which Prometheus treats as no label. Sums are thus right, and clients
cannot make a scrape grow without bound. A scrape walks the partitions once, in turns of 5 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client.core import Metric

from broker.observe.metrics.families import counters, gauges
from broker.observe.standing import LateReplica
from broker.partition.following.follower_fetch import FollowerFetch
from broker.partition.leading.leader_replica import LeaderReplica
from broker.replication.catch_up import bytes_between
from seams.loop.turns import Turns, next_turn
from tiering.tier_config import TierStatus

TOPICS_MAX: Final = 200
PARTITIONS_MAX: Final = 500
LATE_MAX: Final = 1_000
"""Late replicas that one walk keeps: those of the first partitions."""
OTHERS: Final = ""
_PARTITIONS_PER_TURN: Final = 200  # 25 µs each

_COUNTERS: Final = {
    "topic_produced_bytes": "record batch bytes taken in, by topic; shows which topic fills the disk",
    "topic_produced_records": "records taken in, by topic",
    "topic_produced_batches": "batches taken in, by topic; records ÷ batches tells whether producers batch (linger.ms)",
    "topic_fetched_bytes": "record bytes sent to consumers, by topic; if far more than produced, many groups read, or "
    "one replays",
    "topic_fetched_answers": "answers that carried records, by topic; if each has few bytes, raise consumers' "
    "fetch.min.bytes",
}
_GAUGES: Final = {
    "copy_lag_bytes": "sealed bytes that are not in the bucket; if it grows, copies are slower than producers; see the "
    "condition upload_lags",
    "copy_lag_segments": "sealed segments that are not in the bucket",
    "copy_lag_seconds": "age of the oldest sealed byte that is not in the bucket; above 300, the condition "
    "upload_lags holds",
    "blocked_partitions": "partitions whose tiering is blocked; tier status names the cause, operations.md the remedy",
    "local_bytes": "log bytes on local disk",
    "cold_bytes": "log bytes in the bucket",
    "declared_gaps": "ranges of offsets lost with a disk, or reserved and never assigned; tier status lists them",
    "declared_gap_offsets": "offsets in declared gaps; consumers skip them, because they have no records",
}
_OFFSETS: Final = {
    "log_start_offset": "first readable offset, in either tier",
    "local_log_start_offset": "first offset on local disk; below it reads come from the bucket",
    "remote_end_offset": "end of the bucket's part; a lost disk loses the records between it and the log end",
    "high_watermark": "end of what consumers see; its rate is the records that became visible a second",
    "log_end_offset": "next offset to be assigned; if far above the high watermark, syncs are slow: see sync_seconds",
    "last_stable_offset_lag": "offsets from the last stable offset to the high watermark; if it grows, a transaction "
    "stays open",
}


class _Place(NamedTuple):
    topic: str
    partition: str


class PartitionFigures:
    """One walk: the tier state of each partition, and the values of the series."""

    def __init__(self) -> None:
        self.found: list[tuple[LeaderReplica, TierStatus]] = []
        self.late: list[LateReplica] = []
        self._shown = _Shown()
        self._by_topic: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in (*_COUNTERS, *_GAUGES)}
        self._offsets: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _OFFSETS}

    def add(self, partition: LeaderReplica) -> None:
        """Add a partition; takes 25 µs."""
        tier = partition.tier.status()
        self.found.append((partition, tier))
        if len(self.late) < LATE_MAX:
            self.late += late_replicas(partition)
        topic = self._shown.topic(partition.topic)
        of = (topic,)
        for name, value in _figures(partition, tier).items():
            found = self._by_topic[name]
            before = found.get(of, 0)
            found[of] = max(before, value) if name == "copy_lag_seconds" else before + value
        place = self._shown.place(topic, partition.index)
        for name, offset in zip(_OFFSETS, _offsets(partition, tier), strict=True):
            offsets = self._offsets[name]
            offsets[place] = offsets.get(place, 0) + offset

    def add_reads(self, reads: FollowerFetch) -> None:
        """Bytes and records that consumers read from a partition followed here."""
        of = (self._shown.topic(reads.topic),)
        for name, value in (
            ("topic_fetched_bytes", reads.fetched_bytes),
            ("topic_fetched_answers", reads.fetched_answers),
        ):
            found = self._by_topic[name]
            found[of] = found.get(of, 0) + value

    def families(self) -> Iterator[Metric]:
        """Every series with a label `topic`."""
        for name, text in _COUNTERS.items():
            yield counters(name, text, ["topic"], self._by_topic[name])
        for name, text in _GAUGES.items():
            yield gauges(name, text, ["topic"], self._by_topic[name])
        for name, text in _OFFSETS.items():
            yield gauges(name, text, ["topic", "partition"], self._offsets[name])


def collect_figures(partitions: Iterable[LeaderReplica], reads: Iterable[FollowerFetch] = ()) -> PartitionFigures:
    """The figures, collected at once. Used for few partitions. `reads`: consumers' fetches from followed partitions."""
    seen = PartitionFigures()
    for partition in partitions:
        seen.add(partition)
    for read in reads:
        seen.add_reads(read)
    return seen


async def collect_figures_in_turns(
    partitions: Iterable[LeaderReplica], reads: Iterable[FollowerFetch] = ()
) -> PartitionFigures:
    """As `collect_figures`, in turns with other work; used for thousands of partitions."""
    seen = PartitionFigures()
    turns = Turns(_PARTITIONS_PER_TURN)
    for partition in tuple(partitions):
        seen.add(partition)
        if turns.over():
            await next_turn()
    for read in tuple(reads):
        seen.add_reads(read)
        if turns.over():
            await next_turn()
    return seen


class _Shown:
    """Topics and partitions with separate series."""

    def __init__(self) -> None:
        self._topics: set[str] = set()
        self._partitions = 0

    def topic(self, name: str) -> str:
        if name in self._topics:
            return name
        if len(self._topics) >= TOPICS_MAX:
            return OTHERS
        self._topics.add(name)
        return name

    def place(self, topic: str, index: int) -> _Place:
        if topic == OTHERS or self._partitions >= PARTITIONS_MAX:
            return _Place(topic, OTHERS)
        self._partitions += 1
        return _Place(topic, str(index))


def _figures(partition: LeaderReplica, tier: TierStatus) -> dict[str, float]:
    return {
        "topic_produced_bytes": partition.produced_bytes,
        "topic_produced_records": partition.produced_records,
        "topic_produced_batches": partition.produced_batches,
        "topic_fetched_bytes": partition.fetched_bytes,
        "topic_fetched_answers": partition.fetched_answers,
        "copy_lag_bytes": tier.copy_lag_bytes,
        "copy_lag_segments": tier.copy_lag_segments,
        "copy_lag_seconds": tier.copy_lag_ms / 1000,
        "blocked_partitions": tier.blocked_by is not None,
        "local_bytes": partition.log.local_bytes,
        "cold_bytes": tier.cold_bytes,
        "declared_gaps": len(tier.gaps),
        "declared_gap_offsets": sum(end - first for first, end in tier.gaps),
    }


def _offsets(partition: LeaderReplica, tier: TierStatus) -> tuple[int, ...]:
    """The offsets of a partition, in the order of `_OFFSETS`."""
    return (
        partition.log_start_offset,
        partition.log.local_log_start_offset,
        tier.remote_end_offset,
        partition.high_watermark,
        partition.log.log_end_offset,
        partition.high_watermark - partition.last_stable_offset,
    )


def late_replicas(partition: LeaderReplica) -> list[LateReplica]:
    """Late replicas with a session, of a partition led here. A replica that has all records which the log had half a
    second ago is not late."""
    leader, log = partition.leader, partition.log
    if not partition.leading or not leader.late_since_ms:
        return []
    now_ms = int(asyncio.get_running_loop().time() * 1000)  # the clock of `Leader.sample`
    found = []
    for node_id, since_ms in sorted(leader.late_since_ms.items()):
        end = leader.reported_end(node_id)
        records = None if end < 0 else max(log.log_end_offset - end, 0)
        rest = () if end < 0 else log.segments_between(end, log.log_end_offset)
        size = None if end < 0 else bytes_between(rest, end, log.log_end_offset)
        found.append(LateReplica(partition.topic, partition.index, node_id, records, size, max(now_ms - since_ms, 0)))
    return found
