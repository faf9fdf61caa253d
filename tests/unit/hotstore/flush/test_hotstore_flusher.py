"""When syncs start, what they cover, and what happens when they fail."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from hotstore.errors import LogFailed
from hotstore.flush.flusher import Flusher
from hotstore.flush.sync_rounds import SyncRounds
from hotstore.host.place import Place
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import LogState, PartitionLog
from seams import crash_points
from seams.files.syncs import WorkerSyncs
from seams.loop.workers import Lane
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import (
    LOG_PATH,
    ORDERS,
    RecordingOwner,
    SteppedWorkers,
    append,
    batch,
    new_log,
    settle,
)
from tests.support.scenario import by

SYNC = LogConfig(segment_bytes=600)
OS = LogConfig(segment_bytes=600, flush_sync=False)


class Stage:
    """A log with its flusher and owner, and what the owner was told."""

    def __init__(self, config: LogConfig, *, immediate: bool = False) -> None:
        self.disk = CrashDisk()
        _, self.log = new_log(self.disk, config)
        self.workers = SteppedWorkers(immediate=immediate)
        self.log.owner = self.owner = RecordingOwner()
        self.flushed = self.owner.told_flushed
        self.failed = self.owner.told_failed
        self.flusher = Flusher(
            self.log,
            Place(ORDERS, self.workers),
            SyncRounds(WorkerSyncs(self.workers), self.workers),
        )

    def append(self, count: int = 1, size: int = 20) -> None:
        append(self.log, batch(count, size=size))
        self.flusher.request()

    @property
    def syncs(self) -> int:
        return self.disk.hits["sync"]


def play(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


@by(play)
async def test_one_sync_covers_what_was_appended_before_it() -> None:
    """Appends during a sync wait for the next one; its target was sampled before the call."""
    stage = Stage(SYNC)
    stage.append()
    await settle()
    assert stage.workers.waiting == 1 and stage.workers.lanes == [Lane.FLUSH]
    stage.append(2)
    stage.append(3)
    await settle()
    assert stage.workers.waiting == 1, "one sync at a time"
    await stage.workers.step()
    assert stage.flushed == [1] and stage.log.flushed_end_offset == 1
    assert stage.log.dirty_bytes > 0
    while stage.workers.waiting:
        await stage.workers.step()
    assert stage.flushed == [1, 6] and stage.log.dirty_bytes == 0
    await stage.flusher.close()


@by(play)
async def test_the_end_moves_only_after_the_sync_returned() -> None:
    """At the crash point between, nothing is stable yet."""
    stage = Stage(SYNC, immediate=True)
    ends: list[tuple[str, int]] = []
    real = crash_points.reach

    def seen(point: str) -> None:
        ends.append((point, stage.log.flushed_end_offset))
        real(point)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash_points, "reach", seen)
        stage.append(4)
        await settle()
    assert ends == [("append.written", 0), ("flush.synced", 0)]
    assert stage.log.stable_end_offset == 4
    await stage.flusher.close()


@by(play)
async def test_rolled_files_are_synced_oldest_first_and_the_directory_last() -> None:
    """Names count once the files do; small files wait until the acknowledgements are out."""
    stage = Stage(SYNC)
    effects: list[str] = []
    for _ in range(8):
        append(stage.log, batch(1, size=200))
    stage.disk.on_effect = lambda kind, path: effects.append(f"{kind} {path.rsplit('/', 1)[1]}")
    stage.flusher.request()
    await settle()
    await stage.workers.step()
    bases = [segment.base_offset for segment in stage.log.sealed_segments()]
    active = stage.log.active_info().base_offset
    files = [f"sync {base:020d}.log" for base in (*bases, active)]
    assert effects == files and stage.flushed == [], "a file without its name is not durable"
    await stage.workers.step()
    assert effects == [*files, "sync_dir orders-0"]
    assert stage.flushed == [8] and stage.workers.lanes == [Lane.FLUSH, Lane.FLUSH, Lane.FILES]
    assert stage.log.delete_local_before(2) == [], "index files are not written yet"
    await stage.workers.step()
    assert f"{active:020d}.producers" in stage.disk.list_dir(LOG_PATH)
    assert len(stage.log.delete_local_before(active)) == len(bases)
    await stage.flusher.close()


@by(play)
async def test_a_failed_sync_ends_the_log_and_is_never_repeated() -> None:
    """fsyncgate: whoever waits is told once, appends are refused, no further sync reaches the disk (C10, fault D5)."""
    stage = Stage(SYNC, immediate=True)
    stage.disk.inject("sync", errno.EIO, ".log")
    stage.append()
    waiting = asyncio.ensure_future(stage.flusher.drain(0))
    await settle()
    assert stage.log.state is LogState.FAILED and len(stage.failed) == 1 and stage.flushed == []
    with pytest.raises(LogFailed):
        await waiting
    with pytest.raises(LogFailed):
        append(stage.log, batch())
    with pytest.raises(LogFailed):
        stage.log.read(0, 100, 1, min_one=True)
    before = stage.syncs
    stage.flusher.request()
    stage.flusher.tick(10**9)
    await settle()
    assert stage.syncs == before and len(stage.failed) == 1
    assert stage.log.recovery_point == 0
    await stage.flusher.close()


@by(play)
async def test_os_mode_shows_at_once_and_syncs_on_roll() -> None:
    """The page cache counts; the recovery point still moves by real syncs only."""
    stage = Stage(OS, immediate=True)
    before = stage.syncs
    stage.append(3)
    await settle()
    assert stage.log.stable_end_offset == 3 and stage.log.recovery_point == 0 and stage.syncs == before
    for _ in range(4):
        stage.append(1, size=200)
    while stage.log.recovery_point <= 3:  # the epochs are written beside the sealed segment
        await settle()
    assert stage.syncs > before
    await stage.flusher.close()


@by(play)
async def test_flush_messages_and_flush_ms_are_honoured() -> None:
    """Kafka's two intervals start a sync in `os` mode."""
    by_count = Stage(LogConfig(flush_sync=False, flush_messages=5), immediate=True)
    by_count.append(4)
    await settle()
    assert by_count.log.recovery_point == 0
    by_count.append(1)
    await settle()
    assert by_count.log.recovery_point == 5
    by_time = Stage(LogConfig(flush_sync=False, flush_ms=1_000), immediate=True)
    by_time.append(1)  # at 10 000 ms
    by_time.flusher.tick(10_999)
    await settle()
    assert by_time.log.recovery_point == 0
    by_time.flusher.tick(11_000)
    await settle()
    assert by_time.log.recovery_point == 1
    await by_count.flusher.close()
    await by_time.flusher.close()


def test_one_message_is_sync_by_another_name() -> None:
    """flush.messages=1 is Kafka's way to ask that an acknowledgement waits for the disk."""
    assert LogConfig(flush_sync=False, flush_messages=1).waits_for_flush
    assert not LogConfig(flush_sync=False, flush_messages=2).waits_for_flush


@by(play)
async def test_drain_waits_for_the_budget_in_every_mode() -> None:
    """Appends wait without offsets until the dirty bytes are within the budget (C27)."""
    stage = Stage(OS)
    stage.append(5)
    await stage.flusher.drain(stage.log.dirty_bytes)
    assert stage.workers.waiting == 0
    waiting = asyncio.ensure_future(stage.flusher.drain(10))
    await settle()
    assert not waiting.done() and stage.workers.waiting == 1
    await stage.workers.step()
    await waiting
    assert stage.log.dirty_bytes == 0
    await stage.workers.step()  # the epoch checkpoint
    await stage.flusher.close()


def test_small_files_without_space_are_written_later() -> None:
    """ENOSPC beside the log is no failure of the log: tried again, also when nothing more is appended (fault D6)."""

    async def scene() -> None:
        stage = Stage(SYNC, immediate=True)
        full = stage.disk.inject("write", errno.ENOSPC, ".index.tmp", times=-1)
        for _ in range(4):
            stage.append(1, size=200)
        await settle()
        assert stage.log.state is LogState.ONLINE and stage.log.flushed_end_offset == 4
        assert stage.log.has_sealing
        full.times = 0
        async with asyncio.timeout(5):
            while stage.log.has_sealing:
                await asyncio.sleep(0)
        await stage.flusher.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hotstore.flush.flusher.SEAL_AGAIN_S", 0.001)
        play(scene)


@by(play)
async def test_close_does_not_wait_for_space() -> None:
    """A stop on a full disk ends; the small files are made again at the next start."""
    stage = Stage(SYNC, immediate=True)
    stage.disk.inject("write", errno.ENOSPC, ".index.tmp", times=-1)
    for _ in range(4):
        stage.append(1, size=200)
    await settle()
    await asyncio.wait_for(stage.flusher.close(), 0.5)
    assert stage.log.has_sealing


@by(play)
async def test_close_waits_for_the_running_sync() -> None:
    """Afterwards nothing touches the log's files any more."""
    stage = Stage(SYNC)
    stage.append()
    await settle()
    closing = asyncio.ensure_future(stage.flusher.close())
    await settle()
    assert not closing.done()
    await stage.workers.step()
    await closing
    assert stage.flushed == [1]
    stage.append()
    await settle()
    assert stage.workers.waiting == 0


@by(play)
async def test_flush_makes_everything_durable_in_os_mode() -> None:
    """For seals and stops: a sync whatever the mode."""
    stage = Stage(OS, immediate=True)
    stage.append(2)
    await stage.flusher.flush()
    assert stage.log.flushed_end_offset == 2
    stage.log.roll()
    await stage.flusher.flush()
    assert not stage.log.durability.rolled_unsynced
    await stage.flusher.close()


@by(play)
async def test_silent_producers_are_forgotten_by_the_tick() -> None:
    """Every ten minutes, as in Kafka."""
    stage = Stage(LogConfig(producer_id_expiration_ms=1_000), immediate=True)
    log: PartitionLog = stage.log
    append(log, batch(1, producer_id=1, epoch=0, sequence=0), now_ms=0)
    stage.flusher.tick(500)
    assert len(log.producers) == 1
    stage.flusher.tick(2_000)
    assert len(log.producers) == 1
    stage.flusher.tick(600_500)
    assert len(log.producers) == 0
    await stage.flusher.close()


@patch("hotstore.flush.flusher.LAZY_S", 0.5)  # 10 ms are over at once on a machine that does other work
@by(play)
async def test_a_sync_nobody_waits_for_is_put_off_and_whoever_begins_to_wait_starts_it() -> None:
    """ADR 8: one sync for many acks=1 appends; `hurry` and the timer both start it."""
    stage = Stage(SYNC, immediate=True)
    stage.owner.awaits = False
    stage.append()
    stage.append()
    await settle()
    assert stage.flushed == []
    stage.flusher.hurry()
    await settle()
    assert stage.flushed == [2]
    stage.append()
    await settle()
    assert stage.flushed == [2]
    while stage.flushed == [2]:  # until the timer; the test's own bound ends the wait
        await asyncio.sleep(0.001)
    assert stage.flushed == [2, 3]


@patch("hotstore.flush.flusher.LAZY_S", 5.0)
@by(play)
async def test_what_came_during_a_sync_goes_into_the_next_at_once_only_for_a_waiter() -> None:
    """After a round nobody waits for, the rest is put off as well."""
    stage = Stage(SYNC)

    def syncs_begun() -> int:
        return stage.workers.lanes.count(Lane.FLUSH)

    stage.append()
    await settle()
    stage.append()
    await stage.workers.step()
    await settle()
    assert stage.flushed == [1] and syncs_begun() == 2
    stage.append()
    stage.owner.awaits = False
    while stage.workers.waiting:
        await stage.workers.step()
    await settle()
    assert stage.flushed == [1, 2] and syncs_begun() == 2
    await stage.flusher.close()


@patch("hotstore.flush.flusher.LAZY_S", 5.0)
@by(play)
async def test_a_closed_flusher_leaves_no_timer() -> None:
    """A sync that was put off is the log's own `flush` to make up for; nothing fires after `close`."""
    stage = Stage(SYNC)
    stage.owner.awaits = False
    stage.append()
    await stage.flusher.close()
    stage.flusher.hurry()
    await settle()
    assert stage.workers.waiting == 0
