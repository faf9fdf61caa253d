"""Counters of the request path, as plain attributes; `observe/metrics/exposition.py` formats them.

An increment is one attribute or list store: no lock, no label look-up.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds of the buckets; one more bucket holds longer times."""

_API_KEYS: Final = 128  # API keys are small numbers; a request with an unknown key closes its connection earlier


class Latencies:
    """Histograms by API key: from the dispatch of a request until its response may leave. A `note` costs 0.3 µs with
    its two clock readings."""

    __slots__ = ("buckets", "seconds")

    def __init__(self, api_keys: int) -> None:
        self.buckets = [[0] * (len(BOUNDS_S) + 1) for _ in range(api_keys)]
        self.seconds = [0.0] * api_keys

    def note(self, api_key: int, seconds: float, count: int = 1) -> None:
        """`count` requests of one API were answered after `seconds`."""
        self.buckets[api_key][bisect_left(BOUNDS_S, seconds)] += count
        self.seconds[api_key] += seconds * count


class BrokerMetrics:
    """Totals since start, named as in Kafka's BrokerTopicMetrics if Kafka has the figure."""

    __slots__ = (
        "failed_fetch_requests",
        "failed_produce_requests",
        "followed_fetch_bytes",
        "latency",
        "malformed",
        "produce_bytes_in",
        "records_in",
        "requests",
        "sent_to_nearest",
        "unexpected_errors",
    )

    def __init__(self) -> None:
        self.requests = [0] * _API_KEYS
        self.latency = Latencies(_API_KEYS)
        self.produce_bytes_in = 0
        self.records_in = 0
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0
        self.sent_to_nearest = 0
        self.followed_fetch_bytes = 0
        self.malformed = 0
        self.unexpected_errors = 0


class ProduceIdle:
    """Time since the last produce request. The time is measured at calls of `ms`, so it is too short by at most the
    time between two calls.
    """

    __slots__ = ("_produce_requests", "_since_s")

    def __init__(self) -> None:
        self._produce_requests = -1
        self._since_s = 0.0

    def ms(self, produce_requests: int, now_s: float) -> int:
        """Milliseconds since the total `produce_requests` last grew. `now_s` never decreases."""
        if produce_requests != self._produce_requests:
            self._produce_requests, self._since_s = produce_requests, now_s
        return int((now_s - self._since_s) * 1000)
