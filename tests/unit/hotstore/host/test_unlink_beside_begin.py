"""Expired segments are unlinked and a log begins elsewhere by two threads of one lane: one directory, one at a time."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from hotstore.host.data_dir import DataDir
from hotstore.host.log_host import LogHost
from hotstore.log.log_config import LogConfig
from logformat.leader_epochs import LeaderEpochs
from seams.files.syncs import WorkerSyncs
from seams.loop.workers import Lane
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import DATA, META, ORDERS, append, batch
from tests.support.disk.late import must_not_come
from tests.support.fast_loop import FastClock

TOPIC_ID = UUID(int=7)


class SlowUnlinks:
    """`Workers` on the loop; an unlink of expired segments begins when `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.has_begun = asyncio.Event()

    async def run(self, function: Any, *args: Any, lane: Lane = Lane.FILES) -> Any:
        if getattr(function, "__name__", "") == "unlink":
            self.has_begun.set()
            await self.goes_on.wait()
        await asyncio.sleep(0)
        return function(*args)


async def test_a_beginning_elsewhere_waits_for_an_unlink_that_goes_on_after_its_caller() -> None:
    """FileNotFoundError: it listed files that the unlink then took; the replica was offline until its next role."""
    disk, workers = CrashDisk(), SlowUnlinks()
    net: Any = None
    world = World(disk, workers, WorkerSyncs(workers), FastClock(), SeededRng(1), net, late_effect=must_not_come)
    directory = DataDir.open(disk, DATA)
    directory.format(META)
    directory.remove_clean_marker()
    logs = LogHost(directory, world)
    opened = await logs.create(ORDERS, TOPIC_ID, LogConfig(index_interval_bytes=100, segment_bytes=1000))
    for _ in range(40):
        append(opened.log, batch(1))
    await opened.flusher.flush()
    await asyncio.sleep(1.0)  # small files of sealed segments
    lease = logs.lend(opened, "follower")
    assert lease.delete_local_before(30)
    unlink = asyncio.ensure_future(lease.unlink())
    await workers.has_begun.wait()
    unlink.cancel()
    begin = asyncio.ensure_future(lease.begin_at(40, LeaderEpochs(), (), forget_start=False))
    await asyncio.sleep(20.0)
    assert unlink.cancelled() and not begin.done(), "the thread of the unlink works in the directory"
    workers.goes_on.set()
    await begin
    assert (opened.log.local_log_start_offset, opened.log.log_end_offset) == (40, 40)
    assert [name for name in disk.list_dir(opened.log.path) if name.endswith(".log")] == [f"{40:020}.log"]
