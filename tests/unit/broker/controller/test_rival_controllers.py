"""Whether another broker may have claimed, beside watches on the lease that may (R25)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.config.times import ClusterTimes
from broker.controller.sessions import RivalControllers
from broker.membership.lease_watch import Lease, LeaseSight, LeaseWatch

DIRECTORY = ClusterTimes(interval_s=1.0, lease_s=5.0)
STEP_S = 0.5


@dataclass
class Watcher:
    """Another broker. A look at the lease takes up to an interval, and counts from when it began."""

    watch: LeaseWatch
    look: tuple[float, Lease] | None = None

    def begin(self, lease: Lease, now_s: float) -> None:
        if self.look is None:
            self.look = now_s, lease
            self.watch.poll_begins(now_s)

    def ends(self) -> bool:
        """Whether it may claim by what it read."""
        assert self.look is not None
        began_s, lease = self.look
        self.look = None
        return self.watch.polled(lease, began_s, lease.controller_epoch) is LeaseSight.STILL


@dataclass
class Race:
    """A controller and two others, each with a way to the store that comes and goes."""

    times: ClusterTimes
    now_s: float = 1000.0
    next_bump_s: float = 0.0
    lease: Lease = field(default_factory=lambda: Lease(1, "ours", 0))

    def __post_init__(self) -> None:
        self.rival_controllers = RivalControllers(self.now_s, self.times)
        self.others = {2: Watcher(LeaseWatch(self.times.lease_s)), 3: Watcher(LeaseWatch(self.times.lease_s))}

    @property
    def is_disputed(self) -> bool:
        return self.rival_controllers.may_have_claimed(self.others, self.now_s)

    def bumps(self, *, is_answered: bool) -> None:
        """Sent a step ago, an interval after the one before at least."""
        if self.now_s < self.next_bump_s:
            return
        self.next_bump_s = self.now_s + self.times.interval_s
        self.lease = Lease(1, "ours", self.lease.counter + 1)
        if is_answered:
            self.rival_controllers.bumped(self.now_s - STEP_S, self.others, self.now_s)

    def beats(self, node_id: int) -> None:
        self.rival_controllers.heartbeat(node_id, self.others[node_id].watch.no_claim_s(self.now_s), self.now_s)


WAYS = st.sets(st.sampled_from(["bump", "answered", "beat 2", "beat 3", "look 2", "look 3", "quick 2", "quick 3"]))
PHASES = st.lists(st.tuples(WAYS, st.integers(1, 30)), max_size=12)


@pytest.mark.parametrize("times", [DIRECTORY, ClusterTimes()])
@given(PHASES)
@example([({"bump", "answered"}, 4), ({"look 2", "quick 2"}, 30)])
@example([({"look 2"}, 22), ({"look 2", "quick 2", "bump", "answered"}, 1)])
@example([({"look 2", "beat 2", "beat 3"}, 3), ({"look 2", "quick 2", "beat 3"}, 30)])
@example([({"look 2", "beat 2", "beat 3"}, 7), ({"look 2", "quick 2", "beat 3"}, 30)])
@example([({"look 2"}, 1), (set(), 9), ({"beat 2", "beat 3", "look 2"}, 3)])  # it beats while it looks
def test_no_claim_lands_that_the_controller_rules_out(times: ClusterTimes, phases: list[tuple[set[str], int]]) -> None:
    """Whatever ways are open in phases of so many steps, bumps, looks and heartbeats take them all the time; at the
    moment of a claim it is disputed."""
    race = Race(times)
    for ways in (ways for ways, steps in phases for _ in range(steps)):
        race.now_s += STEP_S
        if "bump" in ways:
            race.bumps(is_answered="answered" in ways)
        for node_id, other in race.others.items():
            if f"beat {node_id}" in ways:
                race.beats(node_id)
            if f"look {node_id}" in ways:
                other.begin(race.lease, race.now_s)
            began = other.look
            if began is None or (f"quick {node_id}" not in ways and race.now_s < began[0] + times.interval_s):
                continue
            if other.ends():
                assert race.is_disputed, f"broker {node_id} claims"
                return


@pytest.mark.parametrize("times", [DIRECTORY, ClusterTimes()])
def test_while_the_store_is_away_from_all_nothing_is_disputed(times: ClusterTimes) -> None:
    """Nobody reads the lease, and each heartbeat says that its sender would watch a whole one. When the store is back,
    the one bump that comes before a whole lease is over is enough."""
    race = Race(times)

    def go_on(seconds: float, *ways: str) -> None:
        for _ in range(int(seconds / STEP_S)):
            race.now_s += STEP_S
            race.beats(2)
            if "3 is silent" not in ways:
                race.beats(3)
            if "3 looks" in ways:
                race.others[3].begin(race.lease, race.now_s)
                race.others[3].ends()
            assert not race.is_disputed

    go_on(100)
    go_on(times.lease_s - times.interval_s - 2 * STEP_S, "3 looks")
    race.bumps(is_answered=True)
    go_on(min(times.lease_s, times.session_s) - 2 * STEP_S, "3 is silent")
    race.now_s += 2 * STEP_S
    race.beats(2)
    assert race.is_disputed, "3 is silent"
    assert not race.rival_controllers.may_have_claimed([2], race.now_s), "where its session ended it does not count"
    for _ in range(2):
        assert race.is_disputed, "one that may be about to claim is not seen yet"
        race.bumps(is_answered=True)
        race.now_s += times.interval_s
    assert not race.is_disputed
