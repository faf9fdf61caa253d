"""From counters to Prometheus' text.

Owns the metric names (docs/operations.md and docs/grafana/ use them). Always true: it reads, it never changes anything;
labels are bounded (operations, outcomes, APIs, topics, conditions, the groups that lag most), and every value of one
that is neither a topic nor a group is there from the start, so that an alert never waits for its series. Must not know
how anything is counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from broker.groups.lag import Survey
from broker.net.dispatch import CloseReason
from broker.observe.conditions import Condition, conditions
from broker.observe.group_metrics import GroupMetrics
from broker.observe.sources import Beginning, Sources
from broker.observe.tier_view import facts, facts_at_start
from broker.partition.throttle import Refusal
from broker.wire.apis import ApiKey
from coldstore.stores.metered import LATENCY_BOUNDS_MS, MeteredStore, Outcome
from tiering.cost import estimated_dollars_per_day

_GAUGES = frozenset(
    {"cold_reads_waiting", "cold_cache_bytes", "cold_cache_limit_bytes"}
)  # what tiering counts up and down


def exposition(beginning: Beginning, sources: Sources | None, groups: Survey | None = None) -> bytes:
    """Everything there is in Prometheus' text format; `sources` and `groups` are None while nothing is served yet."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Beginning(beginning, sources))
    if sources is not None:
        registry.register(_Serving(sources))
    if groups is not None:
        registry.register(GroupMetrics(groups))
    text: bytes = generate_latest(registry)
    return text


class _Beginning:
    """What every scrape finds, the first one too."""

    def __init__(self, beginning: Beginning, sources: Sources | None) -> None:
        self._beginning = beginning
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        beginning, store = self._beginning, self._beginning.store()
        yield _gauge("ready", "1 while clients are answered", float(beginning.health.is_ready))
        yield _gauge("store_reachable", "0 from a call to the bucket that the start or the lease waits for and that "
                     "fails, until one succeeds", float(not beginning.outage().tries))  # fmt: skip
        yield _counter(
            "background_failures",
            "failures of background work; /healthz names the last",
            beginning.metrics.unexpected_errors,
        )
        now = facts_at_start(beginning) if self._sources is None else facts(self._sources)
        held = {condition.name for condition in conditions(now)}
        family = GaugeMetricFamily("thermocline_condition", "1 while it holds; tier status says more", labels=["name"])
        for condition in Condition:
            family.add_metric([condition.value], float(condition.value in held))
        yield family
        if store is not None:
            yield from _store(store)
        if self._sources is not None:
            yield _gauge("offline_partitions", "partitions that serve nothing until a restart", len(now.offline))
            yield _gauge("full_partitions", "partitions whose last append found the disk full", len(now.full))


class _Serving:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        yield from self._broker()
        yield from self._room()
        yield from self._network()
        yield from self._tiers()

    def _broker(self) -> Iterator[Metric]:
        metrics, gate = self._sources.context.metrics, self._sources.membership.gate
        yield _gauge("controller_epoch", "epoch this broker committed", float(self._sources.context.controller.epoch))
        yield _counter("gate_pauses", "times the clock jumped by more than a lease", gate.paused_count)
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
        sessions = self._sources.context.fetch_sessions
        yield _gauge("fetch_sessions", "fetch sessions kept (KIP-227)", len(sessions))
        yield _gauge("fetch_session_partitions", "partitions in them", sessions.partitions)
        yield _counter("fetch_sessions_created", "fetch sessions begun", sessions.created_count)
        yield _counter("fetch_sessions_evicted", "fetch sessions that made room for others", sessions.evicted_count)
        yield _counter("incremental_fetches", "fetches that named only what changed", sessions.incremental_count)

    def _room(self) -> Iterator[Metric]:
        """Disk, and what takes no append."""
        tiers, throttle = self._sources.tiers, self._sources.context.throttle
        yield _gauge("disk_bytes", "size of the data directory's file system", tiers.disk.total)
        yield _gauge("disk_free_bytes", "what may still be written there", tiers.disk.free)
        yield _gauge(
            "local_limit_bytes", "what local logs may use before copied segments go early", tiers.disk.log_limit
        )
        yield _gauge(
            "local_excess_ratio", "share by which uncopied local logs are over their limit", tiers.local_excess_ratio
        )
        yield _counter("throttled_produces", "produces that waited for a flush, or for room", throttle.throttled_count)
        refused = CounterMetricFamily(
            "thermocline_refused_produces", "partitions of produce requests that found no room", labels=["reason"]
        )
        for reason in Refusal:
            refused.add_metric([reason.value], throttle.refused[reason])
        yield refused

    def _network(self) -> Iterator[Metric]:
        counters = self._sources.server.counters
        yield _gauge("connections", "open connections", counters.connections_open)
        yield _counter("connections_accepted", "connections accepted", counters.connections_accepted)
        yield _counter("network_received_bytes", "bytes received from clients", counters.bytes_in)
        yield _counter("network_sent_bytes", "bytes sent to clients", counters.bytes_out)
        closes = CounterMetricFamily("thermocline_connection_closes", "connections ended", labels=["reason"])
        for reason in CloseReason:
            closes.add_metric([str(reason)], counters.closes[reason])
        yield closes

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


def _store(store: MeteredStore) -> Iterator[Metric]:
    requests = CounterMetricFamily("thermocline_store_requests", "billed requests", labels=["operation"])
    sizes = CounterMetricFamily("thermocline_store_bytes", "body bytes", labels=["operation"])
    errors = CounterMetricFamily(
        "thermocline_store_errors", "calls that got no answer or were refused", labels=["operation"]
    )
    calls = CounterMetricFamily("thermocline_store_calls", "calls by how they ended", labels=["operation", "outcome"])
    latency = HistogramMetricFamily("thermocline_store_seconds", "duration of calls", labels=["operation"])
    for operation, meter in store.meters.items():
        name = [operation.value]
        requests.add_metric(name, meter.requests)
        sizes.add_metric(name, meter.bytes)
        errors.add_metric(name, meter.errors)
        for outcome in Outcome:
            calls.add_metric([operation.value, outcome.value], meter.outcomes[outcome])
        latency.add_metric(name, _cumulative(meter.buckets), meter.seconds)
    yield from (requests, sizes, errors, calls, latency)


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
