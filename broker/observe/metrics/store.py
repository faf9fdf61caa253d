"""The bucket in `/metrics`: calls, bytes, how they ended, how long they took.

Owns these names. Always true: every operation and every outcome has its series from the start. Must not know prices.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from broker.observe.metrics.families import counters, histogram
from coldstore.stores.metered import LATENCY_BOUNDS_MS, CallOutcome, MeteredStore

BOUNDS_S = tuple(bound / 1000 for bound in LATENCY_BOUNDS_MS)


def store_metrics(store: MeteredStore) -> Iterator[Metric]:
    """By operation."""
    meters = {(operation.value,): meter for operation, meter in store.meters.items()}
    of = ["operation"]
    yield counters(
        "store_requests", "requests as a store bills them: pages of a listing, parts of an upload, 1 000 deletions",
        of, {name: meter.requests for name, meter in meters.items()},
    )  # fmt: skip
    yield counters("store_bytes", "body bytes", of, {name: meter.bytes for name, meter in meters.items()})
    yield counters(
        "store_errors", "calls that got no answer or were refused; store_calls says how, store_refuses what to do",
        of, {name: meter.errors for name, meter in meters.items()},
    )  # fmt: skip
    yield counters(
        "store_calls",
        "calls by how they ended. unchanged, missing and lost_race are answers; refused is a policy or a key; "
        "unavailable and abandoned are the network or the service",
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
