"""Who is left out of a question while too much came: by the rule, whatever came in which order, and never for good."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from broker.replication.fetch_session_handler import Key, Limits, key_of
from broker.replication.follower import FetchPosition
from broker.replication.replication_quota import NO_LIMIT, ReplicationQuota, ThrottledReplicas

KEYS: list[Key] = [key_of(UUID(int=7), index) for index in range(4)]
LIMITS = Limits(500, 8 << 20, 1 << 20)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["throttle", "free", "epoch", "grows", "joins", "leaves"]), st.integers(0, 3)),
        st.tuples(st.just("answer"), st.integers(0, 3)),
        st.tuples(st.just("later"), st.integers(1, 30)),
        st.tuples(st.just("limit"), st.sampled_from([0, 500, 5_000, NO_LIMIT])),
    ),
    max_size=60,
)


@given(_STEPS)
def test_who_is_held_is_throttled_out_of_sync_and_behind(steps: list[tuple[str, int]]) -> None:
    """A fetcher that looks at whom it is told to look at asks for exactly those that the rule lets, as of the last
    time that something was new of each; and for all of them once the rate allows."""
    rate = ReplicationQuota(1_000)
    in_sync: set[Key] = set()
    throttled = ThrottledReplicas(rate, in_sync.__contains__)
    named: set[Key] = set()
    offsets, ends = dict.fromkeys(KEYS, 0), dict.fromkeys(KEYS, 3_000)
    known: dict[Key, int] = {}
    wanted: set[Key] = set()
    now_s = 0.0

    def look(*touched: Key) -> None:
        anew = {*touched, *throttled.look(now_s)}
        is_over = rate.is_limited and bool(named) and rate.free_s(now_s) > now_s
        for key in anew:
            is_held = throttled.holds(key, FetchPosition(offsets[key], -1, 3))
            lacks = key not in known or offsets[key] < known[key]
            assert is_held == (is_over and key in named and lacks and key not in in_sync)
            wanted.discard(key) if is_held else wanted.add(key)
        if not is_over:
            assert wanted == set(KEYS), "all come back when the rate allows"
            assert throttled.wait_s(now_s) is None
        elif wanted != set(KEYS):
            wait_s = throttled.wait_s(now_s)
            assert wait_s is not None and 0 < wait_s <= 11
            assert throttled.limits(LIMITS, now_s).wait_ms <= 1000 * wait_s + 1

    look(*KEYS)
    for step, number in steps:
        key = KEYS[number % 4]
        touched = [key]
        match step:
            case "throttle" | "free":
                throttled.set(key, is_throttled=step == "throttle")
                (named.add if step == "throttle" else named.discard)(key)
                if step == "free":
                    known.pop(key, None)
            case "epoch":
                throttled.began(key)
                known.pop(key, None)
            case "grows":
                ends[key] += 2_000
                touched = []
            case "joins" | "leaves":
                (in_sync.add if step == "joins" else in_sync.discard)(key)
            case "answer" if key in wanted:
                size = min(1_000, ends[key] - offsets[key])
                offsets[key] += size
                if key in throttled:
                    throttled.came(key, size, ends[key], now_s)
                    known[key] = ends[key]
            case "later":
                now_s += number / 2
                touched = []
            case "limit":
                rate.limit = number
                touched = []
        look(*touched)
    now_s += 12.0
    look()
    assert wanted == set(KEYS)


def test_a_question_brings_what_a_second_lets() -> None:
    """So that leaders that are asked at once do not bring eight seconds' worth each; without a limit it is as ever."""
    throttled = ThrottledReplicas(rate := ReplicationQuota(2_000_000), lambda _: False)
    assert throttled.limits(LIMITS, 0.0) is LIMITS, "nobody is throttled"
    throttled.set(KEYS[0], is_throttled=True)
    assert throttled.limits(LIMITS, 0.0).bytes_max == 2_000_000
    rate.limit = 1_000
    assert throttled.limits(LIMITS, 0.0).bytes_max == LIMITS.partition_bytes_max
    rate.limit = NO_LIMIT
    assert throttled.limits(LIMITS, 0.0) is LIMITS
