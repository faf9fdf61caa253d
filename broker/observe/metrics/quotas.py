"""Client quotas: how often clients were throttled, and how long. Labels are kinds of quotas, because the number of
client names is not bounded."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from broker.observe.metrics.families import counter, counters
from broker.quotas.client_quotas import QuotaManagers


def quota_metrics(quotas: QuotaManagers, delayed: int) -> Iterator[Metric]:
    """Metrics of quotas. `delayed`: connections whose address opened them too fast."""
    yield counters(
        "quota_throttles",
        "responses that throttled their client, by the quota that it is over; `thermocline quota list` shows them",
        ["kind"],
        {(kind.value,): count for kind, count in quotas.throttled.items()},
    )
    yield counters(
        "quota_throttle_seconds",
        "throttle times of all throttled responses, added up; divided by quota_throttles: how far clients are "
        "above their quotas",
        ["kind"],
        {(kind.value,): throttle_ms / 1000 for kind, throttle_ms in quotas.throttled_ms.items()},
    )
    yield counter(
        "quota_delayed_connections", "connections above the connection_creation_rate of their address", delayed
    )
