"""The life of a shard as a conversation: what leadership says, what must be done for it."""

from __future__ import annotations

import itertools

import pytest

from broker.internal_topics.shard_life import (
    Closed,
    Command,
    Event,
    Led,
    Life,
    Load,
    Loaded,
    Refused,
    Resigned,
    ShardState,
    StopLoading,
    TellOver,
    TellTrouble,
    Unload,
    step,
)

AWAY, ROTTEN = "the store is away", "bit rot"


class Play:
    """A conversation with the machine."""

    def __init__(self) -> None:
        self.life = Life()

    def give(self, event: Event) -> Play:
        self.life, self.commands = step(self.life, event)
        return self

    def expect(self, state: ShardState, *commands: Command) -> Play:
        assert (self.life.state, self.commands) == (state, commands)
        return self


def ready(leader_epoch: int = 5) -> Play:
    return Play().give(Led(leader_epoch)).give(Loaded(leader_epoch)).expect(ShardState.READY)


def test_a_shard_is_loaded_for_its_leader_epoch_and_unloaded_with_it() -> None:
    p = Play()
    p.give(Led(5)).expect(ShardState.LOADING, Load(5))
    p.give(Loaded(5)).expect(ShardState.READY)
    p.give(Resigned()).expect(ShardState.ABSENT, Unload())
    p.give(Led(7)).expect(ShardState.LOADING, Load(7))


def test_what_is_said_of_another_epoch_changes_nothing() -> None:
    """KAFKA-20634: an old load's end, or an old refusal, must not make a new epoch's shard ready, or fail it."""
    p = Play().give(Led(5)).give(Led(6)).expect(ShardState.LOADING, Unload(), Load(6))
    p.give(Loaded(5)).expect(ShardState.LOADING)
    p.give(Refused(5, ROTTEN, is_lasting=True)).expect(ShardState.LOADING)
    p.give(Loaded(6)).expect(ShardState.READY)
    p.give(Loaded(6)).expect(ShardState.READY)
    p.give(Resigned()).give(Loaded(6)).expect(ShardState.ABSENT)
    p.give(Refused(6, AWAY, is_lasting=False)).expect(ShardState.ABSENT)


def test_the_same_leader_in_another_epoch_loads_again() -> None:
    """R2: nobody knows who led meanwhile, and what it wrote."""
    ready(5).give(Led(6)).expect(ShardState.LOADING, Unload(), Load(6))


def test_leadership_that_is_told_twice_or_late_is_not_loaded_again() -> None:
    p = ready(5)
    for late in (5, 4):
        p.give(Led(late)).expect(ShardState.READY)
    p.give(Resigned()).give(Led(5)).expect(ShardState.ABSENT)
    p.give(Resigned()).expect(ShardState.ABSENT)


def test_a_load_that_waiting_mends_is_tried_again_ever_later_and_told_twice() -> None:
    """Once when it begins, once when it is over."""
    p = Play().give(Led(5))
    p.give(Refused(5, AWAY, is_lasting=False)).expect(
        ShardState.LOADING, TellTrouble(AWAY, is_lasting=False), Load(5, 0.5)
    )
    waits = []
    for _ in range(100):
        p.give(Refused(5, AWAY, is_lasting=False))
        (load,) = p.commands
        assert isinstance(load, Load)
        waits.append(load.after_s)
    assert waits[:3] == [1.0, 2.0, 4.0] and max(waits) == waits[-1] == 30.0
    p.give(Loaded(5)).expect(ShardState.READY, TellOver())


def test_a_load_that_waiting_will_not_mend_fails_its_shard_and_is_tried_all_the_same() -> None:
    """An operator may restore what is damaged."""
    p = Play().give(Led(5)).give(Refused(5, AWAY, is_lasting=False))
    p.give(Refused(5, ROTTEN, is_lasting=True)).expect(
        ShardState.FAILED, TellTrouble(ROTTEN, is_lasting=True), Load(5, 5.0)
    )
    for after_s in (10.0, 20.0, 40.0, 60.0, 60.0):
        p.give(Refused(5, ROTTEN, is_lasting=True)).expect(ShardState.FAILED, Load(5, after_s))
    p.give(Loaded(5)).expect(ShardState.READY, TellOver())


def test_a_stop_ends_loading_and_keeps_what_is_whole_for_a_last_snapshot() -> None:
    p = ready().give(Closed()).expect(ShardState.CLOSED, StopLoading())
    assert p.life.is_whole
    half = Play().give(Led(5)).give(Closed()).expect(ShardState.CLOSED, StopLoading())
    assert not half.life.is_whole
    for event in (Led(9), Resigned(), Loaded(5), Refused(5, AWAY, is_lasting=True), Closed()):
        half.give(event).expect(ShardState.CLOSED)


EVENTS: tuple[Event, ...] = (
    Led(1),
    Led(2),
    Resigned(),
    Loaded(1),
    Loaded(2),
    Refused(1, AWAY, is_lasting=False),
    Refused(2, ROTTEN, is_lasting=True),
    Closed(),
)


@pytest.mark.parametrize("length", [4, 5])
def test_every_order_of_events_keeps_the_rules(length: int) -> None:
    """37 000 histories: a shard is ready only in the epoch it was led in last and loaded in; it is dropped before it is
    loaded in another epoch; there is never a load without leadership."""
    for history in itertools.product(EVENTS, repeat=length):
        life, led, holds = Life(), 0, False
        for event in history:
            before = life
            life, commands = step(life, event)
            if before.state is ShardState.CLOSED:
                assert life == before and not commands
                break
            if isinstance(event, Led):
                led = max(led, event.leader_epoch)
            for command in commands:
                if isinstance(command, Unload):
                    assert holds
                    holds = False
                if isinstance(command, Load):
                    assert command.leader_epoch == led == life.leader_epoch
                    assert holds == isinstance(event, Refused), "a state of another epoch would be loaded into"
                    holds = True
            if life.state is ShardState.READY and before.state is not ShardState.READY:
                assert event == Loaded(led) and holds
            assert life.is_whole == (life.state is ShardState.READY) or life.state is ShardState.CLOSED
            assert holds == (life.state not in (ShardState.ABSENT, ShardState.CLOSED)) or life.state is (
                ShardState.CLOSED
            )
