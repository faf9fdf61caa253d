"""What a watcher may conclude from polling the lease (C19)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.membership.lease_watch import Lease, LeaseSight, LeaseWatch


def lease(counter: int, **more: object) -> Lease:
    return Lease(3, "them", counter, **more)  # type: ignore[arg-type]


def test_a_counter_that_stands_still_over_a_lease_is_still() -> None:
    """15 s of successful polls, not one second less."""
    watch = LeaseWatch(15.0)
    for now in range(0, 15, 3):
        assert watch.polled(lease(7), 100.0 + now) is LeaseSight.WATCHING
    assert watch.polled(lease(7), 114.9) is LeaseSight.WATCHING
    assert watch.polled(lease(7), 115.0) is LeaseSight.STILL


def test_a_moving_counter_is_refused_after_two_leases() -> None:
    """It moves: WATCHING for two leases, then MOVING; a start beside a live broker ends with a reason."""
    watch = LeaseWatch(15.0)
    sights = [watch.polled(lease(now), float(now)) for now in range(0, 31, 5)]
    assert sights == [LeaseSight.WATCHING] * 6 + [LeaseSight.MOVING]


def test_a_holder_that_dies_while_watched_is_still_one_lease_later() -> None:
    """What counts is the last time it moved."""
    watch = LeaseWatch(15.0)
    for now in range(0, 12, 3):
        watch.polled(lease(now), float(now))
    assert watch.polled(lease(9), 23.9) is LeaseSight.WATCHING
    assert watch.polled(lease(9), 24.0) is LeaseSight.STILL


def test_design_c19_an_outage_proves_nothing() -> None:
    """No poll succeeded for an hour: nobody saw the counter stand still, so nobody may take over right after it."""
    watch = LeaseWatch(15.0)
    assert watch.polled(lease(7), 0.0) is LeaseSight.WATCHING
    sights = [watch.polled(lease(7), 3600.0 + after) for after in (0, 5, 10, 14)]
    assert LeaseSight.STILL not in sights
    assert watch.polled(lease(7), 3615.0) is LeaseSight.STILL


def test_design_c19_a_watcher_that_slept_starts_again() -> None:
    """The same holds for a machine that slept between two polls just over a lease apart."""
    watch = LeaseWatch(15.0)
    watch.polled(lease(7), 0.0)
    watch.polled(lease(7), 10.0)
    assert watch.polled(lease(7), 25.1) is not LeaseSight.STILL


def test_design_c19_a_watcher_waits_for_the_holders_longer_lease() -> None:
    """The length belongs to the bucket: a watcher configured with 1 s must not oust a holder that beats every 20 s."""
    watch = LeaseWatch(1.0)
    for now in range(60):
        assert watch.polled(lease(7, lease_ms=60_000), float(now)) is LeaseSight.WATCHING
    assert watch.polled(lease(7, lease_ms=60_000), 60.0) is LeaseSight.STILL


def test_a_released_lease_is_free_at_once() -> None:
    """A clean stop costs the next broker no wait; a beat after it takes the freedom back."""
    watch = LeaseWatch(15.0)
    assert watch.polled(lease(7, released=True), 0.0) is LeaseSight.RELEASED
    assert watch.polled(lease(8), 1.0) is LeaseSight.WATCHING


def test_no_lease_at_all_is_waited_for_too() -> None:
    """A controller that was just elected has not written its lease yet."""
    watch = LeaseWatch(15.0)
    assert watch.polled(None, 0.0) is LeaseSight.WATCHING
    assert watch.polled(None, 10.0) is LeaseSight.WATCHING
    assert watch.polled(None, 15.0) is LeaseSight.STILL


@given(st.lists(st.tuples(st.floats(0.01, 40.0), st.booleans()), min_size=1, max_size=40))
def test_design_c19_still_means_a_whole_lease_of_close_polls_without_a_beat(steps: list[tuple[float, bool]]) -> None:
    """Over any history: STILL only if the last lease of time saw no beat and no gap of a lease between polls."""
    watch = LeaseWatch(15.0)
    now, counter = 0.0, 0
    polls = [(0.0, 0)]
    watch.polled(lease(0), 0.0)
    for pause, beat in steps:
        now += pause
        counter += beat
        polls.append((now, counter))
        if watch.polled(lease(counter), now) is LeaseSight.STILL:
            trusted = [polls[-1]]
            for earlier in reversed(polls[:-1]):
                if earlier[1] != counter or trusted[-1][0] - earlier[0] > 15.0:
                    break
                trusted.append(earlier)
            assert trusted[0][0] - trusted[-1][0] >= 15.0 - 1e-6


def test_a_claim_gives_its_author_a_whole_lease() -> None:
    """Simulated seed 2289: of two candidates each counted the silence of the one before last, claimed half a second
    after the other did, before he had bumped anything, and so on for ever: nobody led for longer than that."""
    watch = LeaseWatch(5.0)
    sights = [watch.polled(None, float(now), 7) for now in range(6)]
    assert sights[-1] is LeaseSight.STILL
    assert watch.polled(None, 6.0, 8) is not LeaseSight.STILL and watch.stood_s == 0
    sights = [watch.polled(None, 6.0 + after, 8) for after in range(1, 6)]
    assert LeaseSight.STILL not in sights[:-1] and sights[-1] is LeaseSight.STILL


def test_a_lease_moved_where_the_controller_that_was_polled_bumped_it() -> None:
    """Nobody bumps the lease of a copy; nor does one of another controller say anything of the one to be asked."""
    watch = LeaseWatch(15.0)

    def moved(read: Lease | None, epoch: int = 3) -> bool:
        watch.polled(read, 0.0, epoch)
        return watch.has_moved

    assert not moved(lease(7)) and not moved(lease(7)) and moved(lease(8)) and moved(lease(8))
    assert not moved(None, 4), "a claim"
    assert moved(Lease(4, "others", 9), 4), "its first bump"
    assert not moved(Lease(5, "third", 9), 5) and not moved(Lease(6, "fourth", 10), 5), "of one that claimed since"
