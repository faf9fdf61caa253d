"""All logs of a data directory: opened once, set aside and never overwritten, checkpointed one job at a time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from hotstore.data_dir import DataDir
from hotstore.errors import ForeignLog
from hotstore.log_config import LogConfig
from hotstore.log_host import LogHost
from logformat.leader_epochs import LeaderEpochs
from seams.disk import read_file
from seams.rng import SeededRng
from seams.syncs import WorkerSyncs
from seams.world import World
from tests.support.crash_disk import CrashDisk
from tests.support.fast_loop import FastClock, run_fast
from tests.support.hotstore_kit import DATA, LOG_PATH, META, ORDERS, SteppedWorkers, append, batch

ID = UUID(int=1)
OTHER = UUID(int=2)
CONFIG = LogConfig()
DAY_S = 24 * 3600.0


def host(disk: CrashDisk, workers: Any = None) -> LogHost:
    at_once: Any = SteppedWorkers(immediate=True)
    net: Any = None
    world = World(disk, workers or at_once, WorkerSyncs(at_once), FastClock(), SeededRng(1), net)
    directory = DataDir.open(disk, DATA)
    if directory.meta is None:
        directory.format(META)
    directory.unmark()
    return LogHost(directory, world)


def test_a_replica_starts_from_the_high_watermark_that_was_checkpointed() -> None:
    """It was written since the first release, and read by nobody: a follower would begin with nothing visible. It lies
    within the log as it is: what a crash cut off the log's end is not visible, what was deleted does not come back."""

    async def scenario(cut_off: bool, start: int) -> int:
        disk = CrashDisk()
        logs = host(disk)
        opened = await logs.create(ORDERS, ID, CONFIG)
        append(opened.log, batch(5))
        if not cut_off:
            await opened.flusher.flush()
        opened.log.advance_log_start(start)
        await logs.checkpoint({opened.log: 3})
        await opened.flusher.close()
        again = host(disk.crash(SeededRng(1), 0.0))
        found = await again.open(ORDERS, ID, CONFIG)
        assert found is not None
        return found.high_watermark

    assert run_fast(scenario(False, 0)) == 3
    assert run_fast(scenario(False, 4)) == 4
    assert run_fast(scenario(True, 0)) == 0


def test_a_log_is_opened_once_however_often_it_is_asked_for() -> None:
    """Two over one directory would each write what the other does not know."""

    async def scenario() -> None:
        disk = CrashDisk()
        logs = host(disk)
        await logs.close(await logs.create(ORDERS, ID, CONFIG), clean=True)
        assert logs.open_logs == []
        first, second = await asyncio.gather(logs.open(ORDERS, ID, CONFIG), logs.open(ORDERS, ID, CONFIG))
        assert first is not None and first is second and logs.open_logs == [first] and logs.is_open(first)

    run_fast(scenario())


def test_a_log_of_another_topic_is_left_alone() -> None:
    """It is that topic's until it is set aside (C9), and then no start opens it."""

    async def scenario() -> None:
        disk = CrashDisk()
        logs = host(disk)
        assert await logs.open(ORDERS, ID, CONFIG) is None
        await logs.close(await logs.create(ORDERS, ID, CONFIG), clean=True)
        with pytest.raises(ForeignLog):
            await logs.open(ORDERS, OTHER, CONFIG)
        await logs.places.set_aside(ORDERS, OTHER)
        again = await logs.open(ORDERS, ID, CONFIG)
        assert again is not None, "it is not the one that was to go"
        await logs.close(again, clean=True)
        await logs.places.set_aside(ORDERS, ID)
        assert await logs.open(ORDERS, OTHER, CONFIG) is None
        left = [name for name in disk.list_dir(DATA) if name.startswith("orders-0.")]
        assert len(left) == 1
        await logs.places.delete_set_aside()
        assert not any(name.startswith("orders-0") for name in disk.list_dir(DATA))

    run_fast(scenario())


def test_what_lies_in_a_new_logs_place_is_set_aside_not_taken_over() -> None:
    """A directory without a log may hold what only its owner understands (a reservation, say): the new log must not be
    taken for the one that this belongs to, nor is it removed."""

    async def scenario() -> None:
        disk = CrashDisk()
        logs = host(disk)
        disk.make_dirs(LOG_PATH)
        disk.open(f"{LOG_PATH}/thermocline-reservation", write=True, create=True).write_at(0, [b"of an older log"])
        assert await logs.open(ORDERS, ID, CONFIG) is None
        opened = await logs.create(ORDERS, ID, CONFIG)
        assert opened.log.log_end_offset == 0 and disk.stat(f"{LOG_PATH}/thermocline-reservation") is None
        (aside,) = [name for name in disk.list_dir(DATA) if name.startswith("orders-0.")]
        assert read_file(disk, f"{DATA}/{aside}/thermocline-reservation") == b"of an older log"

    run_fast(scenario())


def test_a_log_that_cannot_be_left_clean_says_so_and_is_closed() -> None:
    """The marker must not be written then; its neighbours are closed all the same."""

    async def scenario() -> None:
        disk = CrashDisk()
        logs = host(disk)
        opened = await logs.create(ORDERS, ID, CONFIG)
        append(opened.log, batch(2))
        disk.inject("sync", errno.EIO, ".log")
        with pytest.raises(OSError):
            await logs.close(opened, clean=True)
        assert logs.open_logs == []
        assert await logs.close(opened, clean=True), "closing again does nothing"
        failed = await logs.open(ORDERS, ID, CONFIG)
        assert failed is not None
        failed.log.fail(OSError(errno.EIO, "a sync failed"))
        assert not await logs.close(failed, clean=True)

    run_fast(scenario())


class _SlowWorkers:
    """What is asked takes a moment, in which the loop has others to serve."""

    async def run(self, function: Callable[..., Any], *args: Any, lane: object = None) -> Any:
        result = function(*args)
        await asyncio.sleep(0.01)
        return result


@pytest.mark.parametrize("how", ["cut", "begun bare"])
def test_a_checkpoint_beside_a_cut_claims_nothing_that_goes(how: str) -> None:
    """Found by reading: a follower that began an epoch has a checkpoint due within a second, just when it is cut. It
    noted the recovery point of before once more, between its lowering and the cut; killed then, the log was refused as
    damaged, and the replica lost its seat though it lacked nothing."""

    async def scenario() -> None:
        disk = CrashDisk()
        logs = host(disk, _SlowWorkers())
        opened = await logs.create(ORDERS, ID, CONFIG)
        for _ in range(10):
            append(opened.log, batch(1))
        await opened.flusher.flush()
        await logs.checkpoint({opened.log: 3})

        async def beside() -> None:
            await asyncio.sleep(0.005)
            await logs.checkpoint({opened.log: 3})

        checkpoint = asyncio.create_task(beside())
        if how == "cut":
            await logs.truncate(opened, 4)
        else:
            await logs.begin_at(opened, 40, LeaderEpochs(), (), forget_start=True)
        await checkpoint
        found = await host(disk.kill()).open(ORDERS, ID, CONFIG)
        assert found is not None and found.log.log_end_offset == opened.log.log_end_offset
        await logs.checkpoint({opened.log: 3})  # it is whole again
        assert (await host(disk.kill()).open(ORDERS, ID, CONFIG)) is not None

    run_fast(scenario())


def test_what_comes_after_a_cut_is_not_taken_for_committed() -> None:
    """Found by reading: a follower of an unclean start is cut below its high watermark, and copies what nobody
    committed yet. Killed before the next checkpoint, the high watermark of before covered that: it was served."""

    async def scenario() -> None:
        disk = CrashDisk()
        logs = host(disk)
        opened = await logs.create(ORDERS, ID, CONFIG)
        for _ in range(10):
            append(opened.log, batch(1))
        await logs.checkpoint({opened.log: 10})
        await logs.truncate(opened, 4)
        append(opened.log, batch(3))
        await opened.flusher.flush()
        found = await host(disk.kill()).open(ORDERS, ID, CONFIG)
        assert found is not None and (found.high_watermark, found.log.log_end_offset) == (4, 7)

    run_fast(scenario())


def test_a_stray_is_removed_a_week_after_it_was_seen() -> None:
    """Not a day before, whatever restarts come between."""

    async def scenario() -> None:
        disk = CrashDisk()
        logs = host(disk)
        await logs.close(await logs.create(ORDERS, ID, CONFIG), clean=True)
        await logs.places.move_stray(ORDERS, ID)
        await logs.places.remove_old_strays()
        await asyncio.sleep(4 * DAY_S)
        again = host(disk.crash(SeededRng(1), 0.0))
        await again.places.remove_old_strays()
        await asyncio.sleep(2.9 * DAY_S)
        await again.places.remove_old_strays()
        assert len(await again.places.strays()) == 1
        await asyncio.sleep(0.2 * DAY_S)
        await again.places.remove_old_strays()
        assert await again.places.strays() == []

    run_fast(scenario())
