"""The page `/metrics` in Prometheus' text format (docs/operations.md and docs/grafana/ use its names).

Labels are bounded: operations, outcomes, APIs, topics, conditions, the groups that lag most. Except for topics and
groups, every label value has its series from the start, so that no alert waits for a series.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from broker.context import Context
from broker.groups.lag import SHOWN_MAX, Survey
from broker.groups.machine.events import GroupState
from broker.metrics.counters import BOUNDS_S
from broker.net.dispatch import CloseReason
from broker.net.server import Server
from broker.observe.cluster_summary import ClusterSummary
from broker.observe.conditions import Condition, conditions
from broker.observe.metrics.cleaning import cleaning_metrics, cold_cleaning_metrics
from broker.observe.metrics.cluster import cluster_metrics
from broker.observe.metrics.families import counter, counters, gauge, gauges, histogram
from broker.observe.metrics.process import process_metrics
from broker.observe.metrics.quotas import quota_metrics
from broker.observe.metrics.tiering import store_metrics, tiering_metrics
from broker.observe.metrics.topics import PartitionFigures, collect_figures
from broker.observe.metrics.transactions import transaction_metrics
from broker.observe.sources import Sources, StartupSources
from broker.observe.tier_view import cluster_now, facts, facts_at_start
from broker.partition.leading.produce_backpressure import AppendRefusal
from broker.security.tls.certificates import Certificates
from broker.wire.apis import ApiKey
from hotstore.flush.sync_rounds import SYNC_BOUNDS_S


def exposition(
    startup: StartupSources,
    sources: Sources | None,
    groups: Survey | None = None,
    seen: PartitionFigures | None = None,
    cluster: ClusterSummary | None = None,
) -> bytes:
    """All metrics; `sources` and `groups` are None until the broker serves. `seen`, `cluster`: results of earlier walks
    over all partitions; None: this call walks, without yielding.
    """
    if seen is None:
        partitions = None if sources is None else sources.context.registry
        seen = collect_figures(()) if partitions is None else collect_figures(partitions, partitions.reads)
    if cluster is None and sources is not None:
        cluster = cluster_now(sources)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_BrokerCollector(startup, sources, seen, cluster, groups))
    text: bytes = generate_latest(registry)
    return text


class _BrokerCollector:
    def __init__(
        self,
        startup: StartupSources,
        sources: Sources | None,
        seen: PartitionFigures,
        cluster: ClusterSummary | None,
        groups: Survey | None,
    ) -> None:
        self._startup = startup
        self._sources = sources
        self._seen = seen
        self._cluster = cluster
        self._groups = groups

    def collect(self) -> Iterator[Metric]:
        startup, sources, seen = self._startup, self._sources, self._seen
        yield from health_metrics(startup)
        yield from process_metrics(startup.lag)
        if (store := startup.store()) is not None:
            yield from store_metrics(store)
        now = facts_at_start(startup) if sources is None else facts(sources, seen, self._cluster)
        held = {condition.name for condition in conditions(now)}
        yield condition_metrics(held)
        if sources is not None and self._cluster is not None:
            yield from cluster_metrics(sources, self._cluster, seen.late)
            yield gauge(
                "offline_partitions",
                "partitions that serve nothing until a restart; see the condition log_offline",
                len(now.offline),
            )
            yield gauge("full_partitions", "partitions whose last append found the disk full; appends resume when "
                        "space is free",
                        len(now.full))  # fmt: skip
            yield from _gate_and_syncs(sources)
            yield from request_metrics(sources.context)
            yield from _room(sources)
            yield from network_metrics(sources.server)
            if sources.certificates is not None:
                yield from certificate_metrics(sources.certificates)
            yield from quota_metrics(sources.context.quotas, sources.server.counters.connections_delayed)
            yield from seen.families()
            yield from cleaning_metrics(sources.cleaner)
            if sources.tiers.cleaning is not None:
                yield from cold_cleaning_metrics(sources.tiers.cleaning)
            yield from tiering_metrics(sources, sum(tier.cold_bytes for _, tier in seen.found))
            if (transactions := sources.context.transactions) is not None:
                yield from transaction_metrics(transactions.metrics())
        if self._groups is not None:
            yield from group_metrics(self._groups)


def condition_metrics(held: Collection[str]) -> Metric:
    """One sample for each condition. `held`: names of the conditions that hold."""
    return gauges(
        "condition",
        "1 while the condition holds; tier status and GET /broker describe it, and operations.md has a section on it",
        ["name"],
        {(condition.value,): float(condition.value in held) for condition in Condition},
    )


def health_metrics(startup: StartupSources) -> Iterator[Metric]:
    """Metrics of health, available from the first second."""
    yield gauge("ready", "1 while clients are answered; when 0, GET /readyz has the reason", startup.health.is_ready)
    yield gauge(
        "store_reachable",
        "0 while the calls to the bucket for the start or the lease fail; see the condition store_unreachable",
        not startup.outage().tries,
    )
    yield counter(
        "background_failures",
        "failures of background work; GET /healthz names the last one, and the log has each with its reason",
        startup.metrics.unexpected_errors,
    )


def _gate_and_syncs(sources: Sources) -> Iterator[Metric]:
    yield counter(
        "gate_pauses",
        "times the clock jumped by more than a lease: the machine slept or the process was stopped; answers wait then "
        "until the bucket shows that no other broker took over",
        sources.session.gate.paused_count,
    )
    yield histogram(
        "sync_seconds",
        "fdatasync of logs, from request to completion; an acks=all produce waits for one. A p99 above 0.05 shows a "
        "slow or shared disk",
        SYNC_BOUNDS_S,
        [((), sources.tiers.sync_times.buckets, sources.tiers.sync_times.seconds)],
    )
    yield counter("sync_failures", "syncs that failed; each takes its log offline; see the condition log_offline",
                  sources.tiers.sync_times.failed_count)  # fmt: skip


def request_metrics(context: Context) -> Iterator[Metric]:
    metrics, latency, sessions = context.metrics, context.metrics.latency, context.fetch_sessions
    yield counters(
        "requests", "requests by API", ["api"], {(api.name.lower(),): metrics.requests[api] for api in ApiKey}
    )
    yield histogram(
        "request_seconds",
        "time from a request's last byte to its answer, by API. Produce with acks=all waits for a sync "
        "(sync_seconds), a fetch waits for data up to the client's fetch.max.wait.ms, and admin requests wait for "
        "the bucket",
        BOUNDS_S,
        [((api.name.lower(),), latency.buckets[api], latency.seconds[api]) for api in ApiKey],
        ["api"],
    )
    yield counter("produce_bytes", "record batch bytes taken in", metrics.produce_bytes_in)
    yield counter("produce_records", "records taken in", metrics.records_in)
    yield counter(
        "failed_produce_requests",
        "partitions of produce requests refused for any reason; refused_produces counts those whose log "
        "took no appends",
        metrics.failed_produce_requests,
    )
    yield counter(
        "failed_fetch_requests",
        "partitions of fetch requests refused: offsets out of range, topics that are gone, a tier that does not answer",
        metrics.failed_fetch_requests,
    )
    yield counter(
        "sent_to_nearest",
        "partitions whose consumers were sent to a replica in their rack (client.rack), by their leader",
        metrics.sent_to_nearest,
    )
    yield counter(
        "followed_fetch_bytes",
        "record bytes sent to consumers of partitions that this broker follows; their leaders sent none of them",
        metrics.followed_fetch_bytes,
    )
    yield counter(
        "malformed_requests", "frames that could not be read; the sender is not a Kafka client",
        metrics.malformed,
    )  # fmt: skip
    audit, authorizer = context.clients.audit, context.clients.authorizer
    yield counters(
        "audit_events",
        "denials, logins, failed logins, and changes of ACLs, credentials, quotas and configs; audit lines in the log "
        "name the principal, the address and the reason",
        ["event"],
        {(event.value,): count for event, count in audit.counts.items()},
    )
    yield counter(
        "audit_lines_suppressed",
        "audit lines left out because one principal caused too many; audit_events counts their events too",
        audit.suppressed,
    )
    yield gauge(
        "acls", "ACLs that the authorizer applies; 0 without an authorizer", len(authorizer.acls) if authorizer else 0
    )
    yield gauge("fetch_sessions", "open fetch sessions (KIP-227), one for each consumer", len(sessions))
    yield gauge("fetch_session_partitions", "partitions in fetch sessions", sessions.partitions)
    yield counter("fetch_sessions_created", "fetch sessions begun", sessions.created_count)
    yield counter(
        "fetch_sessions_evicted",
        "fetch sessions closed to make room for others; if many, raise max.incremental.fetch.session.cache.slots",
        sessions.evicted_count,
    )
    yield counter(
        "incremental_fetches", "incremental fetches, which name only changed partitions", sessions.incremental_count
    )


def _room(sources: Sources) -> Iterator[Metric]:
    watch, throttle = sources.tiers.watch, sources.context.throttle
    yield gauge("disk_bytes", "size of the data directory's file system", watch.disk.total)
    yield gauge(
        "disk_free_bytes", "bytes that may still be written there; if 0, see the condition disk_full", watch.disk.free
    )
    yield gauge(
        "local_limit_bytes",
        "size of local logs above which copied segments are deleted before local.retention.ms ends",
        watch.disk.log_limit,
    )
    yield gauge(
        "local_excess_ratio",
        "share by which uncopied local logs are over their limit; produces wait from 0.02, are refused from 0.1",
        watch.local_excess_ratio,
    )
    yield counter("throttled_produces", "produces that waited for a flush, or for room", throttle.throttled_count)
    yield counters(
        "refused_produces",
        "partitions of produce requests refused because their log took no appends: disk_full, produces_refused, "
        "log_offline, reservation",
        ["reason"],
        {(reason.value,): throttle.refused[reason] for reason in AppendRefusal},
    )


def network_metrics(server: Server) -> Iterator[Metric]:
    counted = server.counters
    yield gauge("connections", "open connections", counted.connections_open)
    yield counter(
        "connections_accepted",
        "connections accepted; if it grows fast and few are open, a client makes a connection for each request",
        counted.connections_accepted,
    )
    yield counter("network_received_bytes", "bytes received from clients", counted.bytes_in)
    yield counter("network_sent_bytes", "bytes sent to clients", counted.bytes_out)
    yield counter(
        "frame_budget_waits",
        "times a connection was not read because frames in flight used up queued.max.request.bytes; if it grows "
        "often, raise that config",
        counted.budget_waits,
    )
    yield counters(
        "connection_closes",
        "closed connections; the log has the reason if this broker refused the connection",
        ["reason"],
        {(str(reason),): counted.closes[reason] for reason in CloseReason},
    )
    yield counter("tls_handshakes", "TLS handshakes that were completed", counted.tls_handshakes)
    yield counter("tls_resumed", "TLS handshakes resumed by a ticket, without a signature", counted.tls_resumed)
    turns = server.handshakes.turns
    yield gauge("tls_handshakes_under_way", "TLS handshakes that began and are not complete", turns.under_way)
    yield gauge("tls_handshakes_waiting", "connections that wait for a step of their handshake", turns.waiting)


def certificate_metrics(certificates: Certificates) -> Iterator[Metric]:
    yield gauges(
        "tls_certificate_expires_seconds",
        "when the certificate of a listener expires, in seconds since the epoch",
        ["listener"],
        {(listener,): expires_s for listener, expires_s in certificates.expire_s().items()},
    )


def group_metrics(survey: Survey) -> Iterator[Metric]:
    """Groups by state, and their lag by partition."""
    yield gauges(
        "groups",
        "consumer groups by state; Empty ones have no members now",
        ["state"],
        {(state.value,): survey.states[state] for state in GroupState},
    )
    yield gauges(
        "group_lag",
        "records between what a group committed and the end of the partition that consumers see; "
        f"if there are more than {SHOWN_MAX}, those that lag most (thermocline_group_positions counts all)",
        ["group", "topic", "partition"],
        {(group_id, topic, str(partition)): records for records, group_id, topic, partition in survey.shown},
    )
    yield gauge(
        "group_positions",
        "partitions with a committed position, of all groups; thermocline_group_lag may show only some",
        survey.positions,
    )
