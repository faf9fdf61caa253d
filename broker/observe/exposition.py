"""From counters to what operators read: Prometheus text, and the JSON behind `tier status`.

Owns the metric names and the fields of `/status` (cli.md). Always true: it reads, it never changes anything; labels are
bounded (operations, APIs, topics, never clients). Must not know how anything is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from broker.context import Context
from broker.controller.membership import Membership
from broker.net.server import Server
from broker.observe.status import Health
from broker.wire.apis import ApiKey
from coldstore.stores.metered import LATENCY_BOUNDS_MS, MeteredStore
from tiering.cost import estimated_dollars_per_day
from tiering.service import TierService

_GAUGES = frozenset({"cold_reads_waiting", "cold_cache_bytes"})  # what tiering counts up and down


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures lie."""

    context: Context
    tiers: TierService
    store: MeteredStore
    server: Server
    membership: Membership
    health: Health


class PartitionStatus(msgspec.Struct):
    """One line of `tier status --json`; what only HTTP knows of it. `gaps`: [first, end) of declared gaps."""

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


def status_json(sources: Sources) -> bytes:
    """Every led partition's status, a JSON array."""
    return msgspec.json.encode([_status(sources, key) for key in sorted(sources.context.registry.partitions)])


def _status(sources: Sources, key: tuple[str, int]) -> PartitionStatus:
    partition = sources.context.registry.partitions[key]
    tier = partition.tier.status()
    return PartitionStatus(
        topic=partition.topic,
        partition=partition.index,
        leader=sources.context.config.node_id,
        log_start_offset=partition.log_start_offset,
        local_log_start_offset=partition.log.local_log_start_offset,
        remote_end_offset=partition.tier.remote_end_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log.log_end_offset,
        local_bytes=partition.log.local_bytes,
        cold_bytes=tier.cold_bytes,
        copy_lag_bytes=tier.copy_lag_bytes,
        copy_lag_segments=tier.copy_lag_segments,
        copy_lag_ms=tier.copy_lag_ms,
        seal_age_ms=tier.seal_age_ms,
        gaps=list(tier.gaps),
        blocked_by=tier.blocked_by,
    )


def exposition(sources: Sources) -> bytes:
    """Everything in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(sources))
    text: bytes = generate_latest(registry)
    return text


class _Collector:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        yield from self._broker()
        yield from self._network()
        yield from self._store()
        yield from self._tiers()

    def _broker(self) -> Iterator[Metric]:
        metrics, health, gate = self._sources.context.metrics, self._sources.health, self._sources.membership.gate
        yield _gauge("ready", "1 while clients are answered", float(health.is_ready))
        yield _gauge("controller_epoch", "epoch this broker committed", float(self._sources.context.controller.epoch))
        yield _gauge("store_reachable", "1 while lease and cluster polls succeed",
                     float(self._sources.membership.store_failure is None))  # fmt: skip
        yield _counter("gate_pauses", "times the clock jumped by more than a lease", gate.paused_count)
        yield _counter("background_failures", "failures of background work", metrics.unexpected_errors)
        requests = CounterMetricFamily("thermocline_requests", "requests by API", labels=["api"])
        for api in ApiKey:
            requests.add_metric([api.name.lower()], metrics.requests[api])
        yield requests
        yield _counter("produce_bytes", "record batch bytes taken in", metrics.produce_bytes_in)
        yield _counter("produce_records", "records taken in", metrics.messages_in)
        yield _counter(
            "failed_produce_requests", "partitions of produce requests refused", metrics.failed_produce_requests
        )
        yield _counter("failed_fetch_requests", "partitions of fetch requests refused", metrics.failed_fetch_requests)
        yield _counter("malformed_requests", "frames that could not be read", metrics.malformed)
        yield _counter(
            "throttled_produces", "produces that waited for a flush", self._sources.context.throttle.throttled_count
        )

    def _network(self) -> Iterator[Metric]:
        counters = self._sources.server.counters
        yield _gauge("connections", "open connections", counters.connections_open)
        yield _counter("connections_accepted", "connections accepted", counters.connections_accepted)
        yield _counter("network_received_bytes", "bytes received from clients", counters.bytes_in)
        yield _counter("network_sent_bytes", "bytes sent to clients", counters.bytes_out)
        closes = CounterMetricFamily("thermocline_connection_closes", "connections ended", labels=["reason"])
        for reason, count in counters.closes.items():
            closes.add_metric([str(reason)], count)
        yield closes

    def _store(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("thermocline_store_requests", "billed requests", labels=["operation"])
        sizes = CounterMetricFamily("thermocline_store_bytes", "body bytes", labels=["operation"])
        errors = CounterMetricFamily("thermocline_store_errors", "failed calls", labels=["operation"])
        latency = HistogramMetricFamily("thermocline_store_seconds", "duration of calls", labels=["operation"])
        for operation, meter in self._sources.store.meters.items():
            name = [operation.value]
            requests.add_metric(name, meter.requests)
            sizes.add_metric(name, meter.bytes)
            errors.add_metric(name, meter.errors)
            latency.add_metric(name, _cumulative(meter.buckets), meter.seconds)
        yield from (requests, sizes, errors, latency)

    def _tiers(self) -> Iterator[Metric]:
        lag: dict[str, list[float]] = {}
        local: dict[str, int] = {}
        cold: dict[str, int] = {}
        for partition in self._sources.context.registry:
            tier = partition.tier.status()
            figures = lag.setdefault(partition.topic, [0, 0, 0, 0])
            figures[0] += tier.copy_lag_bytes
            figures[1] += tier.copy_lag_segments
            figures[2] = max(figures[2], tier.copy_lag_ms / 1000)
            figures[3] += tier.blocked_by is not None
            local[partition.topic] = local.get(partition.topic, 0) + partition.log.local_bytes
            cold[partition.topic] = cold.get(partition.topic, 0) + tier.cold_bytes
        for at, (name, text) in enumerate(
            (
                ("copy_lag_bytes", "sealed bytes that are not in the bucket"),
                ("copy_lag_segments", "sealed segments that are not in the bucket"),
                ("copy_lag_seconds", "age of the oldest sealed byte that is not in the bucket"),
                ("blocked_partitions", "partitions whose tiering is blocked (tier status says by what)"),
            )
        ):
            yield _by_topic(name, text, {topic: figures[at] for topic, figures in lag.items()})
        yield _by_topic("local_bytes", "log bytes on local disk", local)
        yield _by_topic("cold_bytes", "log bytes in the bucket", cold)
        totals = self._sources.tiers.figures()
        for name, value in totals.items():
            make = _gauge if name in _GAUGES else _counter
            yield make(name, name.replace("_", " "), value)
        latency = HistogramMetricFamily(
            "thermocline_cold_read_latency_seconds", "from asking for cold bytes to having them"
        )
        buckets = self._sources.tiers.cold_latency_buckets
        latency.add_metric([], _cumulative(buckets), totals["cold_read_seconds"])
        yield latency
        yield _gauge(
            "estimated_dollars_per_day",
            "at list prices of S3 Standard, from requests since start and bytes held",
            estimated_dollars_per_day(self._sources.store.meters, sum(cold.values()), self._sources.tiers.uptime_s()),
        )


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    bounds = [str(bound / 1000) for bound in LATENCY_BOUNDS_MS] + ["+Inf"]
    total = 0
    found = []
    for bound, count in zip(bounds, buckets, strict=True):
        total += count
        found.append((bound, float(total)))
    return found


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"thermocline_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"thermocline_{name}", text, value=value)


def _by_topic(name: str, text: str, values: dict[str, float] | dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"thermocline_{name}", text, labels=["topic"])
    for topic, value in values.items():
        family.add_metric([topic], value)
    return family
