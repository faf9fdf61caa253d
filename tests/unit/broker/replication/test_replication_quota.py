"""The rate of throttled replicas: as Kafka measures it, never for ever exceeded, and which replicas are named."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.replication.replication_quota import NO_LIMIT, ReplicationQuota, is_throttled


def test_what_came_is_allowed_again_when_its_time_is_over() -> None:
    """One window at least; then by the time since the first one began."""
    rate = ReplicationQuota(1000)
    assert rate.free_s(5.0) == 5.0
    rate.record(1000, 5.0)
    assert rate.free_s(5.0) == 5.0, "a window's worth"
    rate.record(2000, 5.1)
    assert rate.free_s(5.1) == 8.0
    assert rate.free_s(8.0) == 8.0
    rate.record(2500, 8.0)
    assert rate.free_s(8.5) == 10.5


def test_windows_that_are_over_count_no_more() -> None:
    """11 s by default; of a rate of 0 nothing else ever ends it, as in Kafka."""
    rate = ReplicationQuota(0)
    assert rate.free_s(1.0) == 1.0
    rate.record(1, 1.0)
    assert rate.free_s(2.0) == 12.0 == rate.free_s(12.0)
    big = ReplicationQuota(10)
    big.record(1_000_000, 0.0)
    big.record(50, 4.0)
    assert big.free_s(5.0) == 11.0, "then 50 bytes in 7 s are left"


def test_without_a_limit_nothing_is_waited_for() -> None:
    rate = ReplicationQuota()
    rate.record(1 << 40, 0.0)
    assert rate.free_s(0.0) == 0.0 and not rate.is_limited and rate.limit == NO_LIMIT


_CAME = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5_000_000)), max_size=40)


def by_definition(came: list[tuple[float, int]], now_s: float, window_s: float, windows: int) -> float:
    """Kafka's SimpleRate over its samples, by going through all that came: bytes a second at `now_s`."""
    samples: list[list[float]] = []
    for at_s, size in came:
        if not samples or at_s - samples[-1][0] >= window_s:
            samples.append([at_s, 0])
        samples[-1][1] += size
    live = [sample for sample in samples if now_s - sample[0] < window_s * windows]
    return sum(size for _, size in live) / max(now_s - live[0][0], window_s) if live else 0.0


@given(_CAME, st.integers(0, 2_000_000), st.sampled_from([(1.0, 11), (1.0, 1), (2.0, 3)]), st.floats(0, 20))
def test_it_is_exceeded_exactly_as_long_as_kafkas_is(
    steps: list[tuple[float, int]], limit: int, quota: tuple[float, int], later_s: float
) -> None:
    """Whatever came when; and no later than all windows."""
    window_s, windows = quota
    rate, now_s, came = ReplicationQuota(limit, window_s, windows), 0.0, list[tuple[float, int]]()
    for after_s, size in steps:
        now_s += after_s
        rate.record(size, now_s)
        came.append((now_s, size))
    free_s = rate.free_s(now_s)
    assert now_s <= free_s <= now_s + window_s * windows
    assert rate.free_s(free_s) <= free_s + 1e-6, "then it is free"
    at_s = now_s + later_s
    if abs(at_s - free_s) > 1e-3 and at_s < free_s:
        assert by_definition(came, at_s, window_s, windows) > limit


def test_a_list_names_replicas_and_a_star_all_of_them() -> None:
    name = "follower.replication.throttled.replicas"
    assert not is_throttled({}, 0, 1) and not is_throttled({name: ""}, 0, 1)
    assert is_throttled({name: "*"}, 7, 3)
    configs = {name: "0:1,2:3, 1:1"}
    named = [(index, node) for index in range(3) for node in range(4) if is_throttled(configs, index, node)]
    assert named == [(0, 1), (1, 1), (2, 3)]
    assert not is_throttled({"leader.replication.throttled.replicas": "*"}, 0, 1)
