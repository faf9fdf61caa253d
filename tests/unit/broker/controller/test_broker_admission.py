"""Who may serve a bucket: the whole table, what a watcher may conclude, and the gate (C19, C31)."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.controller.admission import Admission, BucketIdentity, DirectoryIdentity, LeaseSight, Verdict, admit
from broker.controller.gate import Gate
from broker.controller.lease_watch import Lease, LeaseWatch
from tests.support.fast_loop import run_fast

EMPTY = DirectoryIdentity(None, None, None, has_logs=False)
OURS = DirectoryIdentity("cluster", 1, "dir-a", has_logs=True)
BUCKET = BucketIdentity("cluster", {1: "dir-a"})
ALL_SIGHTS = tuple(LeaseSight)


def decide(directory: DirectoryIdentity, bucket: BucketIdentity | None, **how: object) -> Admission:
    lease = how.pop("lease", LeaseSight.WATCHING)
    return admit(directory, bucket, 1, lease, **how)  # type: ignore[arg-type]


# --- admission ------------------------------------------------------------------------------------------------------


def test_design_c31_both_new_are_formatted() -> None:
    """An empty data directory and an empty bucket: nothing to lose."""
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        assert decide(EMPTY, None, lease=lease, take_over=take_over).verdict is Verdict.FORMAT


def test_design_c31_our_own_directory_resumes_at_once() -> None:
    """Whatever the lease says: the lock on the directory already proves that its last process is gone."""
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        assert decide(OURS, BUCKET, lease=lease, take_over=take_over).verdict is Verdict.RESUME


@pytest.mark.parametrize("has_logs", [False, True])
def test_design_c31_a_replaced_directory_is_refused_for_ever(has_logs: bool) -> None:
    """The bucket serves from another directory id: no lease and no --take-over lets the old one back in."""
    old = DirectoryIdentity("cluster", 1, "dir-old", has_logs)
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        admission = decide(old, BUCKET, lease=lease, take_over=take_over)
        assert admission.verdict is Verdict.REFUSE
        assert "replaced" in admission.reason
        assert ("--take-over needs an empty" in admission.reason) is take_over


@pytest.mark.parametrize(
    ("lease", "verdict"),
    [
        (LeaseSight.WATCHING, Verdict.WAIT),
        (LeaseSight.STILL, Verdict.TAKE_OVER),
        (LeaseSight.RELEASED, Verdict.TAKE_OVER),
        (LeaseSight.MOVING, Verdict.REFUSE),
    ],
)
def test_design_c31_an_empty_directory_waits_for_the_lease(lease: LeaseSight, verdict: Verdict) -> None:
    """The replacement never starts beside a broker that may only hang; the operator's word skips the wait."""
    assert decide(EMPTY, BUCKET, lease=lease).verdict is verdict
    assert decide(EMPTY, BUCKET, lease=lease, take_over=True).verdict is Verdict.TAKE_OVER


@pytest.mark.parametrize(
    ("directory", "bucket", "word"),
    [
        (DirectoryIdentity("other", 1, "dir-a", has_logs=True), BUCKET, "belongs to cluster other"),
        (DirectoryIdentity("other", 1, "dir-a", has_logs=False), BUCKET, "belongs to cluster other"),
        (OURS, None, "has no cluster.json"),
        (DirectoryIdentity(None, None, None, has_logs=True), None, "has no cluster.json"),
        (DirectoryIdentity(None, None, None, has_logs=True), BUCKET, "no meta.properties"),
        (DirectoryIdentity("cluster", 2, "dir-a", has_logs=True), BUCKET, "--node-id 2"),
        (EMPTY, BucketIdentity("cluster", {7: "dir-g"}), "node 7"),
    ],
)
def test_design_c31_what_does_not_belong_together_is_refused(
    directory: DirectoryIdentity, bucket: BucketIdentity | None, word: str
) -> None:
    """Another cluster, logs without their bucket, another node: exit 3 with a reason, with --take-over too."""
    for lease, take_over in itertools.product(ALL_SIGHTS, (False, True)):
        admission = decide(directory, bucket, lease=lease, take_over=take_over)
        assert admission.verdict is Verdict.REFUSE
        assert word in admission.reason


IDENTITIES = st.builds(DirectoryIdentity, st.none(), st.none(), st.none(), st.booleans()) | st.builds(
    DirectoryIdentity,
    st.sampled_from(["cluster", "other"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["dir-a", "dir-b"]),
    st.booleans(),
)
BUCKETS = st.none() | st.builds(
    BucketIdentity,
    st.sampled_from(["cluster", "other"]),
    st.dictionaries(st.sampled_from([1, 2]), st.sampled_from(["dir-a", "dir-b"]), min_size=1),
)


@given(IDENTITIES, BUCKETS, st.sampled_from(LeaseSight), st.booleans())
def test_design_c31_logs_are_served_only_from_their_own_bucket(
    directory: DirectoryIdentity, bucket: BucketIdentity | None, lease: LeaseSight, take_over: bool
) -> None:
    """Over the whole table: a directory with logs either resumes where the bucket names it, or is refused."""
    admission = admit(directory, bucket, 1, lease, take_over=take_over)
    assert (admission.reason != "") or admission.verdict is not Verdict.REFUSE
    if directory.has_logs:
        assert admission.verdict in (Verdict.RESUME, Verdict.REFUSE)
    if admission.verdict is Verdict.RESUME:
        assert bucket is not None
        assert bucket.cluster_id == directory.cluster_id
        assert bucket.directories[1] == directory.directory_id
    if admission.verdict is Verdict.TAKE_OVER:
        assert not directory.has_logs
        assert take_over or lease in (LeaseSight.STILL, LeaseSight.RELEASED)


# --- what a watcher may conclude ------------------------------------------------------------------------------------


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


# --- the gate -------------------------------------------------------------------------------------------------------


class Boot:
    """A boot clock set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_gate_looked_at_often_stays_open() -> None:
    """Any number of looks at most a lease apart."""
    boot = Boot()
    gate = Gate(boot, 15.0)
    for _ in range(100):
        boot.now += 15.0
        assert gate.is_open()
    assert gate.paused_count == 0


def test_a_jump_closes_before_the_next_answer() -> None:
    """The look itself notices the jump: no tick has to come first."""
    boot = Boot()
    gate = Gate(boot, 15.0)
    boot.now += 15.1
    assert not gate.is_open()
    assert not gate.is_open()
    assert gate.paused_count == 1
    gate.reopen(gate.paused_count)
    assert gate.is_open()


def test_a_second_jump_before_the_look_after_a_reopening_closes_again() -> None:
    """The poll that reopened it says nothing of what came after."""
    boot = Boot()
    gate = Gate(boot, 15.0)
    boot.now += 20
    assert not gate.is_open()
    gate.reopen(gate.paused_count)
    boot.now += 20
    assert not gate.is_open()


def test_a_shut_gate_never_opens() -> None:
    """Superseded is for ever, and the first word about by whom stands."""
    gate = Gate(Boot(), 15.0)
    gate.shut("the broker of epoch 9")
    gate.reopen(gate.paused_count)
    gate.shut("another one")
    assert not gate.is_open()
    assert gate.superseded_by == "the broker of epoch 9"


def test_a_shut_gate_stays_shut_over_a_jump_and_a_late_poll() -> None:
    """A poll's answer from before comes in after the root of a partition said that we were superseded."""
    boot = Boot()
    gate = Gate(boot, 15.0)
    boot.now += 20
    assert not gate.is_open()
    gate.shut("somebody")
    gate.reopen(gate.paused_count)
    assert not gate.is_open()


def test_who_waits_goes_on_when_it_opens_and_never_when_it_was_shut() -> None:
    """`opened` is what answers under way hang on."""

    async def scenario() -> None:
        boot = Boot()
        gate = Gate(boot, 15.0)
        await asyncio.wait_for(gate.opened(), 1)
        boot.now += 20
        assert not gate.is_open()
        waiting = asyncio.ensure_future(gate.opened())
        await asyncio.sleep(100)
        assert not waiting.done()
        gate.reopen(gate.paused_count)
        await asyncio.wait_for(waiting, 1)
        gate.shut("somebody")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gate.opened(), 1000)

    run_fast(scenario())
