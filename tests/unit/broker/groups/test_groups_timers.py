"""Deadlines in a heap, against the plainest model: a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.groups.machine.timers import Timers

steps = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.integers(0, 5), st.integers(0, 30)),
        st.tuples(st.just("stop"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("due"), st.integers(1, 3), st.integers(0, 10)),
    ),
    max_size=80,
)


@given(steps)
def test_what_is_due_is_what_a_dict_would_say(script):
    """Moved earlier, later, stopped, set again: each key fires once, at its last deadline, in order."""
    timers: Timers[int] = Timers()
    model: dict[int, float] = {}
    now = 0.0
    for what, key, number in script:
        if what == "start":
            timers.start(key, now + number)
            model[key] = now + number
        elif what == "stop":
            timers.stop(key)
            model.pop(key, None)
        else:
            now += number
            fired = timers.due(now, key)
            assert len(fired) == min(key, sum(at <= now for at in model.values()))
            for one in fired:
                assert model[one] == min(model.values()) <= now
                del model[one]
        assert len(timers) == len(model)
        next_s = timers.next_s()
        assert not model or (next_s is not None and next_s <= min(model.values())), "a deadline would be slept through"


def test_heartbeats_do_not_fill_the_heap():
    """Thirty each of a thousand members: the heap stays as large as the members are many."""
    timers: Timers[int] = Timers()
    for beat in range(30_000):
        timers.start(beat % 1_000, beat / 1_000 + 10)
    assert len(timers._heap) <= 2 * 1_000 + 64


def test_members_that_come_and_go_do_not_fill_the_heap():
    """Stopped deadlines are swept out when they outnumber the living."""
    timers: Timers[int] = Timers()
    for member in range(20_000):
        timers.start(member, 1e9 - member)
        timers.stop(member)
    assert len(timers) == 0 and len(timers._heap) < 200
    assert timers.due(1e10, 10) == []
