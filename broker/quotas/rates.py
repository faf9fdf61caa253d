"""Rates over sampled windows, and token buckets, as Kafka's `Rate` and `TokenBucket` compute them.

A rate is the sum of its samples divided by the time since the first of them began. That time counts at least all
windows but one, so a short burst does not look like a high rate. A sample that ended within the span counts whole. One
more sample than `windows.count` is kept, because the oldest overlaps the span.

Source: Kafka's SampledStat, Rate, WindowedSum, TokenBucket and QuotaUtils. Times are milliseconds that never go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

THROTTLE_MS_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Windows:
    """The span of a rate: `quota.window.num` windows of `quota.window.size.seconds`."""

    count: int = 11
    size_ms: int = 1000


class _Sample:
    __slots__ = ("began_ms", "last_ms", "total")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.began_ms = self.last_ms = now_ms
        self.total = 0.0


class Rate:
    """What one client took, a second."""

    __slots__ = ("_current", "_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: list[_Sample] = []  # at most one more than there are windows
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Count `value`; a negative one takes back what was counted in the same window."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        sample = self._samples[self._current]
        if now_ms - sample.began_ms >= self._windows.size_ms:
            sample = self._advance(now_ms)
        sample.total += value
        sample.last_ms = now_ms

    def total(self, now_ms: int) -> float:
        """What was counted within the span."""
        self._purge(now_ms)
        return sum(sample.total for sample in self._samples)

    def per_s(self, now_ms: int) -> float:
        return self.total(now_ms) * 1000 / self.span_ms(now_ms)

    def span_ms(self, now_ms: int) -> int:
        """The time that the rate is measured over."""
        self._purge(now_ms)
        windows = self._windows
        elapsed_ms = now_ms - min((sample.began_ms for sample in self._samples), default=now_ms)
        lacking = windows.count - 1 - elapsed_ms // windows.size_ms
        return max(elapsed_ms + max(lacking, 0) * windows.size_ms, 1)

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long nothing may be counted until the rate is down to `bound`; 0 when it is not above it."""
        rate = self.per_s(now_ms)
        if rate <= bound:
            return 0
        return min(round((rate - bound) / bound * self.span_ms(now_ms)), THROTTLE_MS_MAX)

    def _advance(self, now_ms: int) -> _Sample:
        self._current = (self._current + 1) % (self._windows.count + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].reset(now_ms)
        return self._samples[self._current]

    def _purge(self, now_ms: int) -> None:
        oldest_ms = now_ms - self._windows.count * self._windows.size_ms
        for sample in self._samples:
            if sample.last_ms <= oldest_ms:
                sample.reset(now_ms)


class TokenBucket:
    """Tokens that one client has left; below 0 it has to wait. It begins full: with what the quota allows in all
    windows together."""

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
        """How long it takes until no token is owed; 0 when none is."""
        tokens = self.tokens(bound, now_ms)
        return 0 if tokens >= 0 else min(round(-tokens / bound * 1000), THROTTLE_MS_MAX)

    def _burst(self, bound: float) -> float:
        return self._windows.count * self._windows.size_ms / 1000 * bound
