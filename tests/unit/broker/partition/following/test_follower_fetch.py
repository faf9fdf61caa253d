"""What consumers read of a copy (KIP-392), as its log grows, is cut, and begins elsewhere."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.metadata.records import Row
from broker.partition.following.follower_fetch import FollowerFetch
from broker.partition.log_failures import LogFailures
from broker.replication.follower import FetchPosition
from broker.wire.messages import FetchResponseEpochEndOffset, FetchResponsePartition
from hotstore.log.locator import LogSlice
from logformat.leader_epochs import EpochEnd
from seams.rng import SeededRng
from tests.support.scenario import by
from tests.unit.broker.partition.following.test_follower_replica import EPOCH, Copy, batch_at, copying, watched

ROW = Row((1, 2), 1, EPOCH, 1, (1, 2), EPOCH)


class Woken:
    """A watcher that counts."""

    count = 0

    def __call__(self) -> None:
        self.count += 1


def readable(copy: Copy) -> FollowerFetch:
    found = copy.it.readable()
    assert found is not None
    return found


def slice_of(reads: FollowerFetch, offset: int) -> LogSlice:
    found = reads.log.read(offset, 1 << 20, reads.high_watermark, min_one=True)
    assert found is not None
    return found


@by(copying)
async def test_it_shows_what_is_committed_and_here(copy: Copy, /) -> None:
    """min(leader's high watermark, own flushed end), after the first clean answer; who waits is woken when it moves,
    and not when nothing did."""
    assert copy.it.readable() is None, "nothing is known to agree"
    copy.given()
    reads, woken = readable(copy), Woken()
    reads.advanced()
    reads.watch(woken)
    assert copy.given(batch_at(0, count=3), high_watermark=5) and reads.high_watermark == 0
    assert woken.count == 0, "what was written is not flushed"
    wait_flushed = asyncio.ensure_future(copy.it.wait_flushed())
    await asyncio.sleep(0.01)
    copy.syncs.answer()
    await wait_flushed
    assert reads.high_watermark == reads.last_stable_offset == 3 and woken.count == 1
    copy.given(high_watermark=5)
    assert woken.count == 1
    assert copy.it.readable() is reads


@by(copying, flush_sync=False)
async def test_who_waits_is_woken_when_it_serves_no_more(copy: Copy, /) -> None:
    """Its role ends; its log begins elsewhere; it fails. Each time nothing is readable by then."""
    copy.given(batch_at(0), high_watermark=1)
    reads, woken = readable(copy), Woken()
    reads.watch(woken)
    moved = FetchResponsePartition(error_code=ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, log_start_offset=0)
    moved.verified_end = 500
    assert copy.it.refused(copy.asked(), moved)
    assert woken.count == 1 and copy.it.readable() is None
    await asyncio.sleep(0.1)
    assert copy.it.readable() is None, "it asks anew, and agrees with nobody yet"
    copy.given(high_watermark=500)
    assert readable(copy).high_watermark == 500 and woken.count > 1
    seen = woken.count
    copy.it.resign()
    assert woken.count == seen + 1 and copy.it.readable() is None


@by(copying, flush_sync=False)
async def test_a_copy_that_failed_is_not_read(copy: Copy, /) -> None:
    copy.given(batch_at(0), high_watermark=1)
    reads, woken = readable(copy), Woken()
    reads.watch(woken)
    copy.given(diverging_epoch=FetchResponseEpochEndOffset(epoch=EPOCH - 1, end_offset=0))
    assert copy.it.failure and woken.count == 1 and copy.it.readable() is None


@by(copying, flush_sync=False)
async def test_cluster_d26_a_reader_never_gets_other_records_under_an_old_answer(copy: Copy, /) -> None:
    """An unclean start lets a copy be cut below what it showed. What was answered and is not sent yet is sent as it
    was, or the file ends before it and the connection is dropped (`net.send_path`)."""
    assert copy.given(*(batch_at(at, count=2) for at in (0, 2, 4)), high_watermark=6)
    reads = readable(copy)
    held = [slice_of(reads, offset) for offset in (0, 2, 4)]
    answered = [found.file.read_at(found.position, found.length) for found in held]
    await copy.it.over()
    unclean = replace(ROW, leader_epoch=EPOCH + 1, partition_epoch=2, unclean_epoch=EPOCH + 1)
    copy.it = watched(copy.logs.lend(copy.it.opened, "follower"), unclean, copy.tasks, LogFailures())
    assert copy.it.readable() is None and copy.it.high_watermark == 6
    copy.given(diverging_epoch=FetchResponseEpochEndOffset(epoch=EPOCH, end_offset=2))
    assert copy.it.readable() is None
    await asyncio.sleep(0.01)
    copy.syncs.answer()  # what stays is flushed before anything goes
    await asyncio.sleep(0.1)
    assert copy.it.readable() is None and copy.it.log.log_end_offset == 2
    assert copy.given(batch_at(2, epoch=EPOCH + 1, count=4), high_watermark=6)
    again = slice_of(readable(copy), 2)
    fresh = again.file.read_at(again.position, again.length)
    assert fresh and fresh not in answered[1:]
    for found, before in zip(held, answered, strict=True):
        now = found.file.read_at(found.position, found.length)
        assert before.startswith(now), "other bytes under an answer that was given"
    assert held[1].file.read_at(held[1].position, held[1].length) == b""


class Leaders:
    """What a partition's leaders hold, one after the other: a batch an offset. Each has all that is committed, and may
    lack what came after."""

    def __init__(self, seed: int) -> None:
        self.rng = SeededRng(seed)
        self.epoch = EPOCH
        self.epochs: list[int] = []  # of each batch
        self.committed = 0

    def batch(self, offset: int) -> bytes:
        return batch_at(offset, epoch=self.epochs[offset])

    def answer(self, asked: FetchPosition) -> tuple[list[bytes], EpochEnd | None]:
        """What follows `asked`, or where the logs part (KIP-595)."""
        last = self.epochs[asked.offset - 1] if 0 < asked.offset <= len(self.epochs) else -1
        if asked.offset > len(self.epochs) or (asked.offset and last != asked.last_fetched_epoch):
            epoch = max((each for each in self.epochs if each <= asked.last_fetched_epoch), default=-1)
            return [], EpochEnd(epoch, sum(1 for each in self.epochs if each <= epoch))
        taken = range(asked.offset, min(len(self.epochs), asked.offset + 1 + self.rng.randrange(3)))
        return [self.batch(offset) for offset in taken], None


async def cut(copy: Copy) -> None:
    """One that is under way is done."""
    await asyncio.sleep(0.01)
    while copy.syncs.asked:  # what stays is flushed before anything goes
        copy.syncs.answer()
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("seed", range(12))
@by(copying, flush_sync=False)
async def test_whatever_happens_it_shows_a_prefix_of_what_is_committed(copy: Copy, /, seed: int) -> None:
    """Leaders come and go, and lack tails that this copy has; it lags, it is cut: what may be read is always committed,
    and the batches are those of the log that all leaders share."""
    leaders, shown = Leaders(seed), 0
    rng = leaders.rng
    for _ in range(150):
        match rng.randrange(8):
            case 0 | 1:
                leaders.epochs.append(leaders.epoch)
            case 2:
                leaders.committed += rng.randrange(1 + len(leaders.epochs) - leaders.committed)
            case 3 if rng.randrange(3) == 0:
                del leaders.epochs[leaders.committed + rng.randrange(1 + len(leaders.epochs) - leaders.committed) :]
                leaders.epoch += 1
                await cut(copy)
                await copy.it.over()
                row = replace(ROW, leader_epoch=leaders.epoch, partition_epoch=leaders.epoch)
                copy.it = watched(copy.logs.lend(copy.it.opened, "follower"), row, copy.tasks, LogFailures())
            case _ if copy.it.next_fetch() is not None:
                batches, parts = leaders.answer(copy.asked())
                diverging = None if parts is None else FetchResponseEpochEndOffset(*parts)
                copy.given(*batches, high_watermark=leaders.committed, diverging_epoch=diverging)
            case _:
                await cut(copy)
        assert not copy.it.failure
        reads = copy.it.readable()
        if reads is not None and (end := reads.high_watermark):
            assert end <= leaders.committed
            found = slice_of(reads, end - 1)
            assert found.file.read_at(found.position, found.length) == leaders.batch(end - 1)
            shown = max(shown, end)
    assert shown > 0
