"""Both tiers of the topics that a query reads, as they stand when it is planned.

Owns the driver's view: the bucket always, the running cluster when `kafka.bootstrap.servers` names it. Always true: the
seam of a partition (below it the bucket, from it on the cluster) is the remote end of one version of its manifest, read
before the cluster's end: both sides of it were there, and every offset is on one side. Segments that move to the bucket
later change neither side, because the cluster serves both tiers. Without a cluster no broker is asked for anything.
Must not know Spark, nor which offsets a query wants.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from logformat.errors import InvalidRequest
from logformat.values import TopicPartition
from thermocline.pipeline.history import History, PartitionHistory
from thermocline.pipeline.spark.options import Options
from thermocline.pipeline.spark.ranges import Extent
from thermocline.pipeline.split import DataLoss, Loss

if TYPE_CHECKING:
    from thermocline.pipeline.spark.cluster import Cluster
    from thermocline.pipeline.spark.tail import ConsumerSettings

log = logging.getLogger(__name__)

LOOKUPS_AT_ONCE: Final = 8  # partitions whose first record after a time is looked up together
LOOKUP_BYTES: Final = 1 << 20  # such a look-up decodes at most this much before it finds its record or goes on


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition when it was looked at. `cold` None: the bucket does not know of it."""

    topic_id: UUID | None
    cold: PartitionHistory | None
    extent: Extent
    seam: int

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        return () if self.cold is None else self.cold.gaps


States = Mapping[TopicPartition, PartitionState]


def connection_of(options: Options) -> ConsumerSettings | None:
    """How tasks and the driver reach the cluster; None when the bucket alone is read."""
    if options.bootstrap_servers is None:
        return None
    from thermocline.pipeline.spark.tail import ConsumerSettings

    return ConsumerSettings.of(
        options.bootstrap_servers, options.consumer, options.group_id_prefix, options.poll_timeout_ms
    )


class Tiers:
    """Looks at bucket and cluster for one query. Close it."""

    def __init__(self, options: Options) -> None:
        self.history = History.open(options.bucket)
        self.cluster: Cluster | None = None
        self._selection = options.selection
        self._fail_on_data_loss = options.fail_on_data_loss
        self._topic_ids: dict[str, UUID | None] = {}
        self._in_bucket: frozenset[str] = frozenset()
        self._connection = connection_of(options)

    @property
    def has_cluster(self) -> bool:
        """Whether the query reads the hot tail too."""
        return self._connection is not None

    def close(self) -> None:
        self.history.close()

    def topic_id(self, topic: str) -> UUID | None:
        """Its id when `partitions` was last asked; None for a topic it did not name, or brokers without ids."""
        return self._topic_ids.get(topic)

    # ── which partitions ─────────────────────────────────────────────────────────────────────────────────────────
    def partitions(self) -> list[TopicPartition]:
        """The partitions the query reads, now. InvalidRequest names a topic or partition that does not exist."""
        counts: dict[str, int] = {}
        ids: dict[str, UUID | None] = {}
        for topic in self.history.topics().values():
            if self._selection.wants(topic.topic):
                counts[topic.topic], ids[topic.topic] = topic.partitions, topic.topic_id
        self._in_bucket = frozenset(counts)
        if self._connection is not None:
            self._add_cluster_topics(counts, ids)
        for name in sorted(self._selection.named or ()):
            if name not in counts:
                self.history.topic(name)  # raises, with the nearest name
        self._topic_ids = ids
        if self._selection.assign is None:
            return [TopicPartition(topic, number) for topic in sorted(counts) for number in range(counts[topic])]
        for tp in sorted(self._selection.assign):
            if tp.partition >= counts[tp.topic]:
                raise InvalidRequest(f"option assign: {tp.topic} has partitions 0 to {counts[tp.topic] - 1}, not {tp}")
        return sorted(self._selection.assign)

    def _add_cluster_topics(self, counts: dict[str, int], ids: dict[str, UUID | None]) -> None:
        """Topics of the cluster too: those of which nothing is in the bucket yet. One name, one topic id."""
        for topic in self._cluster().topics().values():
            named = topic.topic in (self._selection.named or ())
            if not self._selection.wants(topic.topic) or (topic.is_internal and not named):
                continue
            known = ids.get(topic.topic)
            if known is not None and topic.topic_id is not None and known != topic.topic_id:
                raise InvalidRequest(
                    f"topic {topic.topic} is {known} in the bucket and {topic.topic_id} on the brokers: is the bucket "
                    "of this cluster? A topic that was just made again takes some seconds to be the new one in both"
                )
            counts[topic.topic] = max(counts.get(topic.topic, 0), topic.partitions)
            ids[topic.topic] = known or topic.topic_id

    def _cluster(self) -> Cluster:
        if self.cluster is None:
            from thermocline.pipeline.spark.cluster import Cluster

            assert self._connection is not None
            self.cluster = Cluster(self._connection)
        return self.cluster

    # ── what they hold ───────────────────────────────────────────────────────────────────────────────────────────
    def cold(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionHistory | None]:
        """The newest manifest of each: conditional GETs, in parallel. None: the bucket does not know the partition."""
        wanted = list(partitions)
        return dict(zip(wanted, self.history.map(self._cold, wanted), strict=True))

    def _cold(self, tp: TopicPartition) -> PartitionHistory | None:
        if tp.topic not in self._in_bucket:
            return None
        try:
            return self.history.partition(tp.topic, tp.partition)
        except InvalidRequest:  # made a moment ago: the cluster knows it, the bucket does not yet
            return None
        except DataLoss as lost:  # a topic's manifests are made before its name: this one was there
            if self._fail_on_data_loss:
                raise
            log.warning("data loss: %s", lost)
            return None

    def states(
        self, partitions: Iterable[TopicPartition], cold: Mapping[TopicPartition, PartitionHistory | None] | None = None
    ) -> dict[TopicPartition, PartitionState]:
        """What each partition holds, both tiers; `cold` are manifests the caller has, else they are loaded first."""
        wanted = list(partitions)
        parts = self.cold(wanted) if cold is None else cold
        if self._connection is None:
            return {tp: state_of(self._topic_ids.get(tp.topic), parts[tp], None, None) for tp in wanted}
        ends = self._cluster().ends(wanted)
        firsts = self._cluster().starts(tp for tp in wanted if not _holds_any(parts[tp]))
        return {tp: state_of(self._topic_ids.get(tp.topic), parts[tp], firsts.get(tp), ends[tp]) for tp in wanted}

    # ── times ────────────────────────────────────────────────────────────────────────────────────────────────────
    def first_at(self, states: States, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose record is of that time or later, as Kafka's ListOffsets; None where there is none."""
        with ThreadPoolExecutor(LOOKUPS_AT_ONCE, thread_name_prefix="times") as pool:
            answers = pool.map(lambda tp: self._first_cold_at(states[tp], times_ms[tp]), times_ms)
            found = dict(zip(times_ms, answers, strict=True))
        if self._connection is None:
            return found
        missing = {tp: times_ms[tp] for tp, offset in found.items() if offset is None}
        return found | self._cluster().first_at(missing)

    def _first_cold_at(self, state: PartitionState, time_ms: int) -> int | None:
        cold = state.cold
        if not _holds_any(cold):
            return None
        from thermocline.pipeline.scan import scan  # the decoder: only look-ups by time need it

        assert cold is not None
        place = TopicPartition(cold.topic, cold.partition)
        for segment in cold.segments(cold.log_start, cold.remote_end, time_ms):
            piece = (max(segment.base_offset, cold.log_start), segment.end_offset)
            splits = self.history.plan(
                {place: piece}, min_timestamp_ms=time_ms, target_bytes=LOOKUP_BYTES, parts={place: cold}
            )
            for split in splits:
                for batch in scan(self.history.store, split, ("offset",), loss=Loss()):
                    if batch.num_rows:
                        return int(batch.column(0)[0].as_py())
        return None


def state_of(
    topic_id: UUID | None, cold: PartitionHistory | None, cluster_start: int | None, cluster_end: int | None
) -> PartitionState:
    """One state from what the tiers say; the cluster's numbers are None where it was not asked."""
    if cold is not None and _holds_any(cold):
        end = cold.remote_end if cluster_end is None else max(cold.remote_end, cluster_end)
        return PartitionState(topic_id, cold, Extent(cold.log_start, end), cold.remote_end)
    start = cluster_start if cluster_start is not None else (0 if cold is None else cold.log_start)
    return PartitionState(topic_id, cold, Extent(start, max(start, cluster_end or 0)), start)


def _holds_any(cold: PartitionHistory | None) -> bool:
    return cold is not None and cold.log_start < cold.remote_end
