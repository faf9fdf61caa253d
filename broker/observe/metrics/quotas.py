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
        "responses that throttled their client, by the exceeded quota; `thermocline quota list` shows the quotas",
        ["kind"],
        {(kind.value,): count for kind, count in quotas.throttled.items()},
    )
    yield counters(
        "quota_throttle_seconds",
        "sum of the throttle times of all throttled responses; divided by quota_throttles, it is the mean throttle "
        "time",
        ["kind"],
        {(kind.value,): throttle_ms / 1000 for kind, throttle_ms in quotas.throttled_ms.items()},
    )
    yield counter(
        "quota_delayed_connections",
        "connections that waited because their address was above its connection_creation_rate",
        delayed,
    )
