"""Rates and token buckets, beside a word-for-word copy of Kafka 4.3.1's Java (SampledStat, Rate, WindowedSum,
QuotaUtils)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.quotas.rates import THROTTLE_MS_MAX, Rate, TokenBucket, Windows


@dataclass
class JavaSample:
    startTimeMs: int
    lastEventMs: int
    value: float = 0.0

    def reset(self, now: int) -> None:
        self.startTimeMs = self.lastEventMs = now
        self.value = 0.0


@dataclass
class JavaRate:
    """`config.samples()`, `config.timeWindowMs()`."""

    num_samples: int
    time_window_ms: int
    samples: list[JavaSample] = field(default_factory=list)
    current: int = 0

    def record(self, value: float, time_ms: int) -> None:
        if not self.samples:
            self.samples.append(JavaSample(time_ms, time_ms))
        sample = self.samples[self.current]
        if time_ms - sample.startTimeMs >= self.time_window_ms:
            max_samples = self.num_samples + 1
            self.current = (self.current + 1) % max_samples
            if self.current >= len(self.samples):
                sample = JavaSample(time_ms, time_ms)
                self.samples.append(sample)
            else:
                sample = self.samples[self.current]
                sample.reset(time_ms)
        sample.value += value
        sample.lastEventMs = time_ms

    def purge_obsolete_samples(self, now: int) -> None:
        expire_age = self.num_samples * self.time_window_ms
        for sample in self.samples:
            if now - sample.lastEventMs >= expire_age:
                sample.reset(now)

    def window_size(self, now: int) -> int:
        self.purge_obsolete_samples(now)
        if not self.samples:
            self.samples.append(JavaSample(now, now))
        oldest = self.samples[0]
        for current in self.samples[1:]:
            if current.startTimeMs < oldest.startTimeMs:
                oldest = current
        total_elapsed = now - oldest.startTimeMs
        num_full_windows = total_elapsed // self.time_window_ms
        min_full_windows = self.num_samples - 1
        if num_full_windows < min_full_windows:
            total_elapsed += (min_full_windows - num_full_windows) * self.time_window_ms
        return max(total_elapsed, 1)

    def measure(self, now: int) -> float:
        self.purge_obsolete_samples(now)
        value = sum(sample.value for sample in self.samples)
        return value / (self.window_size(now) / 1000.0)

    def throttle_time(self, bound: float, now: int) -> int:
        value = self.measure(now)
        if value <= bound:
            return 0
        return round((value - bound) / bound * self.window_size(now))


STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 3, 99, 100, 101, 250, 500, 999, 1000, 1001, 5000, 11_000, 12_000, 60_000]),
        st.sampled_from([0, 1, 7, 1000, 1_000_000]),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS, st.sampled_from([(11, 1000), (1, 1000), (2, 100), (3, 250)]), st.sampled_from([0.5, 1000.0, 1e9]))
def test_a_rate_is_kafkas(steps: list[tuple[int, int, bool]], windows: tuple[int, int], bound: float) -> None:
    """Also when it is looked at between records, which moves Kafka's samples."""
    ours, javas, now_ms = Rate(Windows(*windows)), JavaRate(*windows), 1_000_000
    for wait_ms, value, is_looked_at in steps:
        now_ms += wait_ms
        ours.record(value, now_ms)
        javas.record(value, now_ms)
        if is_looked_at:
            assert ours.per_s(now_ms) == pytest.approx(javas.measure(now_ms))
            assert ours.span_ms(now_ms) == javas.window_size(now_ms)
            throttle_ms = ours.throttle_ms(bound, now_ms)
            assert abs(throttle_ms - min(javas.throttle_time(bound, now_ms), THROTTLE_MS_MAX)) <= 1
        assert len(ours._samples) <= windows[0] + 1
    assert ours.per_s(now_ms) == pytest.approx(javas.measure(now_ms))


@given(STEPS)
def test_what_is_taken_back_at_once_never_counted(steps: list[tuple[int, int, bool]]) -> None:
    rate, plain, now_ms = Rate(Windows()), Rate(Windows()), 0
    for wait_ms, value, is_wanted in steps:
        now_ms += wait_ms
        rate.record(value, now_ms)
        plain.record(value if is_wanted else 0, now_ms)
        if not is_wanted:
            rate.record(-value, now_ms)
        assert rate.total(now_ms) == plain.total(now_ms)


def test_a_burst_may_take_ten_windows_worth_and_is_forgotten_after_eleven() -> None:
    """Until then its span grows within each window only, as Kafka's does: the client is throttled again, for less."""
    rate = Rate(Windows())
    rate.record(10_000, 5000)
    assert rate.throttle_ms(1000.0, 5000) == 0
    rate.record(1000, 5000)
    assert rate.throttle_ms(1000.0, 5000) == 1000
    assert rate.throttle_ms(1000.0, 6001) == 999
    assert (rate.throttle_ms(1000.0, 15_999), rate.throttle_ms(1000.0, 16_000)) == (1, 0)
    assert rate.total(16_000) == 0


@given(st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from([0, 1, 5, 50, 5000])), max_size=40))
def test_a_token_bucket_never_holds_more_than_its_burst(steps: list[tuple[int, int]]) -> None:
    """And it owes exactly what was taken beyond what it earned: nothing is lost at the times it is looked at."""
    bucket, now_ms, bound = TokenBucket(Windows(11, 1000), 5.0, 0), 0, 5.0
    tokens, filled_ms = 55.0, 0
    for wait_ms, count in steps:
        now_ms += wait_ms
        tokens = min(55.0, tokens + (now_ms - filled_ms) * bound / 1000) - count
        filled_ms = now_ms
        bucket.take(count, bound, now_ms)
        assert bucket.tokens(bound, now_ms) == pytest.approx(tokens)
        assert bucket.throttle_ms(bound, now_ms) == (round(-tokens / bound * 1000) if tokens < 0 else 0)


def test_kafkas_example_of_a_token_bucket() -> None:
    """Quota 5, 100 windows of a second, a burst of 560: 60 tokens are owed, 12 s long."""
    bucket = TokenBucket(Windows(100, 1000), 5.0, 0)
    bucket.take(560, 5.0, 0)
    assert bucket.throttle_ms(5.0, 0) == 12_000
    assert (bucket.throttle_ms(5.0, 11_990), bucket.throttle_ms(5.0, 12_000)) == (10, 0)


@pytest.mark.parametrize("bound", [1e-300, 5e-324])
def test_the_smallest_quotas_throttle_for_the_longest_time(bound: float) -> None:
    """Kafka accepts every request_percentage above 0. Found by a penetration test: the time was infinite, and every
    request of such a client ended in an OverflowError."""
    rate, bucket = Rate(Windows()), TokenBucket(Windows(), bound, 0)
    rate.record(1e6, 0)
    bucket.take(10, bound, 0)
    assert rate.throttle_ms(bound, 10) == bucket.throttle_ms(bound, 10) == THROTTLE_MS_MAX
