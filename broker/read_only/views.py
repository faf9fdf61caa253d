"""Content of the HTTP routes of a read-only broker: its cluster and the age of its data. A route reads no manifest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from broker.context import Context
from broker.errors import ApiError
from broker.groups.lag import Survey
from broker.net.server import Server
from broker.observe.conditions import Facts, conditions
from broker.observe.http import Views
from broker.observe.metrics.exposition import (
    certificate_metrics,
    condition_metrics,
    exposition,
    group_metrics,
    health_metrics,
    network_metrics,
    request_metrics,
)
from broker.observe.metrics.families import gauge
from broker.observe.metrics.process import process_metrics
from broker.observe.metrics.tiering import figures_metrics, store_metrics
from broker.observe.sources import StartupSources
from broker.observe.standing import ReadOnly
from broker.observe.tier_view import BrokerStatus, PartitionStatus, broker_status, missing_keys, refusals
from broker.observe.views import not_ready
from broker.read_only.cluster_poller import ClusterPoller
from broker.read_only.handlers import OF_CLUSTER, WHY
from broker.read_only.root_cache import RootCache
from broker.security.tls.certificates import Certificates
from coldstore.stores.metered import MeteredStore
from tiering.reading.cold_reader import ColdReader


class ReadOnlySources(msgspec.Struct, frozen=True):
    """Components of a serving read-only broker. `since_s`: start of serving, by the monotonic clock."""

    context: Context
    cold: ColdReader
    store: MeteredStore
    server: Server
    poller: ClusterPoller
    roots: RootCache
    since_s: float
    certificates: Certificates


def read_only_views(
    startup: StartupSources, serving: Callable[[], ReadOnlySources | None], reload: Callable[[], Awaitable[bytes]]
) -> Views:
    """The contents of the routes. `serving` returns None until the broker serves."""

    async def broker() -> bytes:
        sources = serving()
        return msgspec.json.encode(broker_status(startup, None) if sources is None else _status(startup, sources))

    async def metrics() -> bytes:
        sources = serving()
        if sources is None:
            return exposition(startup, None)
        survey = await sources.context.groups.survey(sources.context.registry.high_watermark)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_ReadOnlyCollector(startup, sources, survey))
        text: bytes = generate_latest(registry)
        return text

    def status() -> bytes:
        sources = serving()
        return b"[]" if sources is None else msgspec.json.encode(_partitions(sources))

    async def refused(*_: object) -> bytes:
        raise ApiError(OF_CLUSTER, WHY)

    async def seal(_: str | None) -> None:
        await refused()

    return Views(
        metrics=metrics,
        status=status,
        cluster=refused,
        broker=broker,
        not_ready=lambda: not_ready(startup),
        failures=lambda: list(startup.health.failures),
        seal=seal,
        reload=reload,
    )


def standing(sources: ReadOnlySources) -> ReadOnly:
    clock = sources.context.world.clock
    now_s, booted_s = clock.monotonic_s(), clock.boottime_s()
    oldest_s = min((root.read_s for _, root in sources.roots.all_known), default=booted_s)
    loaded = sources.poller.loaded
    assert loaded is not None
    return ReadOnly(
        cluster_id=loaded.cluster_id,
        version=loaded.position,
        for_ms=int((now_s - sources.since_s) * 1000),
        age_ms=int((now_s - sources.poller.polled_s) * 1000),
        roots=len(sources.roots),
        roots_age_ms=int((booted_s - oldest_s) * 1000),
    )


def facts(sources: ReadOnlySources) -> Facts:
    outage, roots, config = sources.poller.outage, sources.roots, sources.context.config
    damaged = sorted(str(partition) for partition, trouble in roots.log_failures.items() if trouble.is_damage)
    cached = 0 if sources.store.url.startswith("file:") else config.cache_bytes_max
    return Facts(
        data_dir=config.data_dir,
        is_read_only=True,
        damaged_roots=tuple(damaged),
        store_failure=str(outage) if outage.tries else roots.failure,
        missing_keys=missing_keys(sources.store),
        store_refusals=refusals(sources.store),
        cache_limit_bytes=min(cached, sources.cold.cache_limit_bytes),
        cache_bytes_max=cached,
        refused_certificates=sources.certificates.refused(),
        expiring_certificates=sources.certificates.expiring(),
        insecure=config.insecure,
    )


def _status(startup: StartupSources, sources: ReadOnlySources) -> BrokerStatus:
    context = sources.context
    space = context.world.disk.space(context.config.data_dir)
    figures = sources.cold.figures()
    return BrokerStatus(
        node_id=context.config.node_id,
        not_ready=startup.health.waiting_for,
        disk_bytes=space.total,
        disk_free_bytes=space.free,
        log_limit_bytes=0,
        cache_bytes=int(figures["cold_cache_bytes"]),
        cache_limit_bytes=int(figures["cold_cache_limit_bytes"]),
        cache_bytes_max=context.config.cache_bytes_max,
        cache_evictions=int(figures["cold_cache_evictions"]),
        conditions=conditions(facts(sources)),
        read_only=standing(sources),
    )


def _partitions(sources: ReadOnlySources) -> list[PartitionStatus]:
    """Partitions whose manifest is loaded."""
    known = sorted(sources.roots.all_known, key=lambda each: (each[0].topic, each[0].index))
    return [
        PartitionStatus(
            topic=partition.topic,
            partition=partition.index,
            leader=sources.context.config.node_id,
            log_start_offset=partition.log_start_offset,
            local_log_start_offset=root.log.local_log_start_offset,
            remote_end_offset=root.manifest.remote_end_offset,
            high_watermark=partition.high_watermark,
            log_end_offset=partition.high_watermark,
            local_bytes=0,
            cold_bytes=root.manifest.live.log_bytes,
            copy_lag_bytes=0,
            copy_lag_segments=0,
            copy_lag_ms=0,
            seal_age_ms=0,
            gaps=list(root.manifest.gaps),
            blocked_by=None,
        )
        for partition, root in known
    ]


class _ReadOnlyCollector:
    def __init__(self, startup: StartupSources, sources: ReadOnlySources, groups: Survey) -> None:
        self._startup = startup
        self._sources = sources
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        startup, sources = self._startup, self._sources
        yield from health_metrics(startup)
        yield from process_metrics(startup.lag)
        yield from store_metrics(sources.store)
        yield condition_metrics({condition.name for condition in conditions(facts(sources))})
        yield from request_metrics(sources.context)
        yield from network_metrics(sources.server)
        yield from certificate_metrics(sources.certificates)
        yield from figures_metrics(sources.cold.figures(), sources.cold.latency_buckets)
        now = standing(sources)
        yield gauge("read_only", "1: this broker serves the bucket of another cluster and writes nothing", 1)
        yield gauge("cluster_version", "records of cluster.json that this broker applied", now.version)
        yield gauge(
            "cluster_age_seconds",
            "time since cluster.json was read; above 30, the condition store_unreachable holds",
            now.age_ms / 1000,
        )
        yield gauge("roots_known", "partitions whose manifest is cached, because clients read them", now.roots)
        yield gauge("roots_age_seconds", "time since the oldest read of a cached manifest",
                    now.roots_age_ms / 1000)  # fmt: skip
        yield from group_metrics(self._groups)
