"""The small machines of the TCP side: answer order, memory budget, deadlines, admission."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.admission import Admission, ConnectionLimiter, Crowd
from broker.net.buffers import BufferPool, FrameBudget, size_class
from broker.net.connection_timeouts import DeadlineWheel
from broker.net.dispatch import Part
from broker.net.limits import ListenerLimits, NetLimits
from broker.net.response_queue import ResponseQueue

MIB = 1 << 20


@dataclass
class Waiting:
    """An answer that comes when the test says so."""

    parts: list[Part] | None = None
    failure: BaseException | None = None
    is_done: bool = False


# -- answers ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_answers_leave_in_request_order_whatever_the_order_they_come_in(late: list[bool], rng: random.Random) -> None:
    """Ready and late answers mixed, late ones completed in any order: out comes the order of the requests."""
    queue = ResponseQueue(1000)
    waiting = []
    for number, is_late in enumerate(late):
        answer: list[Part] = [b"%d;" % number]
        if is_late:
            waiting.append(Waiting(answer))
            queue.add(waiting[-1])
        else:
            queue.add(answer)
    left = queue.pop_ready()
    rng.shuffle(waiting)
    for answered in waiting:
        answered.is_done = True
        left += queue.pop_ready()
    assert left == [b"%d;" % number for number in range(len(late))]
    assert len(queue) == 0 and queue.head() is None and not queue.full


def test_no_answer_is_an_answer_too() -> None:
    """A late request without response (None) holds up what comes after it, then lets it pass."""
    queue = ResponseQueue(10)
    first = Waiting(None)
    queue.add(first)
    queue.add([b"second"])
    assert queue.pop_ready() == [] and queue.head() is first
    first.is_done = True
    assert queue.pop_ready() == [b"second"]


def test_nothing_passes_a_failed_answer() -> None:
    """What came before it leaves, it stays at the head, those behind it never leave."""
    queue = ResponseQueue(10)
    failed, behind = Waiting(failure=ValueError(), is_done=True), Waiting([b"behind"], is_done=True)
    queue.add([b"before"])
    queue.add(failed)
    queue.add(behind)
    assert queue.pop_ready() == [b"before"]
    assert queue.pop_ready() == [] and queue.head() is failed
    assert queue.drain() == [failed, behind]
    assert len(queue) == 0


def test_the_queue_is_full_by_count_or_by_bytes() -> None:
    """Either bound stops a peer that pipelines behind a slow request."""
    by_count = ResponseQueue(2)
    by_count.add(Waiting())
    assert not by_count.full
    by_count.add(Waiting())
    assert by_count.full
    by_bytes = ResponseQueue(100)
    slow = Waiting([])
    by_bytes.add(slow)
    by_bytes.add([b"x" * 70_000])
    assert by_bytes.full
    slow.is_done = True
    by_bytes.pop_ready()
    assert not by_bytes.full


# -- memory -----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 200 * MIB))
def test_a_size_class_wastes_at_most_a_quarter(size: int) -> None:
    """And it is a fixed point, so that a buffer taken is given back to the list it came from."""
    capacity = size_class(size)
    assert size <= capacity <= max(size * 1.25 + 1, 64 << 10)
    assert size_class(capacity) == capacity


def test_the_pool_reuses_and_keeps_no_more_than_its_bound() -> None:
    """Buffers come back by size; above the bound they go to the allocator."""
    pool = BufferPool(idle_bytes_max=3 * MIB)
    one = pool.take(MIB)
    pool.give(one)
    assert pool.take(MIB - 5) is one
    for _ in range(5):
        pool.give(bytearray(MIB))
    assert pool.idle_bytes == 3 * MIB


def test_the_shared_buffer_is_replaced_when_somebody_keeps_it() -> None:
    """Two connections never read into the same memory while one still uses it."""
    pool = BufferPool()
    before = pool.shared
    before[:3] = b"abc"
    adopted = pool.adopt_shared()
    pool.shared[:3] = b"xyz"
    assert adopted[:3] == b"abc"


@dataclass
class Grower:
    """A frame that grows until it has what it needs, as a connection does."""

    budget: FrameBudget
    need: int
    held: int = 0
    waits: bool = False
    done: bool = False

    def step(self) -> None:
        wanted = min(self.need, max(2 * self.held, 64 << 10))
        if not self.budget.take(self, wanted):
            self.waits = True
            self.budget.wait(self.woken)
            return
        freed, self.held = self.held, wanted
        self.budget.give(self, freed, wanted)
        if self.held == self.need:
            self.held = 0
            self.done = True
            self.budget.give(self, self.need, 0)

    def woken(self) -> None:
        self.waits = False


@given(st.lists(st.integers(1 << 10, 8 * MIB), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_half_received_frames_never_wait_for_each_other_for_ever(needs: list[int], rng: random.Random) -> None:
    """However many frames want more than there is: all of them complete, and the limit holds all the time."""
    budget = FrameBudget(16 * MIB, 8 * MIB)
    growers = [Grower(budget, need) for need in needs]
    while not all(grower.done for grower in growers):
        ready = [grower for grower in growers if not grower.done and not grower.waits]
        assert ready, "everybody waits"
        rng.choice(ready).step()
        assert budget.used <= 16 * MIB + 4 * MIB  # old and new buffer of the reserve's owner while it moves
    assert budget.used == 0 and not budget.exhausted


def test_waiters_are_woken_in_order_one_at_a_time() -> None:
    """Whoever waits longest comes first; the next one when that one has tried."""
    budget = FrameBudget(4 * MIB, MIB)
    owner, woken = object(), deque[str]()
    budget.take(owner, 4 * MIB)
    assert not budget.take("other", MIB)
    first, second = (lambda: woken.append("first")), (lambda: woken.append("second"))
    budget.wait(first)
    budget.wait(second)
    budget.wait(first)
    budget.forget(first)
    budget.give(owner, 4 * MIB, 0)
    assert list(woken) == ["second"]
    budget.wake_next()
    assert list(woken) == ["second", "first"]


# -- deadlines --------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Alarm:
    """A thing whose deadline moves."""

    due: int
    armed_tick: int = 0
    looked: list[int] = field(default_factory=list)

    def check_deadlines(self, tick: int) -> int:
        self.looked.append(tick)
        return self.due if self.due > tick else 0


def test_a_deadline_that_moves_on_costs_one_look() -> None:
    """Activity does not touch the wheel: the look at the old deadline finds the new one."""
    wheel: DeadlineWheel[Alarm] = DeadlineWheel()
    alarm = Alarm(due=11)
    wheel.arm(alarm, 11)
    alarm.due = 15
    for _ in range(20):
        wheel.advance()
    assert alarm.looked == [11, 15]
    assert len(wheel) == 0


def test_a_disarmed_thing_is_forgotten() -> None:
    """Nothing is left of it, also when others share its tick."""
    wheel: DeadlineWheel[Alarm] = DeadlineWheel()
    gone, stays = Alarm(due=0), Alarm(due=0)
    wheel.arm(gone, 5)
    wheel.arm(stays, 5)
    wheel.disarm(gone)
    wheel.disarm(gone)
    for _ in range(9):
        wheel.advance()
    assert (gone.looked, stays.looked) == ([], [5])
    wheel.arm(gone, 30)
    wheel.disarm(gone)
    assert len(wheel) == 0


def test_an_earlier_deadline_wins() -> None:
    """Arming twice looks once, at the earlier tick."""
    wheel: DeadlineWheel[Alarm] = DeadlineWheel()
    alarm = Alarm(due=0)
    wheel.arm(alarm, 10)
    wheel.arm(alarm, 4)
    for _ in range(20):
        wheel.advance()
    assert alarm.looked == [4]


def test_a_deadline_in_the_past_is_looked_at_on_the_next_tick() -> None:
    """Never lost, never at once."""
    wheel: DeadlineWheel[Alarm] = DeadlineWheel()
    alarm = Alarm(due=0)
    wheel.arm(alarm, -5)
    wheel.advance()
    assert alarm.looked == [wheel.tick]


# -- admission --------------------------------------------------------------------------------------------------------


def admissions(**limits: float) -> ConnectionLimiter[int]:
    return ConnectionLimiter(NetLimits(**limits), 0.0)  # type: ignore[arg-type]


def test_above_the_total_new_connections_wait_for_a_place() -> None:
    """None is closed; the one that waited longest gets the place that comes free."""
    a = admissions(connections_max=2)
    verdicts = [a.arrived(n, "h", 0.0) for n in range(4)]
    assert verdicts == [Admission.ADMIT, Admission.ADMIT, Admission.WAIT, Admission.WAIT]
    assert a.next(10.0) is None and a.retry_in_s(10.0) is None
    a.left(0, "h", admitted=True)
    assert a.next(10.0) == 2 and a.next(10.0) is None
    assert (a.admitted, a.waiting) == (2, 1)


def test_above_the_rate_new_connections_wait_their_turn() -> None:
    """A second's worth may come at once, then the rate paces them; order is kept even when credit is there again."""
    a = admissions(connections_per_s_max=10)
    verdicts = [a.arrived(n, "h", 0.0) for n in range(13)]
    assert verdicts == [Admission.ADMIT] * 10 + [Admission.WAIT] * 3
    assert a.retry_in_s(0.0) == pytest.approx(0.1)
    assert a.next(0.05) is None
    assert a.arrived(13, "h", 0.11) is Admission.WAIT
    assert a.next(0.11) == 10 and a.next(0.11) is None
    assert [a.next(5.0) for _ in range(4)] == [11, 12, 13, None]


def test_one_address_with_too_many_connections_is_refused() -> None:
    """Others are not; a place that comes free counts again; waiting ones count too."""
    a = admissions(connections_per_ip_max=2, connections_max=3)
    assert [a.arrived(n, "h", 0.0) for n in range(3)] == [Admission.ADMIT, Admission.ADMIT, Admission.REFUSE]
    assert [a.arrived(n, "i", 0.0) for n in (3, 4, 5)] == [Admission.ADMIT, Admission.WAIT, Admission.REFUSE]
    a.left(0, "h", admitted=True)
    assert a.next(0.0) == 4
    assert a.arrived(6, "h", 0.0) is Admission.WAIT


def test_an_unknown_address_is_not_counted() -> None:
    """A simulated network has none."""
    a = admissions(connections_per_ip_max=1)
    assert [a.arrived(n, "", 0.0) for n in range(3)] == [Admission.ADMIT] * 3


def test_too_many_waiting_are_refused() -> None:
    """The only bound on waiting: each one costs a descriptor."""
    a = admissions(connections_max=1, connections_waiting_max=1)
    assert [a.arrived(n, "", 0.0) for n in range(3)] == [Admission.ADMIT, Admission.WAIT, Admission.REFUSE]
    a.left(1, "", admitted=False)
    assert a.waiting == 0


def test_of_no_connection_a_second_none_is_admitted() -> None:
    """And nothing is divided by it. Another rate lets the waiting one in."""
    a = admissions(connections_per_s_max=0)
    assert a.arrived(1, "h", 0.0) is Admission.WAIT and a.retry_in_s(5.0) is None
    a.set_limits(NetLimits(connections_per_s_max=10), 10.0)
    assert a.retry_in_s(10.0) == pytest.approx(0.1) and a.next(10.2) == 1


def test_a_listener_at_its_own_bounds_keeps_nobody_out_of_another() -> None:
    """KIP-402 and KIP-612: its bounds, and those of the broker, hold together; an address is counted over both."""
    own = {"a": ListenerLimits(most=2), "b": ListenerLimits(per_s=3)}
    limits = NetLimits(connections_max=6, connections_per_ip_max=8, of_listener=own)
    crowd = Crowd(limits, 0.0)
    a, b = (ConnectionLimiter[int](limits, 0.0, name, crowd) for name in "ab")
    assert [a.arrived(n, "h", 0.0) for n in range(3)] == [Admission.ADMIT] * 2 + [Admission.WAIT]
    assert [b.arrived(10 + n, "h", 0.0) for n in range(4)] == [Admission.ADMIT] * 3 + [Admission.WAIT]
    assert (a.retry_in_s(0.0), b.retry_in_s(0.0)) == (None, pytest.approx(1 / 3))
    assert b.next(0.4) == 13, "the sixth of the broker"
    assert b.arrived(14, "h", 5.0) is Admission.WAIT, "the broker has six"
    assert a.arrived(3, "h", 5.0) is Admission.REFUSE, "the ninth of this address"
    a.left(0, "h", admitted=True)
    assert a.next(5.0) == 2 and b.next(5.0) is None
    b.left(10, "h", admitted=True)
    assert b.next(5.0) == 14


def test_the_bounds_of_the_broker_are_those_of_a_listener_apart() -> None:
    """As in Kafka, unless it has its own; the crowd of others does not count."""
    limits = NetLimits(connections_max=1)
    apart: ConnectionLimiter[int] = ConnectionLimiter(limits, 0.0, "x", Crowd(limits, 0.0, apart=True))
    assert [apart.arrived(n, "", 0.0) for n in range(2)] == [Admission.ADMIT, Admission.WAIT]
    apart.set_limits(NetLimits(connections_max=1, of_listener={"x": ListenerLimits(most=2)}), 0.0)
    assert apart.next(0.0) == 1
