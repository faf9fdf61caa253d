"""Who is asked for with whom, and at which pace."""

from __future__ import annotations

from uuid import UUID

from broker.replication.fetch_lane import EASY_BYTES, FetchLane
from broker.replication.fetch_session_handler import Limits, key_of
from broker.replication.follower import FetchPosition

A, B = (key_of(UUID(int=1), index) for index in range(2))
LIMITS = Limits(wait_ms=500, bytes_max=8 << 20, partition_bytes_max=1 << 20)


def at(offset: int) -> FetchPosition:
    return FetchPosition(offset, 0, 1)


def test_who_lacks_what_is_committed_is_behind_unless_in_sync() -> None:
    lane = FetchLane({B}.__contains__, {}, is_behind=False)
    assert lane.keeps(A, at(10), 10) and not lane.keeps(A, at(9), 10)
    assert lane.keeps(B, at(9), 10), "acknowledgements wait for it"


def test_who_is_behind_stays_so_until_in_sync() -> None:
    """Not until it has all that is committed, which is a moment later more again: it might change lanes for ever."""
    in_sync = {B}
    lane = FetchLane(in_sync.__contains__, {}, is_behind=True)
    assert lane.keeps(A, at(10), 10) and not lane.keeps(B, at(9), 10)
    in_sync.add(A)
    assert not lane.keeps(A, at(10), 10)


def test_who_keeps_up_is_asked_for_without_pause_and_soon_where_others_may_join() -> None:
    lane = FetchLane(set[object]().__contains__, {}, is_behind=False)
    assert lane.limits(LIMITS, 0.0, is_only=True) == LIMITS
    assert lane.limits(LIMITS, 0.0, is_only=False) == LIMITS._replace(wait_ms=20)
    assert lane.pause_s(8 << 20, 0.0, 1.0) == 0.0


def test_who_is_behind_is_copied_easily_at_first_and_as_fast_as_it_goes_in_the_end() -> None:
    lane = FetchLane(set[object]().__contains__, {}, is_behind=True)
    seen = []
    for now_s in (8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0, 1000.0):
        lane.heard(999)
        limits = lane.limits(LIMITS, now_s, is_only=False)
        pause_s = lane.pause_s(EASY_BYTES, now_s - 0.002, now_s)
        seen.append((limits.bytes_max // EASY_BYTES, round(pause_s * 1e6)))
        assert limits.partition_bytes_max == min(limits.bytes_max, 1 << 20)
    easy = EASY_BYTES
    expected = [(1, 2000), (1, 2000), (2, 1000), (4, 500), (8, 250), (16, 125), (16, 125), (32, 0)]
    assert seen == expected
    lane.rest()
    assert lane.limits(LIMITS, 1001.0, is_only=False).bytes_max == easy, "the next one begins easily again"


def test_where_nobody_produces_who_is_behind_is_copied_as_fast_as_it_goes() -> None:
    """A gigabyte took 6.5 s on idle machines, 0.12 of copying 20."""
    lane = FetchLane(set[object]().__contains__, {}, is_behind=True)

    def look(now_s: float) -> tuple[int, bool]:
        limits = lane.limits(LIMITS, now_s, is_only=False)
        return limits.bytes_max, lane.pause_s(EASY_BYTES, now_s - 0.002, now_s) > 0.0

    easily, fast = (EASY_BYTES, True), (LIMITS.bytes_max, False)
    assert look(5.0) == easily, "nothing was heard yet"
    for quiet_ms, expected in ((-1, easily), (999, easily), (1_000, fast), (0, easily), (86_400_000, fast)):
        lane.heard(quiet_ms)
        assert look(5.1) == expected
    lane.rest()
    assert look(6.0) == easily, "what was heard was long ago"


def test_a_producer_at_any_leader_is_left_room() -> None:
    """Full pace from a leader without producers, beside one with: their p99 was 2.9 times of without, not 1.9."""
    quiet_ms = dict[FetchLane, int]()
    behind, other = (FetchLane(set[object]().__contains__, quiet_ms, is_behind=at) for at in (True, False))
    behind.limits(LIMITS, 0.0, is_only=True)
    behind.heard(5_000)
    assert behind.limits(LIMITS, 0.1, is_only=True).bytes_max == LIMITS.bytes_max
    other.limits(LIMITS, 0.2, is_only=True)
    assert behind.limits(LIMITS, 0.2, is_only=True).bytes_max == EASY_BYTES, "the other leader says nothing yet"
    for heard, expected in ((5_000, LIMITS.bytes_max), (3, EASY_BYTES)):
        other.heard(heard)
        assert behind.limits(LIMITS, 0.3, is_only=True).bytes_max == expected
    other.rest()
    assert behind.limits(LIMITS, 0.4, is_only=True).bytes_max == LIMITS.bytes_max, "nothing is copied from there"


def test_a_pause_is_short_also_where_the_way_is_long_and_none_follows_a_short_answer() -> None:
    lane = FetchLane(set[object]().__contains__, {}, is_behind=True)
    lane.limits(LIMITS, 0.0, is_only=False)
    assert lane.pause_s(EASY_BYTES, 0.0, 0.2) == 0.005
    assert lane.pause_s(EASY_BYTES // 4, 0.0, 0.2) == 0.0
