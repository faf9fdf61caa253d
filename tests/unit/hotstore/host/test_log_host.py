"""All logs of a data directory: opened once, set aside and never overwritten, checkpointed one job at a time."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec
import pytest

from hotstore.errors import ForeignLog, may_pass
from hotstore.host.data_dir import DataDir
from hotstore.host.log_host import LogHost
from hotstore.log.log_config import LogConfig
from logformat.checkpoints import LOG_START_FILE, REPLICATION_FILE, decode_offsets
from logformat.leader_epochs import LeaderEpochs
from logformat.values import TopicPartition
from seams.files.disk import read_file
from seams.files.syncs import WorkerSyncs
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import DATA, LOG_PATH, META, ORDERS, SteppedWorkers, append, batch, flush, new_log
from tests.support.disk.late import must_not_come
from tests.support.fast_loop import FastClock, run_fast

ID = UUID(int=1)
OTHER = UUID(int=2)
CONFIG = LogConfig()
DAY_S = 24 * 3600.0


def host(disk: CrashDisk, workers: Any = None) -> LogHost:
    at_once: Any = SteppedWorkers(immediate=True)
    net: Any = None
    world = World(
        disk, workers or at_once, WorkerSyncs(at_once), FastClock(), SeededRng(1), net, late_effect=must_not_come
    )
    directory = DataDir.open(disk, DATA)
    if directory.meta is None:
        directory.format(META)
    directory.remove_clean_marker()
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


async def test_logs_that_are_opened_together_are_kept_out_of_collections() -> None:
    """A broker that opened 4 000 logs scanned all its objects at each quarter of growth, up to 0.4 s at once."""
    logs, kept = host(CrashDisk()), []
    logs._world = msgspec.structs.replace(logs._world, keep_objects=lambda: kept.append(len(logs.open_logs)))
    for partition in range(130):
        await logs.create(TopicPartition("orders", partition), ID, CONFIG)
    assert kept == [64, 128]


async def test_a_log_is_refused_before_anything_is_made_for_it() -> None:
    """One CreateTopics of 10 000 partitions took all descriptors of the process, and its retries made and removed
    directories all the time."""
    disk = CrashDisk()
    disk.check_descriptors = few = mock.Mock(side_effect=OSError(errno.EMFILE, "too few"))  # type: ignore[method-assign]
    logs = host(disk)
    for opening in (logs.create, logs.open_or_create):
        with pytest.raises(OSError, match="too few") as refused:
            await opening(ORDERS, ID, CONFIG)
        assert may_pass(refused.value)
    assert not [name for name in disk.list_dir(DATA) if "orders" in name]
    few.side_effect = None
    opened = await logs.open_or_create(ORDERS, ID, CONFIG)
    await logs.close(opened, clean=False)
    few.side_effect = OSError(errno.EMFILE, "too few")
    assert await logs.open(ORDERS, ID, CONFIG), "a restart opens what it has"


async def test_seed_92358_the_next_role_begins_at_or_above_the_log_start() -> None:
    """The start may move between two roles: the root of the partition says so."""
    logs = host(CrashDisk())
    opened = await logs.create(ORDERS, ID, CONFIG)
    append(opened.log, batch(5))
    opened.high_watermark = 2
    opened.log.advance_log_start(4)
    assert opened.high_watermark == 4
    opened.high_watermark = 9
    assert opened.high_watermark == 5
    await logs.close(opened, clean=True)


async def test_a_log_is_opened_once_however_often_it_is_asked_for() -> None:
    """Two over one directory would each write what the other does not know."""
    disk = CrashDisk()
    logs = host(disk)
    await logs.close(await logs.create(ORDERS, ID, CONFIG), clean=True)
    assert logs.open_logs == []
    first, second = await asyncio.gather(logs.open(ORDERS, ID, CONFIG), logs.open(ORDERS, ID, CONFIG))
    assert first is not None and first is second and logs.open_logs == [first] and logs.is_open(first)


async def test_an_open_log_gets_the_configs_of_its_next_role() -> None:
    """Regression: it kept those of its last role, and a compacted topic that was assigned to a broker again was not
    examined for missing tombstones."""
    logs = host(CrashDisk())
    opened = await logs.create(ORDERS, ID, CONFIG)
    compacted = msgspec.structs.replace(CONFIG, compacts=True)
    assert await logs.open(ORDERS, ID, compacted) is opened and opened.log.config is compacted


async def test_a_log_of_another_topic_is_left_alone() -> None:
    """It is that topic's until it is set aside (C9), and then no start opens it."""
    disk = CrashDisk()
    logs = host(disk)
    assert await logs.open(ORDERS, ID, CONFIG) is None
    await logs.close(await logs.create(ORDERS, ID, CONFIG), clean=True)
    with pytest.raises(ForeignLog):
        await logs.open(ORDERS, OTHER, CONFIG)
    await logs.set_aside(ORDERS, OTHER)
    again = await logs.open(ORDERS, ID, CONFIG)
    assert again is not None, "it is not the one that was to go"
    await logs.close(again, clean=True)
    await logs.set_aside(ORDERS, ID)
    assert await logs.open(ORDERS, OTHER, CONFIG) is None
    left = [name for name in disk.list_dir(DATA) if name.startswith("orders-0.")]
    assert len(left) == 1
    await logs.directories.delete_set_aside()
    assert not any(name.startswith("orders-0") for name in disk.list_dir(DATA))


async def test_a_log_is_made_where_no_other_topic_s_lies_when_its_turn_comes() -> None:
    """Whoever asks for it asked whose the directory is in an earlier turn; it may be another one's by now."""
    disk = CrashDisk()
    logs = host(disk)
    await logs.close(await logs.create(ORDERS, ID, CONFIG), clean=True)
    with pytest.raises(ForeignLog):
        await logs.create(ORDERS, OTHER, CONFIG)
    assert await logs.topic_id_at(ORDERS) == ID
    await logs.set_aside(ORDERS, ID)
    assert (await logs.create(ORDERS, OTHER, CONFIG)).topic_id == OTHER


async def test_what_lies_in_a_new_logs_place_is_set_aside_not_taken_over() -> None:
    """A directory without a log may hold what only its owner understands (a reservation, say): the new log must not be
    taken for the one that this belongs to, nor is it removed."""
    disk = CrashDisk()
    logs = host(disk)
    disk.make_dirs(LOG_PATH)
    disk.open(f"{LOG_PATH}/thermocline-reservation", write=True, create=True).write_at(0, [b"of an older log"])
    assert await logs.open(ORDERS, ID, CONFIG) is None
    opened = await logs.create(ORDERS, ID, CONFIG)
    assert opened.log.log_end_offset == 0 and disk.stat(f"{LOG_PATH}/thermocline-reservation") is None
    (aside,) = [name for name in disk.list_dir(DATA) if name.startswith("orders-0.")]
    assert read_file(disk, f"{DATA}/{aside}/thermocline-reservation") == b"of an older log"


async def test_a_log_that_cannot_be_left_clean_says_so_and_is_closed() -> None:
    """The marker must not be written then; its neighbours are closed all the same."""
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


class _SlowWorkers:
    """What is asked takes a moment, in which the loop has others to serve."""

    async def run(self, function: Callable[..., Any], *args: Any, lane: object = None) -> Any:
        result = function(*args)
        await asyncio.sleep(0.01)
        return result


@pytest.mark.parametrize("how", ["cut", "begun bare"])
async def test_a_checkpoint_beside_a_cut_claims_nothing_that_goes(how: str) -> None:
    """Found by reading: a follower that began an epoch has a checkpoint due within a second, just when it is cut. It
    noted the recovery point of before once more, between its lowering and the cut; killed then, the log was refused as
    damaged, and the replica lost its seat though it lacked nothing."""
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
        await logs.lend(opened, "follower").truncate(4)
    else:
        await logs.lend(opened, "follower").begin_at(40, LeaderEpochs(), (), forget_start=True)
    await checkpoint
    found = await host(disk.kill()).open(ORDERS, ID, CONFIG)
    assert found is not None and found.log.log_end_offset == opened.log.log_end_offset
    await logs.checkpoint({opened.log: 3})  # it is whole again
    assert (await host(disk.kill()).open(ORDERS, ID, CONFIG)) is not None


@pytest.mark.parametrize("after_s", [0.0, 0.012, 0.022, 0.032])
async def test_a_log_start_noted_beside_a_bare_beginning_is_the_new_one_or_none(after_s: float) -> None:
    """Its leader's start moved twice just before: the second was noted after the beginning had forgotten the first.
    Killed then, the log was refused as one without its first segments."""
    disk = CrashDisk()
    logs = host(disk, _SlowWorkers())
    opened = await logs.create(ORDERS, ID, CONFIG)
    for _ in range(10):
        append(opened.log, batch(1))
    await opened.flusher.flush()
    lease = logs.lend(opened, "follower")
    lease.advance_log_start(3)
    begin = asyncio.create_task(lease.begin_at(40, LeaderEpochs(), (), forget_start=True))
    await asyncio.sleep(after_s)
    note = asyncio.create_task(lease.checkpoint_start())
    while not (begin.done() and note.done()):
        found = await host(disk.kill()).open(ORDERS, ID, CONFIG)
        assert found is not None and found.log.log_end_offset in (10, 40)
        await asyncio.sleep(0.001)
    await asyncio.gather(begin, note)
    found = await host(disk.kill()).open(ORDERS, ID, CONFIG)
    assert found is not None and found.log.log_start_offset == 40


async def test_what_comes_after_a_cut_is_not_taken_for_committed() -> None:
    """Found by reading: a follower of an unclean start is cut below its high watermark, and copies what nobody
    committed yet. Killed before the next checkpoint, the high watermark of before covered that: it was served."""
    disk = CrashDisk()
    logs = host(disk)
    opened = await logs.create(ORDERS, ID, CONFIG)
    for _ in range(10):
        append(opened.log, batch(1))
    await logs.checkpoint({opened.log: 10})
    await logs.lend(opened, "follower").truncate(4)
    append(opened.log, batch(3))
    await opened.flusher.flush()
    found = await host(disk.kill()).open(ORDERS, ID, CONFIG)
    assert found is not None and (found.high_watermark, found.log.log_end_offset) == (4, 7)


@pytest.mark.virtual_s(14 * 24 * 3600)
async def test_a_stray_is_removed_a_week_after_it_was_seen() -> None:
    """Not a day before, whatever restarts come between."""
    disk = CrashDisk()
    logs = host(disk)
    await logs.close(await logs.create(ORDERS, ID, CONFIG), clean=True)
    await logs.move_stray(ORDERS, ID)
    await logs.directories.remove_old_strays()
    await asyncio.sleep(4 * DAY_S)
    again = host(disk.crash(SeededRng(1), 0.0))
    await again.directories.remove_old_strays()
    await asyncio.sleep(2.9 * DAY_S)
    await again.directories.remove_old_strays()
    assert len(await again.directories.strays()) == 1
    await asyncio.sleep(0.2 * DAY_S)
    await again.directories.remove_old_strays()
    assert await again.directories.strays() == []


async def test_starts_of_many_logs_are_checkpointed_together() -> None:
    """A restore notes a thousand: each wrote the starts of all, or took a worker to see that another had. One that
    waits while the file is written is in the next write, and asks no worker where that one had it."""
    disk = CrashDisk()
    logs = host(disk)
    opened = [await logs.create(TopicPartition("orders", index), ID, CONFIG) for index in range(20)]
    for each in opened:
        append(each.log, batch(9))
        await each.flusher.flush()
        each.log.advance_log_start(5)
    await asyncio.sleep(1)  # what else they have to write
    before, workers = disk.hits["rename"], len(logs._world.workers.lanes)  # type: ignore[attr-defined]
    await asyncio.gather(*(logs.checkpoint_start(each) for each in opened))
    assert disk.hits["rename"] - before == 1
    assert len(logs._world.workers.lanes) - workers == 1  # type: ignore[attr-defined]
    starts = decode_offsets(read_file(disk, f"{DATA}/{LOG_START_FILE}"), "")
    assert [starts[each.place] for each in opened] == [5] * 20
    for each in opened:
        await each.flusher.close()


def test_a_checkpoint_that_is_being_written_is_not_written_yet() -> None:
    """Its maker may fail, or the machine, before it is durable: who looks meanwhile must not take it for done."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(9))
    flush(log)
    log.advance_log_start(5)
    job = directory.checkpoints.sample_start(log)
    seen = []
    disk.on_effect = lambda kind, path: seen.append(job.is_done)
    assert not job.is_done
    job.run()
    assert job.is_done and seen and not any(seen)


def test_a_checkpoint_whose_write_fails_during_the_look_is_not_written() -> None:
    """Regression: the worker of another log failed between the two looks of `are_saved`, and the name went from the
    files that are being written to the outdated ones. A log start that no file has then counted as durable."""
    disk = CrashDisk()
    directory, log = new_log(disk, CONFIG)
    append(log, batch(9))
    flush(log)
    log.advance_log_start(5)
    job = directory.checkpoints.sample_start(log)
    is_writing, fails = threading.Event(), threading.Event()

    def refuse(kind: str, path: str) -> None:
        if LOG_START_FILE not in path:
            return  # the lock
        is_writing.set()
        assert fails.wait(5)
        raise OSError(errno.ENOSPC, "No space left on device")

    def write() -> None:
        with pytest.raises(OSError, match="No space"):
            job.run()

    class LookedAt(set[str]):
        def isdisjoint(self, names: Iterable[object], /) -> bool:
            fails.set()
            writer.join(5)
            return super().isdisjoint(names)

    directory.checkpoints._saving = LookedAt()
    disk.on_effect = refuse
    writer = threading.Thread(target=write)
    writer.start()
    assert is_writing.wait(5)
    assert not job.is_done
    assert not writer.is_alive()


async def test_a_log_is_bare_until_somebody_puts_a_file_beside_it() -> None:
    """One that lay here may have a reservation; of one that was just made nobody needs to look for it."""
    disk = CrashDisk()
    logs = host(disk)
    made = await logs.open_or_create(ORDERS, ID, CONFIG)
    assert made.is_bare and await logs.open_or_create(ORDERS, ID, CONFIG) is made
    await logs.close(made, clean=True)
    again = await logs.open(ORDERS, ID, CONFIG)
    assert again is not None and not again.is_bare
    await logs.close(again, clean=True)


@pytest.mark.parametrize("flush_sync", [True, False])
async def test_a_log_that_this_process_left_unclean_is_not_believed_to_be_flushed(flush_sync: bool) -> None:
    """The marker of the process before was believed at every opening: what was appended since counted as durable, and
    after a power cut the log was refused as damaged."""
    config = LogConfig(flush_sync=flush_sync)
    disk = CrashDisk()
    logs = host(disk)
    opened = await logs.create(ORDERS, ID, config)
    append(opened.log, batch(3))
    assert await logs.close(opened, clean=True)
    logs._data_dir.mark_clean()
    logs._data_dir.close()
    logs = host(disk)
    assert logs.was_clean
    again = await logs.open(ORDERS, ID, config)
    assert again is not None
    append(again.log, batch(3))
    await logs.close(again, clean=False)
    again = await logs.open(ORDERS, ID, config)
    assert again is not None and again.log.log_end_offset == 6
    await logs.checkpoint({again.log: 6})
    cut = host(disk.crash(SeededRng(1), 0.0))
    found = await cut.open(ORDERS, ID, config)
    assert found is not None and found.log.log_end_offset == 6


async def test_a_directory_whose_name_was_not_made_durable_is_made_again() -> None:
    """The rename had taken effect, the sync of the name failed: who tried again found the log made, acknowledged in it,
    and a power cut took all of it."""
    disk = CrashDisk()
    logs = host(disk)
    disk.inject("sync_dir", errno.EIO, DATA)
    with pytest.raises(OSError):
        await logs.open_or_create(ORDERS, ID, CONFIG)
    opened = await logs.open_or_create(ORDERS, ID, CONFIG)
    append(opened.log, batch(5))
    await opened.flusher.flush()
    again = host(disk.crash(SeededRng(1), 0.0))
    found = await again.open(ORDERS, ID, CONFIG)
    assert found is not None and found.log.log_end_offset == 5


async def test_a_name_that_fails_while_another_is_synced_is_synced_later() -> None:
    """Logs are made by several workers. The sync for one name was over, the making of another failed then, and the mark
    of the second was removed with that of the first: a power cut took the second log, with acknowledged records."""
    disk = CrashDisk()
    logs, payments = host(disk), TopicPartition("payments", 0)
    real = disk.sync_dir
    disk.inject("sync_dir", errno.EIO, DATA)
    with pytest.raises(OSError):
        await logs.create(ORDERS, ID, CONFIG)

    def synced(path: str) -> None:
        real(path)
        disk.sync_dir = real  # type: ignore[method-assign]
        disk.inject("sync_dir", errno.EIO, DATA)
        with pytest.raises(OSError):
            logs._make(payments, OTHER, CONFIG)

    disk.sync_dir = synced  # type: ignore[method-assign]
    assert await logs.open(ORDERS, ID, CONFIG) is not None
    opened = await logs.open_or_create(payments, OTHER, CONFIG)
    append(opened.log, batch(5))
    await opened.flusher.flush()
    again = host(disk.crash(SeededRng(1), 0.0))
    found = await again.open(payments, OTHER, CONFIG)
    assert found is not None and found.log.log_end_offset == 5


async def test_what_is_removed_of_a_deleted_topic_is_not_the_next_one_s_open_log() -> None:
    """The name is another topic's by then, and its log is open there."""
    disk = CrashDisk()
    logs = host(disk)
    opened = await logs.create(ORDERS, OTHER, CONFIG)
    await logs.set_aside(ORDERS, ID)
    assert await logs.move_stray(ORDERS, ID) is None
    await logs.close_of(ORDERS, ID)
    assert logs.is_open(opened) and disk.stat(LOG_PATH) is not None
    await logs.close(opened, clean=True)


async def test_the_next_topic_of_a_name_waits_while_a_log_of_the_one_before_is_made() -> None:
    """Its turn comes when that is made, and its log when that one is closed and out of the way."""
    disk, goes_on = CrashDisk(), asyncio.Event()

    class Held:
        async def run(self, function: Callable[..., Any], *args: Any, lane: object = None) -> Any:
            if ID in args:
                await goes_on.wait()
            return function(*args)

    logs = host(disk, Held())
    first = asyncio.ensure_future(logs.create(ORDERS, ID, CONFIG))
    await asyncio.sleep(1.0)
    second = asyncio.ensure_future(logs.create(ORDERS, OTHER, CONFIG))
    await asyncio.sleep(20.0)
    assert not first.done() and not second.done()
    goes_on.set()
    made = await first
    await asyncio.sleep(1.0)
    assert not second.done(), "the log of the topic before is open there"
    await logs.set_aside(ORDERS, ID)
    assert not logs.is_open(made) and logs.is_open(await second)


@pytest.mark.parametrize("how", ["set aside", "kept as a stray"])
async def test_a_log_that_is_wanted_again_when_its_removal_has_its_turn_stays(how: str) -> None:
    """Whoever asked for the turn asked when it was to go; it is open, and somebody's again."""
    disk, goes_on, wanted = CrashDisk(), asyncio.Event(), [True]
    logs = host(disk)
    opened = await logs.create(ORDERS, ID, CONFIG)
    append(opened.log, batch(5))
    held = asyncio.ensure_future(opened.at.alone(goes_on.wait))
    await asyncio.sleep(1.0)
    move = logs.set_aside if how == "set aside" else logs.move_stray
    removal = asyncio.ensure_future(move(ORDERS, ID, lambda: wanted[0]))
    await asyncio.sleep(1.0)
    wanted[0] = False
    goes_on.set()
    await asyncio.gather(held, removal)
    assert logs.is_open(opened) and opened.log.log_end_offset == 5
    assert [name for name in disk.list_dir(DATA) if name.startswith("orders-0")] == ["orders-0"]
    await logs.close(opened, clean=True)


async def test_no_high_watermark_above_the_logs_end_is_checkpointed() -> None:
    """A follower whose log was cut lowers its high watermark after that; records that came later would count as
    committed."""
    disk = CrashDisk()
    logs = host(disk)
    opened = await logs.create(ORDERS, ID, CONFIG)
    await logs.checkpoint({opened.log: 7})
    assert logs._data_dir.checkpoints.high_watermark(ORDERS) == 0


async def test_a_high_watermark_that_is_only_noted_is_written_before_a_pass_changes_the_log() -> None:
    """A checkpoint that failed had noted it. The pass then relied on a file that still had the lower one."""
    disk = CrashDisk()
    logs = host(disk)
    opened = await logs.create(ORDERS, ID, CONFIG)
    append(opened.log, batch(5))
    await opened.flusher.flush()
    disk.inject("write", errno.ENOSPC, f"{REPLICATION_FILE}.tmp")
    with pytest.raises(OSError, match="injected"):
        await logs.checkpoint({opened.log: 5})
    await logs.lend(opened, "leader").checkpoint_committed(4)
    found = await host(disk.kill()).open(ORDERS, ID, CONFIG)
    assert found is not None
    assert found.high_watermark == 5
    await opened.flusher.close()
