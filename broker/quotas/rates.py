"""Rates over sampled windows, and token buckets, as Kafka's `Rate` and `TokenBucket` compute them.

A rate is the sum of its samples divided by the time since the first sample began. That time is at least the length of
all windows but one, so a short burst does not look like a high rate. A sample that ended within the span counts in
full. One sample more than there are windows is kept, because the oldest sample overlaps the span.

Source: Kafka's SampledStat, Rate, WindowedSum, TokenBucket and QuotaUtils. Times are milliseconds that never go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

THROTTLE_MS_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Windows:
    """The span of a rate: `quota.window.num` windows of `quota.window.size.seconds`."""

    count: int = 11
    size_ms: int = 1000
    span_ms: int = field(init=False)
    least_span_ms: int = field(init=False)
    """Shortest time over which a rate is measured."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "span_ms", self.count * self.size_ms)
        object.__setattr__(self, "least_span_ms", max(self.span_ms - self.size_ms, 1))


class _Sample:
    __slots__ = ("began_ms", "last_ms", "total")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.began_ms = self.last_ms = now_ms
        self.total = 0.0


class Rate:
    """One client's use per second.

    Hot path while a quota is set. Below the quota, `record` and `throttle_ms` read only the current sample.
    """

    __slots__ = ("_current", "_purge_ms", "_samples", "_total", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []  # at most `windows.count + 1`
        self._current = 0
        self._total = 0.0  # sum of all samples
        self._purge_ms = 0  # no sample is obsolete before this time

    def record(self, value: float, now_ms: int) -> None:
        """Count `value`. A negative value reverses a count in the same window."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
            self._purge_ms = now_ms + self._windows.span_ms
        sample = self._samples[self._current]
        if now_ms - sample.began_ms >= self._windows.size_ms:
            sample = self._advance(now_ms)
        sample.total += value
        sample.last_ms = now_ms
        self._total += value

    def total(self, now_ms: int) -> float:
        """The sum within the span."""
        if now_ms >= self._purge_ms:
            self._purge(now_ms)
        return self._total

    def per_s(self, now_ms: int) -> float:
        return self.total(now_ms) * 1000 / self.span_ms(now_ms)

    def span_ms(self, now_ms: int) -> int:
        """The time by which the sum is divided."""
        self.total(now_ms)
        windows = self._windows
        elapsed_ms = now_ms - min((sample.began_ms for sample in self._samples), default=now_ms)
        lacking = windows.count - 1 - elapsed_ms // windows.size_ms
        return max(elapsed_ms + max(lacking, 0) * windows.size_ms, 1)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Time without use until the rate falls to `bound`; 0 when it is not above `bound`."""
        if self.total(now_ms) * 1000 <= bound * self._windows.least_span_ms:
            return 0
        rate = self.per_s(now_ms)
        if rate <= bound:
            return 0
        return _whole_ms((rate - bound) / bound * self.span_ms(now_ms))

    def _advance(self, now_ms: int) -> _Sample:
        self._current = (self._current + 1) % (self._windows.count + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._total -= self._samples[self._current].total
            self._samples[self._current].reset(now_ms)
        return self._samples[self._current]

    def _purge(self, now_ms: int) -> None:
        """Clear the samples that are older than the span. They start again now."""
        span_ms, samples = self._windows.span_ms, self._samples
        for sample in samples:
            if now_ms - sample.last_ms >= span_ms:
                sample.reset(now_ms)
        self._total = sum(sample.total for sample in samples)
        self._purge_ms = min((sample.last_ms for sample in samples), default=now_ms) + span_ms


class TokenBucket:
    """The tokens that one client has left. Below 0 the client has to wait. The bucket starts with as many tokens as the
    quota allows in all windows together."""

    __slots__ = ("_filled_ms", "_tokens", "_windows")

    def __init__(self, windows: Windows, bound: float, now_ms: int) -> None:
        self._windows = windows
        self._filled_ms = now_ms
        self._tokens = self._burst(bound)

    def tokens(self, bound: float, now_ms: int) -> float:
        earned = bound * (now_ms - self._filled_ms) / 1000
        self._tokens = min(self._burst(bound), self._tokens + earned)
        self._filled_ms = now_ms
        return self._tokens

    def take(self, count: float, bound: float, now_ms: int) -> None:
        self._tokens = min(self._burst(bound), self.tokens(bound, now_ms) - count)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """Time until the count of tokens is 0 again; 0 if it is not below 0."""
        tokens = self.tokens(bound, now_ms)
        return 0 if tokens >= 0 else _whole_ms(-tokens / bound * 1000)

    def _burst(self, bound: float) -> float:
        return self._windows.span_ms / 1000 * bound


def _whole_ms(time_ms: float) -> int:
    """The throttle time. It is infinite for a bound near the smallest double."""
    return THROTTLE_MS_MAX if time_ms >= THROTTLE_MS_MAX else round(time_ms)
