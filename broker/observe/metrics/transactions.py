"""Metrics of the transactions that this broker coordinates."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from broker.observe.metrics.families import counter, gauge
from broker.transactions.coordinator import Metrics


def transaction_metrics(found: Metrics) -> Iterator[Metric]:
    yield gauge("transactional_ids", "transactional ids that this broker coordinates", found.ids)
    yield gauge("transactions_open", "ongoing transactions that this broker coordinates", found.ongoing)
    yield gauge(
        "transaction_oldest_seconds",
        "age of the oldest ongoing transaction that this broker coordinates; it is aborted at its own time-out",
        found.oldest_ms / 1000,
    )
    yield gauge("transactions_ending", "decided transactions that still lack a marker", found.ending)
    yield gauge("transaction_markers_waiting", "partitions that wait for a marker", found.markers_waiting)
    yield gauge(
        "transaction_oldest_ending_seconds",
        "time since the oldest transaction that still lacks a marker was decided; some seconds are normal while "
        "leaders change; if it is longer, see the condition transaction_overdue",
        found.oldest_ending_ms / 1000,
    )
    yield counter("transactions_completed", "transactions committed or aborted in every partition", found.completed)
    yield counter(
        "transaction_completion_seconds",
        "time from the request to end a transaction to its last marker, summed over transactions_completed",
        found.completion_s,
    )
    yield counter("transaction_marker_requests", "WriteTxnMarkers requests sent", found.marker_requests)
    yield counter(
        "transaction_marker_failures", "WriteTxnMarkers requests that were not answered", found.marker_failures
    )
