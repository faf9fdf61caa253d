"""A log whose write failed: who waits is told at once, and the stop after it is no clean one."""

from __future__ import annotations

import asyncio
import errno

import pytest

from hotstore.errors import LogFailed
from hotstore.flush.flusher import Flusher
from hotstore.flush.sync_rounds import SyncRounds
from hotstore.host.place import Place
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import LogState
from seams.files.syncs import WorkerSyncs
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import ORDERS, RecordingOwner, SteppedWorkers, append, batch, new_log, settle


def test_waiters_learn_of_a_write_that_failed_during_a_sync() -> None:
    """What was appended while the sync ran is never synced: its acks must not hang until their requests time out."""

    async def scene() -> None:
        disk = CrashDisk()
        _, log = new_log(disk, LogConfig())
        workers = SteppedWorkers()
        log.owner = owner = RecordingOwner()
        flusher = Flusher(log, Place(ORDERS, workers), SyncRounds(WorkerSyncs(workers), workers))
        for _ in range(2):
            append(log, batch())
            flusher.request()
            await settle()
        disk.inject("write", errno.EIO, ".log")
        with pytest.raises(LogFailed):
            append(log, batch())
        await workers.step()
        assert owner.told_flushed == [1] and len(owner.told_failed) == 1
        await flusher.close()

    asyncio.run(asyncio.wait_for(scene(), 10))


def test_flush_of_a_failed_log_fails_although_nothing_waits() -> None:
    """The file may end in half a batch that could not be cut off; with a clean marker the next start would believe it
    and refuse the log."""

    async def scene() -> None:
        disk = CrashDisk()
        _, log = new_log(disk, LogConfig())
        workers = SteppedWorkers(immediate=True)
        flusher = Flusher(log, Place(ORDERS, workers), SyncRounds(WorkerSyncs(workers), workers))
        append(log, batch())
        await flusher.flush()
        disk.inject("write", errno.EIO, ".log")
        disk.inject("truncate", errno.EIO, ".log")
        with pytest.raises(LogFailed):
            append(log, batch())
        assert log.state is LogState.FAILED and log.flushed_end_offset == log.log_end_offset
        with pytest.raises(LogFailed):
            await flusher.flush()
        await flusher.close()

    asyncio.run(asyncio.wait_for(scene(), 10))
