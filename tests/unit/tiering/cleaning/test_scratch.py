"""Steps of the cold cleaner beside cancellations."""

from __future__ import annotations

import asyncio
from typing import Any

from hotstore.cleaning.cleaner_config import CleanerConfig
from hotstore.cleaning.engine import LocalEngine
from seams.files.syncs import WorkerSyncs
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.crash_disk import CrashDisk
from tests.support.fast_loop import FastClock
from tiering.cleaning.scratch import ColdCleaning


class SlowWorkers:
    """Every call takes a second; `inside`: how many run."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def run(self, function: Any, *args: Any, lane: object = None) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(1.0)
            return function(*args)
        finally:
            self.inside -= 1


def cleaning_with(workers: Any) -> ColdCleaning:
    world = World(CrashDisk(), workers, WorkerSyncs(workers), FastClock(), SeededRng(1), Any)
    return ColdCleaning(world, Tasks(), "/scratch", LocalEngine(SeededRng(2)), CleanerConfig, 1 << 40)


async def test_a_pass_that_is_cancelled_twice_leaves_no_step_behind() -> None:
    """At a stop the end of the role and that of the broker both cancel it: the engine has one caller even so."""
    workers = SlowWorkers()
    cleaning = cleaning_with(workers)

    async def run_pass() -> None:
        try:
            await cleaning.step(lambda: None)
        finally:
            await cleaning.step(cleaning.engine.end)

    working = asyncio.ensure_future(run_pass())
    for _ in range(3):
        await asyncio.sleep(0.2)
        working.cancel()
    await asyncio.wait([working])
    assert working.cancelled() and workers.most == 1


async def test_a_pass_that_is_cancelled_while_it_opens_its_files_leaves_no_thread_behind() -> None:
    """Regression: the thread went on, and removed files of the next pass."""
    cleaning = cleaning_with(SlowWorkers())
    opening = asyncio.ensure_future(cleaning.open_files())
    await asyncio.sleep(0.2)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled() and cleaning.world.disk.list_dir("/scratch")
