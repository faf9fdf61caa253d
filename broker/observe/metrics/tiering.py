"""Metrics of the bucket: store calls, copying, expiry, cold reads. The names are the same as in `tiering`. Figures that
can fall are gauges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import Metric

from broker.observe.metrics.cost import estimated_dollars_per_day
from broker.observe.metrics.families import counter, counters, gauge, histogram
from broker.observe.sources import Sources
from coldstore.stores.metered import LATENCY_BOUNDS_MS, CallOutcome, MeteredStore

BOUNDS_S = tuple(bound / 1000 for bound in LATENCY_BOUNDS_MS)
_GAUGES: Final = frozenset({"cold_reads_waiting", "cold_cache_bytes", "cold_cache_limit_bytes"})
TEXTS: Final = {
    "copied_bytes": "log bytes copied to the bucket and committed; if slower than produce_bytes, copies do not keep up",
    "copied_segments": "segments copied and committed",
    "copy_errors": "attempts to copy that failed; each is repeated, and blocked_partitions counts the partitions that "
    "cannot be copied",
    "verified_segments": "objects verified in the bucket after their commit; local bytes are deleted only for these",
    "garbage_objects": "objects of failed attempts that are to be deleted",
    "deleted_objects": "objects of expired segments that were deleted",
    "deleted_cold_bytes": "bytes that retention took out of the bucket",
    "deleted_local_bytes": "log bytes deleted from the local disk, because they expired or are in the bucket",
    "gc_objects": "deleted objects of earlier epochs that no root names",
    "gc_bytes": "bytes of deleted objects of earlier epochs that no root names",
    "commit_failures": "claims, reservations and commits of manifests that failed and are tried again",
    "cold_cache_hits": "chunks that cold reads found in the cache",
    "cold_cache_misses": "chunks that cold reads had to get from the bucket",
    "cold_read_bytes": "bytes of history sent to consumers",
    "cold_fetched_bytes": "bytes got from the bucket for cold reads; if far more than cold_read_bytes, the cache is "
    "too small",
    "cold_fetch_requests": "requests to the bucket for chunks",
    "cold_loads": "reads of history that had to wait for the bucket",
    "cold_read_errors": "cold reads that failed; consumers fetch again; see cold_reads in operations.md",
    "cold_read_retries": "cold reads that failed and were tried again at once",
    "cold_queue_full": "reads of history refused because too many waited: raise remote.log.reader.threads",
    "cold_reads_waiting": "reads of history that wait now until another read ends",
    "cold_read_seconds": "sum of the seconds that cold reads waited for the bucket; cold_read_latency_seconds has "
    "them by duration",
    "prefetched_chunks": "chunks fetched before a reader asked for them",
    "cold_cache_bytes": "bytes of cached chunks on disk now; a directory bucket needs none",
    "cold_cache_limit_bytes": "the current limit of cold_cache_bytes; if it is below thermocline.cache.bytes, see the "
    "condition cache_reduced",
    "cold_cache_evictions": "chunks evicted to make room for others; normal while history is replayed",
    "cold_cache_refused_chunks": "chunks that the cache had no room for, so they were used only once",
}


def figures_metrics(totals: Mapping[str, float], latency_buckets: Sequence[int]) -> Iterator[Metric]:
    """Figures by name, including the figures of cold reads."""
    for name, value in totals.items():
        make = gauge if name in _GAUGES else counter
        yield make(name, TEXTS.get(name, name.replace("_", " ")), value)
    yield histogram(
        "cold_read_latency_seconds",
        "time until cold bytes are loaded; a fetch waits for it up to remote.fetch.max.wait.ms",
        BOUNDS_S,
        [((), latency_buckets, totals["cold_read_seconds"])],
    )


def tiering_metrics(sources: Sources, cold_bytes: int) -> Iterator[Metric]:
    """Metrics of tiering. `cold_bytes`: bytes of all partitions in the bucket."""
    tiers = sources.tiers
    yield from figures_metrics(tiers.figures(), tiers.cold.latency_buckets)
    yield gauge(
        "estimated_dollars_per_day",
        "cost a day at list prices of S3 Standard, from requests since start and bytes held",
        estimated_dollars_per_day(sources.store.meters, cold_bytes, tiers.uptime_s()),
    )


def store_metrics(store: MeteredStore) -> Iterator[Metric]:
    """Store calls by operation; every operation and outcome has its series from the start."""
    meters = {(operation.value,): meter for operation, meter in store.meters.items()}
    of = ["operation"]
    yield counters(
        "store_requests",
        "requests as a store bills them: one for each page of a listing, part of an upload, and 1 000 deletions",
        of, {name: meter.requests for name, meter in meters.items()},
    )  # fmt: skip
    yield counters("store_bytes", "body bytes", of, {name: meter.bytes for name, meter in meters.items()})
    yield counters(
        "store_errors",
        "calls that got no answer or were refused; store_calls has the outcomes; see also the condition store_refuses",
        of, {name: meter.errors for name, meter in meters.items()},
    )  # fmt: skip
    yield counters(
        "store_calls",
        "calls by outcome. unchanged, missing and lost_race are answers; refused comes from a policy or a key, "
        "unavailable and abandoned from the network or the service",
        ["operation", "outcome"],
        {(*name, outcome.value): meter.outcomes[outcome] for name, meter in meters.items() for outcome in CallOutcome},
    )
    yield histogram(
        "store_seconds",
        "duration of calls; put_root bounds how fast segments are committed, get how fast history is read",
        BOUNDS_S,
        [(name, meter.buckets, meter.seconds) for name, meter in meters.items()],
        of,
    )
