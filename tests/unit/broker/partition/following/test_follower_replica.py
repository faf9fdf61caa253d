"""A copy alone, over a real log: what it reports, what it refuses, how it is cut (R3)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode
from broker.metadata.records import Row
from broker.partition.following.follower_replica import FollowerReplica
from broker.partition.log_failures import LogFailures
from broker.replication.catch_up import ReplicationCounters
from broker.replication.follower import FetchPosition
from broker.wire.messages import FetchResponseEpochEndOffset, FetchResponsePartition
from coldstore.object_store import AccessRefused, ObjectMissing, StoreUnavailable
from hotstore.errors import DivergingAppend, LogFull
from hotstore.host.data_dir import DataDir
from hotstore.host.lease import Lease
from hotstore.host.log_host import LogHost
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_loading import recover_log
from logformat.compaction.filler import filler_batch
from logformat.errors import Corrupt
from logformat.leader_epochs import LeaderEpochs
from logformat.record_batch import CorruptBatch
from logformat.records import Record, encode_batch
from logformat.transaction_marker import TransactionMarker, marker_batch
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import DATA, META, ORDERS, SteppedWorkers
from tests.support.disk.syncs_in_hand import InHand
from tests.support.fast_loop import FastClock, run_fast
from tests.support.scenario import by
from tiering.opening.cold_start import ColdStart
from tiering.opening.reservation import ReportedEnd

TOPIC_ID = UUID(int=1)
EPOCH = 4


class Cold:
    """A bucket that holds all below any offset, written in epoch 2."""

    async def state_at(self, topic_id: UUID, index: int, offset: int, since: int) -> ColdStart:
        return ColdStart(LeaderEpochs().assign(2, 0), (), offset - since)

    def view(self, topic_id: UUID, index: int, end: Callable[[], int]) -> Any:
        return None  # nobody reads what lies below the local log

    def note_reported_end(self, topic_id: UUID, index: int, end: ReportedEnd) -> None:
        self.end = end

    def forget(self, topic_id: UUID, index: int) -> None:
        pass


class Away(Cold):
    """One that fails."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    async def state_at(self, topic_id: UUID, index: int, offset: int, since: int) -> ColdStart:
        raise self.failure


class Watched(FollowerReplica):
    """Remembers what its fetcher takes its next question to be, which looks when it answered or refused, or was told
    that something moved."""

    known: FetchPosition | None = None

    def look(self) -> None:
        self.known = self.next_fetch()

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        try:
            return super().answered(asked, answer, broker_epoch)
        finally:
            self.look()

    def refused(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        is_known = super().refused(asked, answer)
        self.look()
        return is_known


class Copy:
    def __init__(
        self, logs: LogHost, followed: Watched, tasks: Tasks, syncs: InHand, disk: CrashDisk, log_failures: LogFailures
    ) -> None:
        self.log_failures = log_failures
        self.logs = logs
        self.it = followed
        self.tasks = tasks
        self.syncs = syncs
        self.disk = disk

    def asked(self) -> FetchPosition:
        found = self.it.next_fetch()
        assert self.it.known == found, "its fetcher is told of all that changes what is asked next"
        assert found is not None
        return found

    def given(self, *batches: bytes, high_watermark: int = 0, **fields: Any) -> bool:
        """An answer to what it asks next."""
        answer = FetchResponsePartition(high_watermark=high_watermark, **{"log_start_offset": 0, **fields})
        answer.records = memoryview(b"".join(batches))
        return self.it.answered(self.asked(), answer, 7)


def batch_at(offset: int, epoch: int = EPOCH, count: int = 1) -> bytes:
    return encode_batch([Record(offset + at, 1_000, None, b"v") for at in range(count)], leader_epoch=epoch)


def watched(lease: Lease, row: Row, tasks: Tasks, log_failures: LogFailures) -> Watched:
    def moved() -> None:
        made.look()

    made = Watched(lease, row, Cold(), tasks, FastClock(), set(), log_failures, ReplicationCounters(), moved, moved)
    made.look()  # it is followed from now on
    return made


def copying(scenario: Callable[[Copy], Awaitable[None]], **config: Any) -> None:
    async def run() -> None:
        disk, workers, syncs = CrashDisk(), SteppedWorkers(immediate=True), InHand()
        net: Any = None
        world = World(disk, workers, syncs, FastClock(), SeededRng(1), net)  # type: ignore[arg-type]
        directory = DataDir.open(disk, DATA)
        directory.format(META)
        directory.remove_clean_marker()
        logs, tasks = LogHost(directory, world), Tasks()
        opened = await logs.create(ORDERS, TOPIC_ID, LogConfig(**config))
        row = Row((1, 2), 1, EPOCH, 1, (1, 2), EPOCH)
        log_failures = LogFailures()
        followed = watched(logs.lend(opened, "follower"), row, tasks, log_failures)
        copy = Copy(logs, followed, tasks, syncs, disk, log_failures)
        await scenario(copy)
        assert copy.it.lease.is_over or copy.it.known == copy.it.next_fetch()
        await tasks.close()

    run_fast(run())


@by(copying)
async def test_its_next_question_says_what_is_flushed_and_nothing_else(copy: Copy, /) -> None:
    """It is the acknowledgement: a written end would claim what a power cut takes."""
    assert copy.given(batch_at(0, count=3), high_watermark=2)
    assert copy.it.log.log_end_offset == 3 and copy.asked() == FetchPosition(0, -1, EPOCH)
    assert copy.it.high_watermark == 0
    wait_flushed = asyncio.ensure_future(copy.it.wait_flushed())
    await asyncio.sleep(0.01)
    assert not wait_flushed.done() and len(copy.syncs.asked) == 1
    copy.syncs.answer()
    await wait_flushed
    assert copy.asked() == FetchPosition(3, EPOCH, EPOCH) and copy.it.high_watermark == 2


@by(copying, flush_sync=False)
async def test_cluster_d22_who_led_without_a_record_takes_older_records_there(copy: Copy, /) -> None:
    """It was elected and nobody copied from it before the next election: the next leader goes on, at this log's end, in
    the epoch before its own. Every answer was refused, for the log's own epoch is later, and it never caught up."""
    assert copy.given(batch_at(0, epoch=2, count=3))
    copy.it.log.begin_epoch(EPOCH - 1)
    await copy.it.over()
    row, logs, tasks = Row((1, 2), 1, EPOCH, 1, (1, 2), EPOCH), copy.logs, copy.tasks
    copy.it = watched(logs.lend(copy.it.opened, "follower"), row, tasks, LogFailures())
    older = batch_at(3, epoch=2)
    assert copy.asked() == FetchPosition(3, 2, EPOCH) and not copy.given(older)
    await asyncio.sleep(0.01)
    copy.syncs.answer()  # what stays is flushed before anything goes
    await asyncio.sleep(0.1)
    assert copy.given(older) and copy.asked() == FetchPosition(4, 2, EPOCH)


@by(copying, flush_sync=False)
async def test_with_os_flush_what_is_written_counts(copy: Copy, /) -> None:
    """As its leader's own end does in that mode."""
    assert copy.given(batch_at(0, count=3), high_watermark=2)
    await copy.it.wait_flushed()
    assert copy.asked() == FetchPosition(3, EPOCH, EPOCH) and copy.it.high_watermark == 2


@by(copying)
async def test_what_is_damaged_or_does_not_follow_leaves_all_as_it_was(copy: Copy, /) -> None:
    """It is asked for again: never skipped, never half taken."""
    damaged = bytearray(batch_at(0))
    damaged[-1] ^= 1
    for batches, refusal in (
        ((batch_at(0), bytes(damaged)), CorruptBatch),
        ((batch_at(1),), DivergingAppend),
        ((batch_at(0)[:-1],), CorruptBatch),
    ):
        with pytest.raises(refusal):
            copy.given(*batches, high_watermark=1)
    assert copy.it.log.log_end_offset == 0 and copy.asked() == FetchPosition(0, -1, EPOCH)
    assert copy.given(batch_at(0)) and not copy.it.failure


@by(copying)
async def test_a_damaged_base_offset_restarts_no_log_whose_active_segment_is_empty(copy: Copy, /) -> None:
    """The checksum does not cover it. The log was taken for an empty one, which begins with the batch it gets."""
    assert copy.given(batch_at(0, count=3), high_watermark=3)
    wait_flushed = asyncio.ensure_future(copy.it.wait_flushed())
    await asyncio.sleep(0.01)
    copy.syncs.answer()
    await wait_flushed
    copy.it.lease.roll()
    with pytest.raises(CorruptBatch):
        copy.given(batch_at(1, count=4), high_watermark=3)
    await asyncio.sleep(0.1)
    assert (copy.it.log.log_end_offset, copy.it.log.local_log_start_offset) == (3, 0)


@by(copying)
async def test_a_log_without_records_does_not_restart_with_a_batch_below_its_fetch_offset(copy: Copy, /) -> None:
    """The checksum does not cover the base offset. An in-sync replica without records began again where the damaged
    batch said."""
    out = FetchResponsePartition(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=520, verified_end=520)
    assert copy.it.refused(copy.asked(), out)
    await asyncio.sleep(0.1)
    copy.it.log.advance_log_start(520)
    copy.given(high_watermark=520, log_start_offset=520)
    batch = batch_at(520, count=50)
    damaged = bytearray(batch)
    damaged[6] ^= 2  # it begins at 8
    with pytest.raises(CorruptBatch):
        copy.given(bytes(damaged), high_watermark=520, log_start_offset=520)
    assert copy.given(batch, high_watermark=520, log_start_offset=520)
    log = copy.it.log
    assert (log.local_log_start_offset, log.log_end_offset, copy.it.failure) == (520, 570, "")


@by(copying)
async def test_a_damaged_leader_epoch_does_not_enter_the_lineage(copy: Copy, /) -> None:
    """The checksum does not cover it. A replica with an epoch that no leader had was out of range for every leader,
    and could not append as one."""
    batch = batch_at(0, count=3)
    damaged = bytearray(batch)
    damaged[13] ^= 1  # epoch 4 becomes 65 540
    with pytest.raises(CorruptBatch):
        copy.given(bytes(damaged), high_watermark=3)
    assert copy.given(batch, high_watermark=3) and copy.it.log.leader_epoch == EPOCH


@by(copying)
async def test_what_comes_damaged_twice_is_told_until_it_comes_whole(copy: Copy, /) -> None:
    """Once may have been its way; twice at one offset its leader's disk (R3)."""
    damaged = bytearray(batch_at(0))
    damaged[-1] ^= 1
    for times in (1, 2):
        with pytest.raises(CorruptBatch):
            copy.given(bytes(damaged))
        assert bool(copy.log_failures.unfit) is (times == 2)
    assert copy.given(batch_at(0)) and not copy.log_failures.unfit


@by(copying)
async def test_a_log_that_went_on_otherwise_is_cut_there_and_asked_for_again(copy: Copy, /) -> None:
    """The answer's end of an epoch of its own (KIP-595); nothing is asked while it is cut."""
    assert copy.given(batch_at(0, epoch=1), batch_at(1, epoch=1), batch_at(2, epoch=1))
    wait_flushed = asyncio.ensure_future(copy.it.wait_flushed())
    await asyncio.sleep(0.01)
    copy.syncs.answer()
    await wait_flushed
    assert not copy.given(diverging_epoch=FetchResponseEpochEndOffset(epoch=1, end_offset=2))
    assert copy.it.next_fetch() is None
    await asyncio.sleep(0.1)
    assert copy.asked() == FetchPosition(2, 1, EPOCH) and copy.it.log.log_end_offset == 2
    assert copy.given(batch_at(2))


@by(copying, flush_sync=False)
async def test_a_copy_that_ends_within_its_leaders_filler_takes_the_rest_of_it(copy: Copy, /) -> None:
    """Simulated seeds 62, 63 and 86: the leader's cleaner merged fillers across where the copy ended while it was away.
    It was answered with a batch that began below, and never caught up."""
    assert copy.given(batch_at(0, count=2), high_watermark=2)
    await copy.it.wait_flushed()
    assert copy.given(filler_batch(0, 5, EPOCH), batch_at(5), high_watermark=6)
    assert copy.it.log.log_end_offset == 6 and copy.it.log.local_log_start_offset == 0 and not copy.it.failure
    damaged = bytearray(filler_batch(3, 9, EPOCH))
    damaged[-1] ^= 1
    with pytest.raises(CorruptBatch):
        copy.given(bytes(damaged))
    with pytest.raises(CorruptBatch):
        copy.given(batch_at(4, count=4))  # no filler: it is never cut


@by(copying, flush_sync=False)
async def test_an_open_transaction_keeps_the_cleaner_of_a_copy_back(copy: Copy, /) -> None:
    """Regression: a copy's cleaner went up to its high watermark. Undecided records drove out committed ones of their
    keys; after an abort neither was there, and the next leader had lost an acknowledged record (TX17)."""
    undecided = encode_batch(
        [Record(2, 1_000, b"k", b"v")],
        leader_epoch=EPOCH,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    assert copy.given(batch_at(0, count=2), undecided, batch_at(3, count=2), high_watermark=5)
    await copy.it.wait_flushed()
    copy.given(high_watermark=5)
    assert copy.it.high_watermark == 5 and copy.it.cleanable_end() == 2
    assert copy.given(marker_batch(TransactionMarker(7, 0, False, 0), 5, EPOCH, 1_000), high_watermark=5)
    await copy.it.wait_flushed()
    assert copy.it.cleanable_end() == 2, "its marker is not committed"
    copy.given(high_watermark=6)
    assert copy.it.high_watermark == copy.it.cleanable_end() == 6


@by(copying)
async def test_what_only_the_bucket_has_is_begun_behind(copy: Copy, /) -> None:
    """OFFSET_MOVED_TO_TIERED_STORAGE: at the verified end, with the lineage that the bucket knows."""
    moved = FetchResponsePartition(error_code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start_offset=0)
    moved.verified_end = 500
    assert copy.it.refused(copy.asked(), moved) and copy.it.next_fetch() is None
    await asyncio.sleep(0.1)
    assert copy.asked() == FetchPosition(500, 2, EPOCH, copies_on=True) and copy.it.high_watermark == 500
    again = FetchResponsePartition(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=0, verified_end=500)
    assert not copy.it.refused(copy.asked(), again), "it is there already: nothing to be done about it"


@by(copying)
async def test_a_copy_asks_the_bucket_again_where_to_begin(copy: Copy, /) -> None:
    """An outage, credentials that expired for a moment, or what was damaged on its way, are no reason to copy nothing
    any more until the next epoch (simulated seed 14 of several brokers)."""
    moved = FetchResponsePartition(error_code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start_offset=0)
    moved.verified_end = 500
    refused = AccessRefused("403 ExpiredToken")
    failures = StoreUnavailable("down"), Corrupt("a flipped bit"), refused, ObjectMissing("gone since")
    for failure in failures:
        copy.it._truncation._cold = Away(failure)
        assert copy.it.refused(copy.asked(), moved) and copy.it.next_fetch() is None
        await asyncio.sleep(10.0)
        # What is damaged there twice may be on its leader's disk alone.
        was_unusable = isinstance(failure, ObjectMissing)
        assert copy.asked() == FetchPosition(0, -1, EPOCH, copies_on=was_unusable) and not copy.it.failure
    copy.it._truncation._cold = Cold()
    assert copy.it.refused(copy.asked(), moved)
    await asyncio.sleep(0.1)
    assert copy.asked() == FetchPosition(500, 2, EPOCH, copies_on=True)
    copy.it._truncation._cold = Away(StoreUnavailable("down"))
    moved.verified_end = 900
    assert copy.it.refused(copy.asked(), moved)
    await asyncio.sleep(0.1)
    async with asyncio.timeout(0.1):
        await copy.it.over()


@by(copying)
async def test_a_log_start_within_a_batch_is_begun_with_the_whole_batch(copy: Copy, /) -> None:
    """DeleteRecords left it there, and no leader can give less than a batch; a copy that lost its disk refused what it
    was given for ever, and its in-sync set stayed without it (simulated seed 33 of several brokers; KAFKA-6361)."""
    out = FetchResponsePartition(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=502, verified_end=500)
    assert copy.it.refused(copy.asked(), out)
    await asyncio.sleep(0.1)
    assert copy.asked().offset == 502
    copy.it.log.advance_log_start(502)
    assert not copy.given(batch_at(500, count=5), batch_at(505), high_watermark=505)
    assert copy.it.next_fetch() is None
    await asyncio.sleep(0.1)
    copy.syncs.answer()
    await asyncio.sleep(0.1)
    assert copy.asked() == FetchPosition(506, EPOCH, EPOCH, 502)
    log = copy.it.log
    assert (log.local_log_start_offset, log.log_start_offset, log.log_end_offset) == (502, 502, 506)
    assert copy.it.high_watermark <= 505
    with pytest.raises(CorruptBatch):
        copy.given(batch_at(505))  # only where nothing is yet


@pytest.mark.parametrize("is_tiered", [False, True])
@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_power_cut_while_a_copy_begins_with_a_whole_batch_is_no_damage(
    is_tiered: bool, is_checkpointed: bool, keep: float
) -> None:
    """The log starts within the batch, so it ended below its start, and below its recovery point. A start said that it
    is damaged, and made a new copy."""

    async def begun(copy: Copy, /) -> None:
        verified_end = 500 if is_tiered else -1
        out = FetchResponsePartition(
            error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=502, verified_end=verified_end
        )
        assert copy.it.refused(copy.asked(), out)
        await asyncio.sleep(0.1)
        copy.it.log.advance_log_start(502)
        if is_checkpointed:
            await copy.it.lease.checkpoint()
        disks = []
        copy.disk.on_effect = lambda kind, path: disks.append(copy.disk.crash(SeededRng(len(disks)), keep))
        copy.given(batch_at(500, count=5), high_watermark=505, log_start_offset=502)
        await asyncio.sleep(0.1)
        copy.disk.on_effect = None
        disks += [copy.disk.crash(SeededRng(number), keep) for number in range(20)]
        assert len(disks) > 30
        for disk in disks:
            log = recover_log(DataDir.open(disk, DATA), ORDERS, LogConfig(tiered=is_tiered), 0)
            assert log.log_end_offset in (502, 505) and log.log_start_offset in (0, 502)  # 0: not noted yet

    copying(begun, tiered=is_tiered)


@by(copying)
async def test_a_copy_that_begins_with_a_whole_batch_hears_what_came_with_it(copy: Copy, /) -> None:
    """Its leader says high watermark and log start once: where nothing was written any more, as below the minimum, it
    asked at the log's end for ever, agreed with nothing, and did not join (simulated seed 11779 of several brokers)."""
    out = FetchResponsePartition(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=502, verified_end=500)
    assert copy.it.refused(copy.asked(), out)
    await asyncio.sleep(0.1)
    copy.it.log.advance_log_start(502)
    copy.given(batch_at(500, count=5), batch_at(505), high_watermark=506, log_start_offset=504)
    assert copy.it.readable() is None
    await asyncio.sleep(0.1)
    assert copy.it.high_watermark < 506, "not yet: it is not flushed"
    copy.syncs.answer()
    await asyncio.sleep(0.1)
    assert copy.it.high_watermark == 506 and copy.it.readable() is not None
    assert copy.asked() == FetchPosition(506, EPOCH, EPOCH, 504) and copy.it.opened.seen_epoch == EPOCH


@by(copying)
async def test_a_copy_that_has_no_room_for_the_batch_it_begins_with_is_opened_again(copy: Copy, /) -> None:
    """It was copied no more until its leader changed, though there was room a second later (simulated seed 13782 of
    several brokers)."""
    out = FetchResponsePartition(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=502, verified_end=500)
    assert copy.it.refused(copy.asked(), out)
    await asyncio.sleep(0.1)
    copy.it.log.advance_log_start(502)
    copy.it.lease.append_as_follower = Mock(side_effect=LogFull("no space left on device"))  # type: ignore[method-assign]
    copy.given(batch_at(500, count=5), high_watermark=505, log_start_offset=502)
    await asyncio.sleep(0.1)
    assert copy.it.lease.is_over and not copy.it.failure and not copy.log_failures.unfit


@by(copying)
async def test_what_came_damaged_comes_whole_in_the_batch_a_copy_begins_with(copy: Copy, /) -> None:
    """It was told as damaged until the next record came: where nothing is written any more, for ever."""
    out = FetchResponsePartition(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=502, verified_end=500)
    assert copy.it.refused(copy.asked(), out)
    await asyncio.sleep(0.1)
    copy.it.log.advance_log_start(502)
    damaged = bytearray(batch_at(500, count=5))
    damaged[-1] ^= 1
    for _ in range(2):
        with pytest.raises(CorruptBatch):
            copy.given(bytes(damaged))
    assert copy.log_failures.unfit
    copy.given(batch_at(500, count=5), high_watermark=505, log_start_offset=502)
    await asyncio.sleep(0.1)
    copy.syncs.answer()
    await asyncio.sleep(0.1)
    assert copy.asked().offset == 505 and not copy.log_failures.unfit


@by(copying, tiered=True)
async def test_cluster_d37_a_copy_that_begins_at_the_verified_end_starts_where_its_leader_s_log_does(
    copy: Copy, /
) -> None:
    """Also when it is killed before any checkpoint: its first file begins there, what the bucket holds below is read
    by offset all the same once it leads (KAFKA-15351)."""
    moved = FetchResponsePartition(error_code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start_offset=0)
    moved.verified_end = 500
    assert copy.it.refused(copy.asked(), moved)
    await asyncio.sleep(0.1)
    assert (copy.it.log.log_start_offset, copy.it.log.local_log_start_offset) == (0, 500)
    killed = DataDir.open(copy.disk.kill(), DATA)
    again = recover_log(killed, ORDERS, LogConfig(tiered=True), 0)
    assert (again.log_start_offset, again.local_log_start_offset) == (0, 500)


@by(copying, compacts=True)
async def test_the_clean_end_of_a_compacted_log_is_reported(copy: Copy, /) -> None:
    """The leader's cleaner of the bucket keeps tombstones above it."""
    copy.given(batch_at(0, count=3), high_watermark=3)
    await copy.it.lease.checkpoint_cleaned(2, lambda: None)
    copy.it.look()
    assert copy.asked().clean_end == 2


@by(copying)
async def test_a_log_start_is_reported_when_a_kill_does_not_bring_records_back(copy: Copy, /) -> None:
    """The leader answers DeleteRecords by it (R26)."""
    copy.given(batch_at(0, count=3), high_watermark=3, log_start_offset=2)
    assert copy.it.log.log_start_offset == 2 and copy.asked().log_start_offset == 0
    wait_flushed = asyncio.ensure_future(copy.it.wait_flushed())
    await asyncio.sleep(0.01)
    copy.syncs.answer()
    await wait_flushed
    assert copy.asked() == FetchPosition(3, EPOCH, EPOCH, log_start_offset=2)
    killed = DataDir.open(copy.disk.kill(), DATA)
    assert recover_log(killed, ORDERS, LogConfig(), 0).log_start_offset == 2


@by(copying)
async def test_a_log_start_that_is_told_while_one_is_noted_or_cannot_be_is_noted_too(copy: Copy, /) -> None:
    """Its leader tells it once: a replica at rest never joined again (simulated seed 1038 of three brokers)."""
    note, may_go_on, calls = copy.logs.checkpoint_start, asyncio.Event(), 0

    async def slow(local: PartitionLog) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "no space left on device")
        await note(local)
        await may_go_on.wait()

    copy.logs.checkpoint_start = slow  # type: ignore[method-assign]
    copy.given(batch_at(0, count=3), high_watermark=3, log_start_offset=1)
    await asyncio.sleep(0.01)
    copy.given(high_watermark=3, log_start_offset=2)
    may_go_on.set()
    await asyncio.sleep(2.0)
    assert (calls, copy.asked().log_start_offset) == (3, 2)


@by(copying)
async def test_cluster_d38_a_copy_whose_sync_failed_reports_nothing_more(copy: Copy, /) -> None:
    """What it wrote may be gone: its leader waits for it in vain, and a person is told."""
    copy.given(batch_at(0))
    wait_flushed = asyncio.ensure_future(copy.it.wait_flushed())
    await asyncio.sleep(0.01)
    copy.syncs.answer(OSError(errno.EIO, "Input/output error"))
    await wait_flushed
    assert copy.it.next_fetch() is None and "offline" in copy.it.failure


@by(copying)
async def test_a_role_that_is_over_takes_nothing_and_hands_the_high_watermark_on(copy: Copy, /) -> None:
    """An answer that comes late is of another epoch."""
    asked = copy.asked()
    copy.given(batch_at(0, count=2), high_watermark=2)
    wait_flushed = asyncio.ensure_future(copy.it.wait_flushed())
    await asyncio.sleep(0.01)
    copy.syncs.answer()
    await wait_flushed
    await copy.it.over()
    late = FetchResponsePartition(high_watermark=9, records=memoryview(batch_at(0)))
    assert not copy.it.answered(asked, late, 7) and copy.it.log.log_end_offset == 2
    assert copy.it.opened.high_watermark == 2


def in_transaction(offset: int, producer_id: int = 7) -> bytes:
    record = [Record(offset, 1_000, None, b"v")]
    return encode_batch(
        record, leader_epoch=EPOCH, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )


def marker_at(offset: int, producer_id: int = 7, *, commit: bool = False) -> bytes:
    return marker_batch(TransactionMarker(producer_id, 0, commit, 3), offset, EPOCH, 1_000)


async def synced(copy: Copy) -> None:
    await asyncio.sleep(0.1)
    copy.syncs.answer()
    await asyncio.sleep(0.1)


@by(copying)
async def test_a_copy_knows_the_last_stable_offset_of_what_it_shows(copy: Copy, /) -> None:
    """TX8, TX21: from its own log, up to its own high watermark; the marker counts once that passed it, also where the
    bucket has what it ends: before, the copy would show what may be aborted (as simulated seed 27 of three brokers)."""
    copy.given(batch_at(0), in_transaction(1), batch_at(2), marker_at(3), high_watermark=3)
    await synced(copy)
    copy.given(high_watermark=3)
    reads = copy.it.readable()
    assert reads is not None and reads.high_watermark == 3
    reads.tier = SimpleNamespace(remote_end_offset=0)  # type: ignore[assignment]
    assert reads.last_stable_offset == 1, "the marker is not committed"
    reads.tier = SimpleNamespace(remote_end_offset=2)  # type: ignore[assignment]
    assert reads.last_stable_offset == 1, "it holds what the bucket holds, and not how that ended"
    log = SimpleNamespace(local_log_start_offset=2, log_start_offset=0, last_stable_offset=reads.log.last_stable_offset)
    log_was, reads.log = reads.log, log  # type: ignore[assignment]
    assert reads.last_stable_offset == 2, "what only the bucket holds is decided (TX27)"
    reads.log = log_was
    copy.given(high_watermark=4)
    assert reads.last_stable_offset == 4
    assert [(of.producer_id, of.first_offset) for of in copy.it.log.aborted_between(0, 4)] == [(7, 1)]


@by(copying)
async def test_a_copy_without_space_takes_the_markers_of_an_answer(copy: Copy, /) -> None:
    """TX23: and nothing else of it. The markers let its leader copy, and the copies let it free space."""
    copy.given(in_transaction(0), in_transaction(1, 8), high_watermark=0)
    await synced(copy)
    copy.it.log.ballast.is_short = True
    assert copy.given(marker_at(2), marker_at(3, 8), batch_at(4), high_watermark=2)
    await synced(copy)
    assert copy.it.log.log_end_offset == 4 and not copy.it.failure
    with pytest.raises(LogFull):
        copy.given(batch_at(4), high_watermark=4)


@by(copying)
async def test_a_marker_that_cannot_be_read_is_not_written(copy: Copy, /) -> None:
    """Its CRC is right, so it is the leader's: nothing of the answer is taken."""
    broken = encode_batch(
        [Record(1, 1_000, b"\0", b"")], leader_epoch=EPOCH, producer_id=7, producer_epoch=0, control=True
    )
    with pytest.raises(CorruptBatch):
        copy.given(in_transaction(0), broken, high_watermark=0)
    assert copy.it.log.log_end_offset == 0
