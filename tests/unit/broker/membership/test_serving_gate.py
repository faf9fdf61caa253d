"""The gate every answer passes (C31)."""

from __future__ import annotations

import asyncio

import pytest

from broker.membership.serving_gate import ServingGate


class Boot:
    """A boot clock set by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_gate_looked_at_often_stays_open() -> None:
    """Any number of looks at most a lease apart."""
    boot = Boot()
    gate = ServingGate(boot, 15.0)
    for _ in range(100):
        boot.now += 15.0
        assert gate.is_open()
    assert gate.paused_count == 0


def test_cluster_d60_a_jump_closes_before_the_next_answer() -> None:
    """The look itself notices the jump: no tick has to come first."""
    boot = Boot()
    gate = ServingGate(boot, 15.0)
    boot.now += 15.1
    assert not gate.is_open()
    assert not gate.is_open()
    assert gate.paused_count == 1
    gate.reopen(gate.paused_count)
    assert gate.is_open()


def test_a_second_jump_before_the_look_after_a_reopening_closes_again() -> None:
    """The poll that reopened it says nothing of what came after."""
    boot = Boot()
    gate = ServingGate(boot, 15.0)
    boot.now += 20
    assert not gate.is_open()
    gate.reopen(gate.paused_count)
    boot.now += 20
    assert not gate.is_open()


def test_a_shut_gate_never_opens() -> None:
    """Superseded is for ever, and the first word about by whom stands."""
    gate = ServingGate(Boot(), 15.0)
    gate.shut("the broker of epoch 9")
    gate.reopen(gate.paused_count)
    gate.shut("another one")
    assert not gate.is_open()
    assert gate.superseded_by == "the broker of epoch 9"


def test_a_shut_gate_stays_shut_over_a_jump_and_a_late_poll() -> None:
    """A poll's answer from before comes in after the root of a partition said that we were superseded."""
    boot = Boot()
    gate = ServingGate(boot, 15.0)
    boot.now += 20
    assert not gate.is_open()
    gate.shut("somebody")
    gate.reopen(gate.paused_count)
    assert not gate.is_open()


async def test_who_waits_goes_on_when_it_opens_and_never_when_it_was_shut() -> None:
    """`opened` is what answers under way hang on."""
    boot = Boot()
    gate = ServingGate(boot, 15.0)
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
