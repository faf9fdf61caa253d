"""Prometheus' metric families, one call each.

`name` is without the prefix `thermocline_` and a counter's suffix `_total`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

PREFIX = "thermocline_"


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def gauges(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    """One sample for each tuple of label values."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def counters(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    """One sample for each tuple of label values."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def histogram(
    name: str,
    text: str,
    bounds_s: Sequence[float],
    found: Iterable[tuple[tuple[str, ...], Sequence[int], float]],
    labels: Sequence[str] = (),
) -> Metric:
    """A histogram family. `found`: label values, counts by bucket (one more than the bounds), sum of seconds. The
    exposed buckets are cumulative; the last is +Inf."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for of, buckets, seconds in found:
        family.add_metric(of, list(_cumulative(bounds_s, buckets)), seconds)
    return family


def _cumulative(bounds_s: Sequence[float], buckets: Sequence[int]) -> Iterator[tuple[str, float]]:
    total = 0
    for bound, count in zip((*map(str, bounds_s), "+Inf"), buckets, strict=True):
        total += count
        yield bound, float(total)
