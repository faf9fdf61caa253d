"""What the request path counts, as plain attributes.

Owns counters that handlers bump; nothing is formatted until somebody asks (`observe/metrics/exposition.py`). Always
true: bumping one costs an attribute or list store, no lock, no label look-up. Must not know HTTP.
"""

from __future__ import annotations

from typing import Final

from broker.metrics.latencies import Latencies

_API_KEYS: Final = 128  # API keys are small numbers; unknown ones close the connection before they get here


class BrokerMetrics:
    """Totals since start. Names follow Kafka's BrokerTopicMetrics where it has one."""

    __slots__ = (
        "failed_fetch_requests",
        "failed_produce_requests",
        "followed_fetch_bytes",
        "latency",
        "malformed",
        "messages_in",
        "produce_bytes_in",
        "requests",
        "sent_to_nearest",
        "unexpected_errors",
    )

    def __init__(self) -> None:
        self.requests = [0] * _API_KEYS
        self.latency = Latencies(_API_KEYS)
        self.produce_bytes_in = 0
        self.messages_in = 0
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0
        self.sent_to_nearest = 0
        self.followed_fetch_bytes = 0
        self.malformed = 0
        self.unexpected_errors = 0
