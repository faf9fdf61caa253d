"""The flusher's table, walked whole: in every state that can be reached, every event that can come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import pytest

from hotstore.flush.flush_states import NEXT, OVER, FlushAction, FlushEvent, FlushState, FlushStates

E, S, A = FlushEvent, FlushState, FlushAction


@dataclass(frozen=True, slots=True)
class World:
    """The machine's state, and what the shell around it has done."""

    state: FlushState = S.IDLE
    asked: bool = False  # for a sync that is not over
    began: bool = False  # its round
    timer: bool = False
    missed: bool = False  # something was appended that no sync which began covers, and the machine was not looking
    told: bool = False
    closed: bool = False


def possible(world: World) -> list[FlushEvent]:
    """Events that can come: a sync's only while it runs, a look's where the shell looks."""
    if world.state is S.DECIDING:
        return [E.NEEDED, E.NEEDED_SOON, E.NOT_NEEDED]  # asked and answered in one go
    events = [E.AWAITED, E.FORCED, E.FAILED, E.CLOSE]
    if world.asked:
        events += [E.APPENDED, E.ENDED] + ([] if world.began else [E.BEGAN])
    else:
        events += [E.NEEDED, E.NEEDED_SOON, E.NOT_NEEDED]
    return events + ([E.TIMER] if world.timer else [])


def after(world: World, event: FlushEvent) -> World:
    """What the shell does, with the rules that it must never break."""
    states = FlushStates()
    states.state = world.state
    action = states.on(event)
    if action is A.START:
        assert not world.asked, "one sync at a time"
        world = replace(world, asked=True, began=False)
    elif action is A.ARM:
        assert not world.timer
        world = replace(world, timer=True)
    elif action is A.REPORT:
        assert not world.told, "a failure is told once"
        world = replace(world, told=True)
    if action in (A.START, A.ARM):
        assert not world.told and not world.closed, "nothing starts after a failure or a close"
    if event is E.BEGAN:
        world = replace(world, began=True, missed=False)
    if event is E.APPENDED and world.began:
        world = replace(world, missed=True)
    if event is E.ENDED and world.missed and states.state not in OVER:
        assert states.state is S.DECIDING, "what came during a sync is looked at when it is over"
        world = replace(world, missed=False)
    if event is E.ENDED:
        world = replace(world, asked=False, began=False, missed=False)
    if event is E.CLOSE:
        world = replace(world, closed=True)
    if world.timer and states.state is not S.DEFERRED:
        world = replace(world, timer=False)
    world = replace(world, state=states.state)
    assert states.is_syncing == world.asked, world
    assert world.timer == (world.state is S.DEFERRED), world
    assert states.is_over == (world.told or world.closed), world
    assert states.may_seal == (not states.is_over)
    return world


def test_every_event_in_every_state() -> None:
    """One sync at a time, one timer, nothing after the end, nothing forgotten; and the table has no dead row."""
    seen = {World()}
    used: set[tuple[FlushState, FlushEvent]] = set()
    todo = deque(seen)
    while todo:
        world = todo.popleft()
        for event in possible(world):
            used.add((world.state, event))
            following = after(world, event)
            if following not in seen:
                seen.add(following)
                todo.append(following)
    assert {world.state for world in seen} == set(S)
    assert used >= {(state, event) for state, row in NEXT.items() for event in row}


@pytest.mark.parametrize(
    "story",
    [
        [(E.NEEDED, S.REQUESTED, A.START), (E.BEGAN, S.SYNCING, A.NOTHING), (E.ENDED, S.IDLE, A.NOTHING)],
        [(E.NEEDED_SOON, S.DEFERRED, A.ARM), (E.NEEDED_SOON, S.DEFERRED, A.NOTHING), (E.TIMER, S.REQUESTED, A.START)],
        [(E.NEEDED_SOON, S.DEFERRED, A.ARM), (E.AWAITED, S.REQUESTED, A.START), (E.APPENDED, S.REQUESTED, A.NOTHING)],
        [
            (E.FORCED, S.REQUESTED, A.START),
            (E.BEGAN, S.SYNCING, A.NOTHING),
            (E.APPENDED, S.DIRTY, A.NOTHING),
            (E.ENDED, S.DECIDING, A.NOTHING),
            (E.NEEDED, S.REQUESTED, A.START),
            (E.BEGAN, S.SYNCING, A.NOTHING),
        ],
        [
            (E.NEEDED, S.REQUESTED, A.START),
            (E.FAILED, S.FAILING, A.REPORT),
            (E.FAILED, S.FAILING, A.NOTHING),
            (E.ENDED, S.FAILED, A.NOTHING),
            (E.FORCED, S.FAILED, A.NOTHING),
        ],
        [
            (E.NEEDED, S.REQUESTED, A.START),
            (E.CLOSE, S.CLOSING, A.NOTHING),
            (E.BEGAN, S.CLOSING, A.NOTHING),  # what was asked for is synced
            (E.ENDED, S.CLOSED, A.NOTHING),
            (E.FAILED, S.FAILED, A.REPORT),  # of small files that were being written
        ],
    ],
)
def test_stories(story: list[tuple[FlushEvent, FlushState, FlushAction]]) -> None:
    """What happens in an order that does happen."""
    states = FlushStates()
    for event, state, action in story:
        assert (states.on(event), states.state) == (action, state), event


def test_nothing_is_sealed_twice_at_once() -> None:
    """Small files are written beside whatever sync, by one job, and by none after the end."""
    states = FlushStates()
    assert states.may_seal
    states.on(E.NEEDED)
    states.is_sealing = True
    assert not states.may_seal
    states.is_sealing = False
    assert states.may_seal
    states.on(E.CLOSE)
    assert not states.may_seal
