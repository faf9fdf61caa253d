"""Whoever gives a log, or a path of one, to a thread past its place is told so by the simulation's workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from hotstore.host.log_host import LogHost
from hotstore.host.place import CALLER
from seams.files.disk import read_file
from seams.rng import SeededRng
from tests.sim.world.workers import SimWorkers
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import LOG_PATH, ORDERS, append, batch
from tests.support.fast_loop import run_fast
from tests.support.scenario import by
from tests.unit.hotstore.host.test_log_host import CONFIG, ID, host

Calls = dict[str, tuple[Any, ...]]


def on_a_log(do: Callable[[SimWorkers, LogHost, CrashDisk], Any]) -> None:
    async def scenario() -> None:
        disk = CrashDisk()
        logs = host(disk)
        opened = await logs.create(ORDERS, ID, CONFIG)
        append(opened.log, batch(5))
        workers = SimWorkers(asyncio.get_running_loop(), SeededRng(1))
        await do(workers, logs, disk)

    run_fast(scenario())


@by(on_a_log)
async def test_a_call_that_carries_something_of_a_log_is_begun_by_its_place(
    workers: SimWorkers, logs: LogHost, disk: CrashDisk, /
) -> None:
    """Its own method, an argument, also in a list or a partial, a closure, an object's attribute."""

    class Job:
        def __init__(self, path: str) -> None:
            self.path = path

        def run(self) -> None: ...

    (opened,) = logs.open_logs
    log, path = opened.log, f"{LOG_PATH}/leader-epoch-checkpoint"
    calls: Calls = {
        "its own": (log.roll,),
        "a log": (len, log),
        "an open log": (len, opened),
        "a lease": (len, logs.lend(opened, "a test")),
        "a path": (disk.unlink, path),
        "several": (list, [LOG_PATH]),
        "partial": (partial(read_file, disk, path),),
        "a closure": (lambda: log.roll(),),
        "an attribute": (Job(path).run,),
    }
    for name, call in calls.items():
        with pytest.raises(AssertionError, match="no place counts it"):
            await workers.run(*call)
        assert workers.is_idle, name
    CALLER.set((ORDERS, ID.bytes))
    for call in (calls["a path"], calls["partial"]):
        with pytest.raises(FileNotFoundError):
            await workers.run(*call)


@by(on_a_log)
async def test_what_works_on_an_open_file_or_beside_the_logs_is_nobody_s(
    workers: SimWorkers, _: LogHost, disk: CrashDisk, /
) -> None:
    """It reaches the file that was opened, wherever that lies by now."""
    file = disk.open(f"{LOG_PATH}/00000000000000000000.log")
    assert len(await workers.run(file.read_at, 0, 10)) == 10
    assert await workers.run(disk.list_dir, "/data") is not None
    assert await workers.run(disk.stat, f"{LOG_PATH}.0338e72625234bedbbb6620d9ee8c87a-delete") is None
