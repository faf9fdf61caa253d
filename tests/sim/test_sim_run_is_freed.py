"""A simulated run leaves nothing in its process."""

from __future__ import annotations

import weakref

import pytest

from tests.sim import playing
from tests.sim.run import simulate
from tests.sim.world.loop import SimLoop


def test_the_loop_of_a_run_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was made before the collector's objects were frozen: it stayed, and all tasks, brokers and disks of its run
    with it. `asyncio.run` walks the tasks of all loops: a test of 1 000 short runs took 120 s after the seeds."""
    loops: list[weakref.ref[SimLoop]] = []

    def made() -> SimLoop:
        loop = SimLoop()
        loops.append(weakref.ref(loop))
        return loop

    monkeypatch.setattr(playing, "SimLoop", made)
    simulate(7, duration_s=1.0)
    assert [loop() for loop in loops] == [None]
