"""Both tiers of a query's topics, as the driver sees them when it plans.

The seam of a partition (bucket below, cluster above) is the remote end of one version of its manifest, read before the
cluster's end, so every offset is on one side. Segments that move to the bucket later change neither side, because the
cluster serves both tiers. Without `kafka.bootstrap.servers` no broker is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from logformat.errors import InvalidRequest
from logformat.values import TopicPartition
from thermocline.pipeline.history import History, PartitionHistory
from thermocline.pipeline.spark.options import Options
from thermocline.pipeline.spark.planning.ranges import Extent
from thermocline.pipeline.split import DataLoss, Loss

if TYPE_CHECKING:
    from thermocline.pipeline.spark.cluster import Cluster
    from thermocline.pipeline.spark.tail import ConsumerSettings

log = logging.getLogger(__name__)

MANIFESTS_S: Final = 2.0  # without a cluster: one conditional GET per partition, $0.4 per million
ENDS_S: Final = 0.1  # with a cluster: one ListOffsets for all partitions
COLD_S: Final = 10.0  # with a cluster an old seam is valid, but slower for a stream that is far behind
DISCOVER_S: Final = 5.0  # new topics and partitions
LOOKUPS_AT_ONCE: Final = 8  # partitions whose first record after a time is looked up in parallel
LOOKUP_BYTES: Final = 1 << 20  # target size of a split in such a look-up


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition at the time of planning. `cold` is None if the bucket does not have it."""

    topic_id: UUID | None
    cold: PartitionHistory | None
    extent: Extent
    seam: int

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        return () if self.cold is None else self.cold.gaps


States = Mapping[TopicPartition, PartitionState]


def connection_of(options: Options) -> ConsumerSettings | None:
    """Settings to reach the cluster; None when only the bucket is read."""
    if options.bootstrap_servers is None:
        return None
    from thermocline.pipeline.spark.tail import ConsumerSettings

    return ConsumerSettings.of(
        options.bootstrap_servers,
        options.consumer,
        options.group_id_prefix,
        options.poll_timeout_ms,
        read_committed=options.read_committed,
    )


class Tiers:
    """The tiers for one query. Close it."""

    def __init__(self, options: Options) -> None:
        self.history = History.open(options.bucket)
        self.cluster: Cluster | None = None
        self._selection = options.selection
        self._fail_on_data_loss = options.fail_on_data_loss
        self._read_committed = options.read_committed
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
        """The topic's id as of the last `partitions`; None for a topic that is not read, or if the brokers have no
        ids."""
        return self._topic_ids.get(topic)

    # ── which partitions ─────────────────────────────────────────────────────────────────────────────────────────
    def partitions(self) -> list[TopicPartition]:
        """The partitions to read now. Raises InvalidRequest, which names a topic or partition that does not exist."""
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
        """Add the cluster's topics that are not in the bucket yet. A name must have one topic id in both."""
        for topic in self._cluster().topics().values():
            named = topic.topic in (self._selection.named or ())
            if not self._selection.wants(topic.topic) or (topic.is_internal and not named):
                continue
            known = ids.get(topic.topic)
            if known is not None and topic.topic_id is not None and known != topic.topic_id:
                raise InvalidRequest(
                    f"topic {topic.topic} has id {known} in the bucket and {topic.topic_id} on the brokers: "
                    "check that the bucket is this cluster's. If the topic was just deleted and created again, "
                    "try again in some seconds"
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
        """The newest manifest of each partition (conditional GETs, in parallel). None: not in the bucket."""
        wanted = list(partitions)
        return dict(zip(wanted, self.history.map(self._cold, wanted), strict=True))

    def _cold(self, tp: TopicPartition) -> PartitionHistory | None:
        if tp.topic not in self._in_bucket:
            return None
        try:
            return self.history.partition(tp.topic, tp.partition)
        except InvalidRequest:  # just created: in the cluster, not yet in the bucket
            return None
        except DataLoss as lost:  # manifests are created before the topic's name, so this manifest existed
            if self._fail_on_data_loss:
                raise
            log.warning("data loss: %s", lost)
            return None

    def states(
        self, partitions: Iterable[TopicPartition], cold: Mapping[TopicPartition, PartitionHistory | None] | None = None
    ) -> dict[TopicPartition, PartitionState]:
        """The state of each partition over both tiers. `cold`: manifests that the caller has already."""
        wanted = list(partitions)
        parts = self.cold(wanted) if cold is None else cold
        if self._connection is None:
            return {tp: state_of(self._topic_ids.get(tp.topic), parts[tp], None, None) for tp in wanted}
        ends = self._cluster().ends(wanted)
        firsts = self._cluster().starts(tp for tp in wanted if not _holds_any(parts[tp]))
        return {tp: state_of(self._topic_ids.get(tp.topic), parts[tp], firsts.get(tp), ends[tp]) for tp in wanted}

    # ── times ────────────────────────────────────────────────────────────────────────────────────────────────────
    def first_at(self, states: States, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset with a record of that time or later, as in Kafka's ListOffsets; None if there is none."""
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
        from thermocline.pipeline.scan import scan  # only look-ups by time need the decoder

        assert cold is not None
        place = TopicPartition(cold.topic, cold.partition)
        for segment in cold.segments(cold.log_start, cold.remote_end, time_ms):
            piece = (max(segment.base_offset, cold.log_start), segment.end_offset)
            splits = self.history.plan(
                {place: piece}, min_timestamp_ms=time_ms, target_bytes=LOOKUP_BYTES, parts={place: cold}
            )
            for split in splits:
                # Without `read_committed`, a row of an aborted transaction could be returned as the first row.
                rows = scan(self.history.store, split, ("offset",), loss=Loss(), read_committed=self._read_committed)
                for batch in rows:
                    if batch.num_rows:
                        return int(batch.column(0)[0].as_py())
        return None


def state_of(
    topic_id: UUID | None, cold: PartitionHistory | None, cluster_start: int | None, cluster_end: int | None
) -> PartitionState:
    """The state of a partition. The cluster's offsets are None if the cluster was not asked."""
    if cold is not None and _holds_any(cold):
        end = cold.remote_end if cluster_end is None else max(cold.remote_end, cluster_end)
        return PartitionState(topic_id, cold, Extent(cold.log_start, end), cold.remote_end)
    start = cluster_start if cluster_start is not None else (0 if cold is None else cold.log_start)
    return PartitionState(topic_id, cold, Extent(start, max(start, cluster_end or 0)), start)


def _holds_any(cold: PartitionHistory | None) -> bool:
    return cold is not None and cold.log_start < cold.remote_end


class Watch:
    """The newest view of a stream's partitions, cached between triggers.

    Spark asks for the latest offset a hundred times a second while nothing arrives, and every request to a bucket is
    billed. `latest` returns one view, not older than the intervals above.
    """

    def __init__(self, tiers: Tiers, clock: Callable[[], float]) -> None:
        self.tiers = tiers
        self._clock = clock
        self._partitions: list[TopicPartition] = []
        self._cold: dict[TopicPartition, PartitionHistory | None] = {}
        self._states: dict[TopicPartition, PartitionState] = {}
        self._discovered = self._cold_loaded = self._looked = -float("inf")

    def latest(self) -> dict[TopicPartition, PartitionState]:
        """The states of all partitions, refreshed when they are too old. Errors: `Tiers`."""
        if self._clock() - self._looked < (ENDS_S if self.tiers.has_cluster else MANIFESTS_S):
            return self._states
        return self._read()

    def refresh(self) -> dict[TopicPartition, PartitionState]:
        """As `latest`, always refreshed."""
        self._discovered = self._cold_loaded = -float("inf")
        return self._read()

    def rediscover(self) -> dict[TopicPartition, PartitionState]:
        """As `latest`, with topics and their ids refreshed, and manifests if a topic has another id."""
        self._discovered = -float("inf")
        return self._read()

    def _read(self) -> dict[TopicPartition, PartitionState]:
        now = self._clock()
        if now - self._discovered >= DISCOVER_S:
            self._partitions = self.tiers.partitions()
            self._discovered = now
        fresh = set(self._partitions) - set(self._cold) or any(map(self._is_of_another_topic, self._partitions))
        if not self.tiers.has_cluster or fresh or now - self._cold_loaded >= COLD_S:
            self._cold = self.tiers.cold(self._partitions)
            self._cold_loaded = now
        self._states = self.tiers.states(self._partitions, self._cold)
        self._looked = self._clock()
        return self._states

    def _is_of_another_topic(self, tp: TopicPartition) -> bool:
        cold = self._cold.get(tp)
        return cold is not None and cold.topic_id != self.tiers.topic_id(tp.topic)
