"""Status of partitions (`GET /status`) and of the broker (`GET /broker`), for `tier status`.

The fields are a contract (cli.md). Partitions are walked on request, never on a timer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from broker.config.units import show_duration
from broker.observe.cluster_summary import ClusterSummary, summarize
from broker.observe.conditions import SHOWN_MAX, Facts, conditions
from broker.observe.metrics.topics import PartitionFigures, collect_figures
from broker.observe.sources import Sources, StartupSources, decides, heartbeat_age_s, in_cluster
from broker.observe.standing import Blocked, InCluster, ReadOnly, ShownCondition
from broker.partition.leading.leader_replica import LeaderReplica
from broker.replication.catch_up import bytes_between
from broker.transactions.open_ended import OVERDUE_MS
from coldstore.stores.metered import Failing, MeteredStore
from hotstore.log.partition_log import LogState
from tiering.partition_state import Block

_REFUSALS_MIN: Final = 3  # failures in a row; fewer are not reported, because the calls are retried
_WHY_CHARS: Final = 300
# Causes that block appends come before causes that block tiering.
_DISK_BLOCKS: Final = {LogState.FULL: "disk full", LogState.FAILED: "log offline"}


class PartitionStatus(msgspec.Struct):
    """One line of `tier status --json`. `gaps`: [first, end) of declared gaps. `hot_bytes` (HTTP only): bytes that a
    new replica copies because the bucket lacks them. `stale_bytes`: estimated bytes that the next compaction of the
    bucket frees, with `rewrite_requests` and `rewrite_bytes` (read and written); `replaced_bytes`: bytes of replaced
    objects whose grace has not ended."""

    topic: str
    partition: int
    leader: int
    log_start_offset: int
    local_log_start_offset: int
    remote_end_offset: int
    high_watermark: int
    log_end_offset: int
    local_bytes: int
    cold_bytes: int
    copy_lag_bytes: int
    copy_lag_segments: int
    copy_lag_ms: int
    seal_age_ms: int
    gaps: list[tuple[int, int]]
    blocked_by: str | None
    hot_bytes: int = 0
    stale_bytes: int = 0
    rewrite_requests: int = 0
    rewrite_bytes: int = 0
    replaced_bytes: int = 0


def status_json(sources: Sources) -> bytes:
    """The status of every open partition, a JSON array."""
    found = sorted(sources.context.registry, key=lambda partition: (partition.topic, partition.index))
    return msgspec.json.encode([_status(sources, partition) for partition in found])


def _status(sources: Sources, partition: LeaderReplica) -> PartitionStatus:
    tier, log = partition.tier.status(), partition.log
    hot_start, end = max(tier.remote_end_offset, partition.log_start_offset), log.log_end_offset
    return PartitionStatus(
        topic=partition.topic,
        partition=partition.index,
        leader=sources.context.config.node_id if partition.leading else -1,
        log_start_offset=partition.log_start_offset,
        local_log_start_offset=partition.log.local_log_start_offset,
        remote_end_offset=tier.remote_end_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log.log_end_offset,
        local_bytes=partition.log.local_bytes,
        cold_bytes=tier.cold_bytes,
        copy_lag_bytes=tier.copy_lag_bytes,
        copy_lag_segments=tier.copy_lag_segments,
        copy_lag_ms=tier.copy_lag_ms,
        seal_age_ms=tier.seal_age_ms,
        gaps=list(tier.gaps),
        blocked_by=_DISK_BLOCKS.get(partition.log.state, tier.blocked_by),
        hot_bytes=bytes_between(log.segments_between(hot_start, end), hot_start, end),
        stale_bytes=tier.compaction.stale_bytes,
        rewrite_requests=tier.compaction.requests,
        rewrite_bytes=tier.compaction.moved_bytes,
        replaced_bytes=tier.replaced_bytes,
    )


class BrokerStatus(msgspec.Struct):
    """The broker part of `tier status`. Bytes; `not_ready` is empty when the broker serves. Unknown figures are 0."""

    node_id: int
    not_ready: str
    disk_bytes: int
    disk_free_bytes: int
    log_limit_bytes: int
    cache_bytes: int
    cache_limit_bytes: int
    cache_bytes_max: int
    cache_evictions: int
    conditions: list[ShownCondition]
    blocked: list[Blocked] = []
    cluster: InCluster | None = None
    read_only: ReadOnly | None = None


def broker_status(
    startup: StartupSources,
    sources: Sources | None,
    seen: PartitionFigures | None = None,
    cluster: ClusterSummary | None = None,
    strays: Sequence[str] = (),
) -> BrokerStatus:
    """See `BrokerStatus`; for `seen` and `cluster` see `facts`."""
    config, not_ready = startup.config, startup.health.waiting_for
    if sources is None:
        held = conditions(facts_at_start(startup))
        return BrokerStatus(config.node_id, not_ready, 0, 0, 0, 0, 0, config.cache_bytes_max, 0, held)
    seen = collect_figures(sources.context.registry) if seen is None else seen
    disk, figures = sources.tiers.watch.disk, sources.tiers.figures()
    return BrokerStatus(
        node_id=config.node_id,
        not_ready=not_ready,
        disk_bytes=disk.total,
        disk_free_bytes=disk.free,
        log_limit_bytes=disk.log_limit,
        cache_bytes=int(figures["cold_cache_bytes"]),
        cache_limit_bytes=int(figures["cold_cache_limit_bytes"]),
        cache_bytes_max=config.cache_bytes_max,
        cache_evictions=int(figures["cold_cache_evictions"]),
        conditions=conditions(facts(sources, seen, cluster)),
        blocked=_blocked(sources),
        cluster=in_cluster(sources, seen.late, list(strays)),
    )


def _blocked(sources: Sources) -> list[Blocked]:
    """The causes that block partitions; the cause with the most partitions is first."""
    counts: Counter[str] = Counter()
    first: dict[str, tuple[str, str]] = {}
    for partition in sources.context.registry:
        state = partition.tier.partition_state
        if (by := state.blocked_by) is not None:
            counts[by] += 1
            first.setdefault(by, (f"{partition.topic}-{partition.index}", state.blocked_why[:_WHY_CHARS]))
    return [Blocked(by, count, *first[by]) for by, count in counts.most_common(SHOWN_MAX)]


def facts_at_start(startup: StartupSources) -> Facts:
    """Status before the broker serves."""
    outage, store = startup.outage(), startup.store()
    return Facts(
        data_dir=startup.config.data_dir,
        not_ready=startup.health.waiting_for,
        store_failure=str(outage) if outage.tries else "",
        missing_keys=() if store is None else missing_keys(store),
        store_refusals=() if store is None else refusals(store),
        insecure=startup.config.insecure,
    )


def refusals(store: MeteredStore) -> tuple[str, ...]:
    """Operations whose last calls all failed, with the store's error; without those of `missing_keys`."""
    return tuple(
        f"{found.operation.value} ({found.failure}; {_tries(found)})"
        for found in store.failing(_REFUSALS_MIN)
        if not found.missing_key
    )


def missing_keys(store: MeteredStore) -> tuple[str, ...]:
    """Keys for whose absence the last calls of an operation failed."""
    return tuple(
        f"{found.missing_key} ({found.operation.value}: {found.failure}; {_tries(found)})"
        for found in store.failing(_REFUSALS_MIN)
        if found.missing_key
    )


def _tries(found: Failing) -> str:
    return f"{found.tries} tries in {show_duration(int(found.seconds) * 1000)}"


def cluster_now(sources: Sources) -> ClusterSummary:
    """The cluster summary, made at once. Used for few partitions."""
    return summarize(sources.context.metadata.image, sources.context.config.node_id, decides=decides(sources))


def _stopped_copies(sources: Sources) -> tuple[str, ...]:
    """Followed partitions whose disk failed or whose log does not open, each with the reason."""
    registry, topics = sources.context.registry, sources.context.metadata.image.topics
    stopped = [(copy.topic, copy.index, copy.failure) for copy in registry.followed.values() if copy.failure]
    for (topic_id, index), why in registry.log_failures.unfit.items():
        topic = topics.get(topic_id)
        is_led = topic is None or topic.rows[index].leader == sources.context.config.node_id
        if topic is not None and not is_led and (topic.name, index) not in registry.followed:
            stopped.append((topic.name, index, f"{why}; it is retried automatically"))
    return tuple(f"{name}-{index} ({why})" for name, index, why in stopped)


def facts(sources: Sources, seen: PartitionFigures | None = None, cluster: ClusterSummary | None = None) -> Facts:
    """The input of the conditions. `seen`, `cluster`: results of walks that were just made."""
    cluster = cluster_now(sources) if cluster is None else cluster
    controller = sources.context.metadata.controller
    transactions = sources.context.transactions
    offline, full, out_of_offsets, blocked = [str(place) for place in sources.damaged], [], [], []
    bucket_uncleaned: list[str] = []
    lag_bytes = lag_ms = 0
    for partition, tier in (collect_figures(sources.context.registry) if seen is None else seen).found:
        name = f"{partition.topic}-{partition.index}"
        if partition.log.state is LogState.FAILED:
            offline.append(name)
        elif partition.log.state is LogState.FULL:
            full.append(name)
        if tier.blocked_by == Block.RESERVATION.value:
            out_of_offsets.append(name)
        if tier.blocked_by is not None:
            blocked.append(f"{name} by {tier.blocked_by}")
        if tier.uncompacted_why:
            bucket_uncleaned.append(f"{name} ({tier.uncompacted_why[:_WHY_CHARS]})")
        lag_bytes += tier.copy_lag_bytes
        lag_ms = max(lag_ms, tier.copy_lag_ms)
    disk, outage = sources.tiers.watch.disk, sources.session.outage
    cache_max = 0 if sources.store.url.startswith("file:") else sources.context.config.cache_bytes_max
    return Facts(
        data_dir=sources.context.config.data_dir,
        offline=tuple(offline),
        copies_stopped=_stopped_copies(sources),
        uncleanable=tuple(f"{place} ({found.why})" for place, found in sources.cleaner.uncleanable.items()),
        bucket_uncleaned=tuple(bucket_uncleaned),
        unfit_because=sources.session.unfit_because,
        silent_ms=int(heartbeat_age_s(sources) * 1000),
        controller=None if controller is None else controller.node_id,
        cluster=tuple(cluster.findings()),
        overdue_transactions=(
            *(() if transactions is None else transactions.metrics().overdue),
            *_held_back(sources),
        ),
        full=tuple(full),
        out_of_offsets=tuple(out_of_offsets),
        disk_free_bytes=disk.free,
        disk_bytes=disk.total,
        log_limit_bytes=disk.log_limit,
        limit_is_share=disk.is_share,
        local_excess_ratio=sources.tiers.watch.local_excess_ratio,
        not_ready=sources.health.waiting_for,
        store_failure=str(outage) if outage.tries else "",
        missing_keys=missing_keys(sources.store),
        store_refusals=refusals(sources.store),
        copy_lag_bytes=lag_bytes,
        copy_lag_ms=lag_ms,
        blocked=tuple(blocked),
        cache_limit_bytes=sources.tiers.cold.cache_limit_bytes,
        cache_bytes_max=cache_max,  # a directory bucket needs no cache, because it is read in place
        refused_certificates=sources.certificates.refused() if sources.certificates else (),
        expiring_certificates=sources.certificates.expiring() if sources.certificates else (),
        insecure=sources.context.config.insecure,
    )


def _held_back(sources: Sources) -> list[str]:
    """Transactions that are open in partitions led here for longer than any time-out allows, by producer id."""
    context = sources.context
    before_ms = context.world.clock.wall_ms() - context.config.transactions.timeout_max_ms - OVERDUE_MS
    found = []
    for partition in context.registry.partitions.values():
        opened = partition.log.producers.transactions
        for producer_id in opened.begun_before(before_ms) if opened.first_offsets else ():
            name, first_offset = f"{partition.topic}-{partition.index}", opened.first_offsets[producer_id]
            found.append(f"producer {producer_id} (open in {name} since offset {first_offset})")
    return found
