"""One partition that this broker copies from its leader: a log, and the follower's role in one leader epoch.

Owns what is done with an answer: check, append, or have the log go on elsewhere (`follower_truncation`). Always true:
every batch's CRC and offsets are checked before it is written, and all that came is one write; offsets and epochs stay
the leader's; what is asked next follows the flushed end (`os`: the written one); for a log that failed nothing is asked
any more, and it is told; one that a failure left torn, half cut, is opened again. `fetcher` runs it, `follows` begins
and ends it; the log stays open for the next role. Must not know requests' sessions, connections, nor who leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.metadata.records import LogPlace, Row
from broker.partition.following.follower_fetch import FollowerFetch
from broker.partition.following.follower_truncation import FollowerTruncation, until
from broker.partition.hosted_replica import HostedReplica
from broker.partition.log_failures import LogFailures
from broker.partition.remote_log_state import RemoteLogState
from broker.replication.catch_up import start_of
from broker.replication.follower import Cut, FetchPosition, Follower, Phase, Take
from broker.replication.replication_counters import ReplicationCounters
from broker.wire.messages import FetchResponsePartition
from hotstore.errors import LogFailed, LogFull
from hotstore.host.lease import Lease, LeaseOver
from logformat.errors import StorageFailed, ThermoclineError
from logformat.leader_epochs import EpochEnd
from logformat.record_batch import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    LENGTH,
    LOG_OVERHEAD,
    BatchHeader,
    CorruptBatch,
    check_stored,
)
from seams.clock import Clock
from seams.disk import is_full
from seams.tasks import Tasks, failure_of_task
from tiering.opening.reservation import ToldEnd

log = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0  # between tries to note where the log starts
_ELSEWHERE: Final = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)


class FollowerReplica:
    """Made over an open log whose tail is flushed (D65). `moved` is called when what it asks for next is something else
    (see `Copy.next_fetch`); `torn` when it is to begin again, with its log opened anew. Every method runs on the
    loop."""

    def __init__(
        self,
        lease: Lease,
        row: Row,
        cold: RemoteLogState,
        tasks: Tasks,
        clock: Clock,
        touched: set[HostedReplica],
        log_failures: LogFailures,
        copied: ReplicationCounters,
        moved: Callable[[], None],
        torn: Callable[[], None],
    ) -> None:
        opened, local = lease.opened, lease.log
        self.lease = lease
        self.opened = opened
        self.log = local
        self.topic = local.topic
        self.topic_id = UUID(bytes=local.topic_id)
        self.index = local.partition
        self.leader_epoch = row.leader_epoch
        self.failure = local.failure
        """Why nothing is copied any more; empty while something is."""
        self.verified_end = -1
        """As its leader said last."""
        self._cold = cold
        self._tasks = tasks
        self._clock = clock
        self._touched = touched
        self._troubles = log_failures
        self._copied = copied
        self._moved = moved
        self._torn = torn
        self._damaged_offset = -1  # where what came was damaged last
        self._ended = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self.follower = Follower(local.epochs, local.stable_end_offset, opened.high_watermark, opened.seen_epoch)
        self.follower.begin(row.leader_epoch, row.unclean_epoch)
        self.follower.log_start_offset = local.log_start_offset  # of a checkpoint, or of its files
        self._elsewhere = FollowerTruncation(lease, self.follower, cold, clock, copied, self._ended)
        self._noting: asyncio.Task[None] | None = None
        self.reads: FollowerFetch | None = None
        """Of consumers: made when the first one comes."""
        lease.listen(self)
        if local.failure:  # of a sync, perhaps, while nobody had a role for it
            log_failures.failed(self._place, local.failure)
        else:
            log_failures.works(self._place)

    @property
    def _place(self) -> LogPlace:
        return str(self.topic_id), self.index

    @property
    def high_watermark(self) -> int:
        return self.follower.high_watermark

    def readable(self) -> FollowerFetch | None:
        """What consumers may read here now (KIP-392); None before the first clean answer of the epoch (D24), while the
        log is cut or begins elsewhere, and once nothing is copied any more."""
        if self.lease.is_over or self.failure or self.follower.phase is not Phase.FOLLOWING:
            return None
        if self.reads is None:
            log = self.log
            # What this copy dropped, a leader before this one may have seen in the bucket.
            tier = self._cold.view(
                self.topic_id, self.index, lambda: max(self.verified_end, log.local_log_start_offset)
            )
            self.reads = FollowerFetch(self.lease, self.follower, self.leader_epoch, tier, self._troubles)
        return self.reads

    def resign(self) -> None:
        """Its role is over: nothing more is written, and who waits for something to read goes elsewhere."""
        if self.lease.is_over:
            return
        self.lease.move_high_watermark(self.high_watermark)
        self.lease.end()
        self._ended.set()
        if self.reads is not None:
            self.reads.wake()

    async def over(self) -> None:
        """Copy nothing more, and wait for what is under way in its directory."""
        self.resign()
        for work in (self._work, self._noting):
            if work is not None:
                await asyncio.wait([work])  # not `await work`: whoever cuts this wait off must not cut off that
                if (failure := failure_of_task(work)) is not None and not isinstance(failure, LeaseOver):
                    log.error("%s: %s failed as its role ended: %r", self._name, work.get_name(), failure)
        await self.lease.returned()

    # ── as a copy of the fetcher's ───────────────────────────────────────────────────────────────────────────────
    def next_fetch(self) -> FetchPosition | None:
        """See `Copy`."""
        return None if self.lease.is_over or self.failure else self.follower.next_fetch()

    def _is_at(self, asked: FetchPosition) -> bool:
        return not self.lease.is_over and not self.failure and self.follower.is_at(asked)

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        """See `Copy`. Raises CorruptBatch, DivergingAppend, LogFull."""
        if records := answer.records:
            self._copied.bytes_in += len(records)
        if not self._is_at(asked):
            return False
        self.verified_end = answer.verified_end
        # Checked before the machine moves: what cannot be taken leaves everything as it was.
        try:
            records = memoryview(answer.records or b"")  # type: ignore[arg-type]  # decoded: a memoryview or None
            headers = _checked(records, self._least_offset(asked))
        except CorruptBatch as corrupt:
            self._came_damaged(asked.offset, corrupt)
            raise
        if headers and headers[0].base_offset < asked.offset:
            self.follower.leave()
            told = ToldEnd(answer.reserved_end, broker_epoch)
            said = answer.high_watermark, told, answer.log_start_offset
            self._begin(self._begin_before(bytes(records), headers, *said))
            return False
        diverging = answer.diverging_epoch
        ends = None if diverging is None else EpochEnd(diverging.epoch, diverging.end_offset)
        match self.follower.answered(asked, ends, answer.high_watermark):
            case Cut(offset):
                log.warning("%s is cut to offset %d: its leader's log goes on otherwise", self._name, offset)
                self._begin(self._elsewhere.cut(offset))
            case Take():
                is_taken = bool(headers) and self._append(records, headers)
                if is_taken:
                    self._came_whole()
                self._heard(ToldEnd(answer.reserved_end, broker_epoch), answer.log_start_offset)
                return is_taken
            case None if self.follower.phase is Phase.OFFLINE:
                self._fail(f"would have to cut below its high watermark {self.high_watermark} to follow its leader")
        return False

    def _heard(self, told: ToldEnd, log_start: int) -> None:
        """What a clean answer says beside its records: a leader says it once."""
        self._touched.add(self)
        self._cold.told(self.topic_id, self.index, told)
        self.lease.saw_epoch(self.leader_epoch)
        self._start_at(log_start)
        if self.reads is not None:
            self.reads.look()

    async def _begin_before(
        self, records: bytes, headers: list[BatchHeader], high_watermark: int, told: ToldEnd, log_start: int
    ) -> None:
        await self._elsewhere.begin_before(records, headers, high_watermark)
        if self.follower.phase is Phase.FOLLOWING and not self.lease.is_over:
            self._came_whole()
            self._heard(told, log_start)

    def _came_damaged(self, offset: int, corrupt: CorruptBatch) -> None:
        """On its way, or on the leader's disk: it is asked for again, never skipped, told when it comes so twice."""
        if self._damaged_offset == offset:
            why = f"what comes from offset {offset} is damaged, again: {corrupt}"
            log.error("%s waits for its leader: %s", self._name, why)
            self._troubles.failed(self._place, why)
        self._damaged_offset = offset

    def _came_whole(self) -> None:
        if self._damaged_offset >= 0:
            self._damaged_offset = -1
            self._troubles.works(self._place)

    def _least_offset(self, asked: FetchPosition) -> int:
        """Where a batch may begin that comes for `asked`. Nothing is here yet: also before it, where the log start lies
        within a batch, of which the leader can but give the whole."""
        return 0 if asked.offset == self.log.log_end_offset == self.log.active_segment.base_offset else asked.offset

    def _append(self, records: memoryview, headers: list[BatchHeader]) -> bool:
        try:
            self.lease.append_as_follower((records,), headers, self._clock.wall_ms())
        except LogFailed as failed:
            self._fail(str(failed))
            return False
        self.opened.flusher.request()
        if not self.log.config.waits_for_flush:
            self.flushed(self.log.stable_end_offset)  # the page cache counts (`os`)
        return True

    def _start_at(self, offset: int) -> None:
        """Where the leader's log starts: not from our first file, what lies below that may be in the bucket, or deleted
        (R7). It is reported when it is durable (R26)."""
        self.lease.advance_log_start(min(offset, self.log.log_end_offset))
        if self.log.log_start_offset != self.follower.log_start_offset and self._noting is None:
            self._noting = self._tasks.spawn(f"note the start of {self._name}", self._note_start(), awaited=True)

    async def _note_start(self) -> None:
        """Until what was told last is noted: a leader tells a start once."""
        while not self.lease.is_over and self.follower.log_start_offset != (start := self.log.log_start_offset):
            try:
                await self.lease.checkpoint_start()
            except OSError as failure:
                log.warning("%s: its log start %d is not noted yet: %s", self._name, start, failure)
                await until(self._ended, _AGAIN_S)
            else:
                self.follower.log_start_offset = start
                self._moved()
        self._noting = None

    def refused(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        """See `Copy`."""
        if answer.error_code not in _ELSEWHERE or not self._is_at(asked):
            return False
        self.verified_end = answer.verified_end
        start = start_of(self.follower.end, answer.verified_end, answer.log_start_offset)
        if start is None:
            return False
        log.info("%s begins at offset %d: what lies below is not copied", self._name, start.offset)
        self.follower.leave()
        self._begin(self._elsewhere.begin_at(start))
        return True

    @property
    def is_settled(self) -> bool:
        """See `Copy`."""
        return self.follower.end >= self.log.log_end_offset

    async def settled(self) -> None:
        """See `Copy`."""
        if not self.log.config.waits_for_flush:
            return
        try:
            await self.opened.flusher.flush()
        except StorageFailed as failed:
            self._fail(str(failed))

    # ── what takes a while ───────────────────────────────────────────────────────────────────────────────────────
    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self.reads is not None:
            self.reads.wake()
        self._work = self._tasks.spawn(f"follow {self._name}", self._worked(work), awaited=True)

    async def _worked(self, work: Awaitable[None]) -> None:
        try:
            await work
        except LeaseOver:
            return  # the next role goes on with the log as it is
        except (ThermoclineError, OSError) as failure:
            is_short = isinstance(failure, LogFull) or (isinstance(failure, OSError) and is_full(failure))
            if not is_short:
                self._fail(str(failure))
            if is_short or (self.opened.is_torn and not self.log.failure):
                log.warning("%s is opened again, once its disk lets it: %s", self._name, failure)
                self.resign()
                self._torn()
                return
        self._work = None
        self._moved()

    def _fail(self, why: str) -> None:
        self.failure = why
        if not self.lease.is_over:  # else the next role says so, or the place is gone
            self._troubles.failed(self._place, why)
        log.error("%s is copied no more: %s", self._name, why)
        if self.reads is not None:
            self.reads.wake()
        self._moved()

    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.index}"

    # ── as the log's owner ───────────────────────────────────────────────────────────────────────────────────────
    def flushed(self, stable_end: int) -> None:
        """What was taken is durable up to here: the next question says so."""
        if self.follower.phase is Phase.FOLLOWING and stable_end > self.follower.end:
            self.follower.flushed(self.log.epochs, stable_end)
            if self.reads is not None:
                self.reads.look()
            self._moved()

    def failed(self, why: LogFailed) -> None:
        self._fail(str(why))

    def awaits_flush(self) -> bool:
        """The leader does, for every byte."""
        return True

    def start_moved(self) -> None:
        self._touched.add(self)
        if self.reads is not None:
            self.reads.look()

    # ── what open logs need from time to time ────────────────────────────────────────────────────────────────────
    def tick(self, now_ms: int, now_s: float) -> bool:
        """See `HostedReplica`."""
        self.opened.flusher.tick(now_ms)
        return self.log.dirty_bytes > 0


def _checked(records: memoryview, offset: int) -> list[BatchHeader]:
    """The headers of an answer's batches, each whole. Raises CorruptBatch."""
    headers, at, end = [], 0, len(records)
    while at < end:
        header = check_stored(records, at, end, offset_min=offset)
        headers.append(header)
        at += header[LENGTH] + LOG_OVERHEAD
        offset = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1
    return headers
