"""A follower's log and its role in one leader epoch: checks and appends the leader's responses, or truncates.

- CRC and offsets of every batch are checked before the batch is written. One response is one write. Offsets and epochs
  of the leader are kept.
- The next fetch offset follows the flushed end; with `os` it follows the written end.
- A failed log stops fetching and is reported. A log that a failure left half truncated is reopened. The log stays open
  for the next role.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from itertools import takewhile
from typing import Any, Final
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.metadata.records import LogPlace, Row
from broker.partition.following.follower_fetch import FollowerFetch
from broker.partition.following.follower_truncation import FollowerTruncation, wait_for_end
from broker.partition.log_failures import LogFailures
from broker.partition.readable import HostedReplica
from broker.replication.catch_up import LEFT_IN_BUCKET, NOT_IN_BUCKET, ReplicationCounters, start_of
from broker.replication.follower import Cut, FetchPosition, Follower, Phase, Take
from broker.wire.messages import FetchResponsePartition
from hotstore.errors import LogFailed, LogFull
from hotstore.host.lease import Lease, LeaseOver
from logformat.compaction.filler import filler_from
from logformat.errors import StorageFailed, ThermoclineError
from logformat.leader_epochs import EpochEnd
from logformat.record_batch import (
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LENGTH,
    LOG_OVERHEAD,
    BatchHeader,
    CorruptBatch,
    check_stored,
)
from logformat.transaction_marker import may_be_marker
from seams.clock import Clock
from seams.files.disk import is_full
from seams.loop.tasks import Tasks, failure_of_task
from tiering.opening.reservation import ReportedEnd
from tiering.service import TierService

log = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0  # pause between tries to checkpoint the log start
_OFFSET_MOVED: Final = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)


class FollowerReplica:
    """A follower's replica, made for an open log whose tail is flushed (D65). `moved` is called when the replica's next
    fetch changed (see `FetchTarget.next_fetch`), `torn` when the log has to be opened again. Every method runs on the
    loop."""

    def __init__(
        self,
        lease: Lease,
        row: Row,
        cold: TierService,
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
        self.failure = local.failure  # the reason why copying stopped; empty while it goes on
        self.lacks = ""  # the reason why a truncated log would lack records, so that it has to begin anew
        self.verified_end = LEFT_IN_BUCKET  # as in the leader's last report
        self._all_clean_end = 0  # as in the leader's last report
        self._cold = cold
        self._tasks = tasks
        self._clock = clock
        self._touched = touched
        self._log_failures = log_failures
        self._copied = copied
        self._moved = moved
        self._torn = torn
        self._damaged_offset = -1  # fetch offset of the last damaged response
        self._ended = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        self.follower = Follower(local.epochs, local.stable_end_offset, opened.high_watermark, opened.seen_epoch)
        self.follower.begin(row.leader_epoch, row.unclean_epoch)
        self.follower.log_start_offset = local.log_start_offset  # known from a checkpoint or from the log's files
        self._truncation = FollowerTruncation(lease, self.follower, cold, clock, copied, self._ended)
        self._start_checkpoint: asyncio.Task[None] | None = None
        self.reads: FollowerFetch | None = None  # made for the first consumer
        lease.listen(self)
        if local.failure:  # the failure may come from a sync between two roles
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
        """The partition for consumers' fetches (KIP-392). None before the first clean response of the epoch (D24),
        while the log is truncated or restarted, and after a failure."""
        if self.lease.is_over or self.failure or self.follower.phase is not Phase.FOLLOWING:
            return None
        if self.reads is None:
            log = self.log
            # An earlier leader may have verified the segments that this follower deleted.
            tier = self._cold.view(
                self.topic_id, self.index, lambda: max(self.verified_end, log.local_log_start_offset)
            )
            self.reads = FollowerFetch(self.lease, self.follower, self.leader_epoch, tier, self._log_failures)
        return self.reads

    def resign(self) -> None:
        """End the role: writes stop, and waiting readers go to the leader."""
        if self.lease.is_over:
            return
        self.lease.move_high_watermark(self.high_watermark)
        self.lease.end()
        self._ended.set()
        if self.reads is not None:
            self.reads.wake()

    async def over(self) -> None:
        """End the role and wait for its work in the directory."""
        self.resign()
        for work in (self._work, self._start_checkpoint):
            if work is not None:
                await asyncio.wait([work])  # not `await work`: cancelling this wait must not cancel the work
                if (failure := failure_of_task(work)) is not None and not isinstance(failure, LeaseOver):
                    log.error("%s: %s failed as its role ended: %r", self._name, work.get_name(), failure)
        await self.lease.returned()

    # ── as the fetcher's target ──────────────────────────────────────────────────────────────────────────────────
    def next_fetch(self) -> FetchPosition | None:
        position = None if self.lease.is_over or self.failure else self.follower.next_fetch()
        if position is not None and self.log.config.compacts:
            position = position._replace(clean_end=self.lease.clean_end)
        return position

    def _is_at(self, asked: FetchPosition) -> bool:
        return not self.lease.is_over and not self.failure and self.follower.is_at(asked)

    def answered(self, asked: FetchPosition, answer: FetchResponsePartition, broker_epoch: int) -> bool:
        """See `FetchTarget`. Raises CorruptBatch, DivergingAppend, LogFull."""
        if records := answer.records:
            self._copied.bytes_in += len(records)
        if not self._is_at(asked):
            return False
        self.verified_end, self._all_clean_end = answer.verified_end, answer.clean_end
        # The batches are checked before the state machine changes, so a refused response changes nothing.
        try:
            records = memoryview(answer.records or b"")  # type: ignore[arg-type]  # decoded: a memoryview or None
            records = filler_from(records, asked.offset)  # needed if the leader's cleaner is ahead of the follower's
            headers = _checked(records, self._least_offset(asked), max(self.leader_epoch, self.log.leader_epoch))
            if headers and headers[0].next_offset <= asked.offset:
                raise CorruptBatch(
                    f"the first batch ends at offset {headers[0].next_offset}, but {asked.offset} was requested"
                )
        except CorruptBatch as corrupt:
            self._batch_damaged(asked.offset, corrupt)
            raise
        if headers and headers[0].base_offset < asked.offset:
            self.follower.leave()
            told = ReportedEnd(answer.reserved_end, broker_epoch)
            said = answer.high_watermark, told, answer.log_start_offset
            self._begin(self._begin_before(bytes(records), headers, *said))
            return False
        diverging = answer.diverging_epoch
        ends = None if diverging is None else EpochEnd(diverging.epoch, diverging.end_offset)
        compacted_end = 0 if diverging is None else self._compacted_end
        match self.follower.answered(asked, ends, answer.high_watermark):
            case Cut(offset) if offset < compacted_end:
                self.lacks = (
                    f"it is compacted up to offset {compacted_end}, but diverges from its leader's log at {offset}"
                )
                self.resign()
                self._torn()
            case Cut(offset):
                log.warning("%s is truncated to offset %d: its leader's log diverges there", self._name, offset)
                self._begin(self._truncation.cut(offset))
            case Take():
                is_taken = bool(headers) and self._append(records, headers)
                if is_taken:
                    self._batch_intact()
                self._apply_offsets(ReportedEnd(answer.reserved_end, broker_epoch), answer.log_start_offset)
                return is_taken
            case None if self.follower.phase is Phase.OFFLINE:
                self._fail(
                    f"the replica would have to truncate below its high watermark {self.high_watermark} to follow its "
                    "leader"
                )
        return False

    @property
    def _compacted_end(self) -> int:
        """A log that is truncated below this offset lacks records: compaction removed them for newer records, which the
        truncation removes. The checkpoint does not show an interrupted pass. Such a pass was below the high watermark,
        and in a tiered log below the bucket's end. An unclean start loses no record below the bucket's end."""
        config = self.log.config
        committed_end = self.high_watermark if config.compacts and not config.tiered else 0
        return max(self.lease.cleaned_offset, committed_end)

    def _apply_offsets(self, told: ReportedEnd, log_start: int) -> None:
        """Apply the other fields of a clean response. A leader sends each value once."""
        self._touched.add(self)
        self._cold.note_reported_end(self.topic_id, self.index, told)
        self.lease.saw_epoch(self.leader_epoch)
        self._start_at(log_start)
        if self.reads is not None:
            self.reads.advanced()

    async def _begin_before(
        self, records: bytes, headers: list[BatchHeader], high_watermark: int, told: ReportedEnd, log_start: int
    ) -> None:
        await self._truncation.begin_before(records, headers, high_watermark)
        if self.follower.phase is Phase.FOLLOWING and not self.lease.is_over:
            self._batch_intact()
            self._apply_offsets(told, log_start)

    def _batch_damaged(self, offset: int, corrupt: CorruptBatch) -> None:
        """The batch was damaged in transit or on the leader's disk. It is fetched again and never skipped. If the same
        batch is damaged twice, the damage is reported."""
        if self._damaged_offset == offset:
            why = f"the leader's batch at offset {offset} is damaged a second time: {corrupt}"
            log.error("%s waits for its leader: %s", self._name, why)
            self._log_failures.failed(self._place, why)
        self._damaged_offset = offset

    def _batch_intact(self) -> None:
        if self._damaged_offset >= 0:
            self._damaged_offset = -1
            self._log_failures.works(self._place)

    def _least_offset(self, asked: FetchPosition) -> int:
        """The least base offset that a batch in the response to `asked` may have. An empty log also accepts a batch
        that begins below `asked`: if the log start is inside a batch, the leader sends the complete batch. The checksum
        does not cover the base offset, so a log with records, whose active segment may be empty, accepts no such batch.
        """
        log = self.log
        is_empty = log.active_segment.base_offset == log.log_end_offset and not log.sealed_segments()
        return 0 if is_empty else asked.offset

    def _append(self, records: memoryview, headers: list[BatchHeader]) -> bool:
        if self.log.ballast.is_short:
            # Markers may use the ballast's space (TX23): without them no segment is uploaded and no space is freed.
            markers = list(takewhile(may_be_marker, headers))
            if markers:
                records, headers = records[: sum(header.size for header in markers)], markers
        try:
            self.lease.append_as_follower((records,), headers, self._clock.wall_ms())
        except LogFailed as failed:
            self._fail(str(failed))
            return False
        self.opened.flusher.request()
        if not self.log.config.waits_for_flush:
            self.flushed(self.log.stable_end_offset)  # with `os` a record in the page cache counts as flushed
        return True

    def _start_at(self, offset: int) -> None:
        """Apply the leader's log start. The first local segment does not show the log start: records below this segment
        may be in the bucket or deleted (R7). The log start is reported once it is durable (R26)."""
        self.lease.advance_log_start(min(offset, self.log.log_end_offset))
        if self.log.log_start_offset != self.follower.log_start_offset and self._start_checkpoint is None:
            self._start_checkpoint = self._tasks.spawn(
                f"note the start of {self._name}", self._checkpoint_start(), awaited=True
            )

    async def _checkpoint_start(self) -> None:
        """Retry until the newest log start is durable, because a leader reports each log start only once."""
        while not self.lease.is_over and self.follower.log_start_offset != (start := self.log.log_start_offset):
            try:
                await self.lease.checkpoint_start()
            except OSError as failure:
                log.warning("%s: its log start %d is not checkpointed yet: %s", self._name, start, failure)
                await wait_for_end(self._ended, _AGAIN_S)
            else:
                self.follower.log_start_offset = start
                self._moved()
        self._start_checkpoint = None

    def refused(self, asked: FetchPosition, answer: FetchResponsePartition) -> bool:
        if answer.error_code not in _OFFSET_MOVED or not self._is_at(asked):
            return False
        self.verified_end = answer.verified_end
        start = start_of(self.follower.end, answer.verified_end, answer.log_start_offset)
        if start is None:
            return False
        log.info("%s starts at offset %d: earlier records are not copied", self._name, start.offset)
        self.follower.leave()
        self._begin(self._truncation.begin_at(start))
        return True

    @property
    def is_flushed(self) -> bool:
        return self.follower.end >= self.log.log_end_offset

    async def wait_flushed(self) -> None:
        if not self.log.config.waits_for_flush:
            return
        try:
            await self.opened.flusher.flush()
        except StorageFailed as failed:
            self._fail(str(failed))

    # ── truncation and failure ───────────────────────────────────────────────────────────────────────────────────
    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self.reads is not None:
            self.reads.wake()
        self._work = self._tasks.spawn(f"follow {self._name}", self._worked(work), awaited=True)

    async def _worked(self, work: Awaitable[None]) -> None:
        try:
            await work
        except LeaseOver:
            return  # the next role continues with the log as it is
        except (ThermoclineError, OSError) as failure:
            is_short = isinstance(failure, LogFull) or (isinstance(failure, OSError) and is_full(failure))
            if not is_short:
                self._fail(str(failure))
            if is_short or (self.opened.is_torn and not self.log.failure):
                log.warning("%s will be opened again when its disk allows it: %s", self._name, failure)
                self.resign()
                self._torn()
                return
        self._work = None
        self._moved()

    def _fail(self, why: str) -> None:
        self.failure = why
        if not self.lease.is_over:  # otherwise the next role reports it, or the directory was removed
            self._log_failures.failed(self._place, why)
        log.error("%s is no longer copied: %s", self._name, why)
        if self.reads is not None:
            self.reads.wake()
        self._moved()

    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.index}"

    # ── as the log's owner ───────────────────────────────────────────────────────────────────────────────────────
    def flushed(self, stable_end: int) -> None:
        """The log is durable up to this offset: the next fetch reports it."""
        if self.follower.phase is Phase.FOLLOWING and stable_end > self.follower.end:
            self.follower.flushed(self.log.epochs, stable_end)
            if self.reads is not None:
                self.reads.advanced()
            self._moved()

    def failed(self, why: LogFailed) -> None:
        self._fail(str(why))

    def awaits_flush(self) -> bool:
        return True

    def start_moved(self) -> None:
        self._touched.add(self)
        self.follower.starts_at(self.log.log_start_offset)
        if self.reads is not None:
            self.reads.advanced()

    def cleaned(self) -> None:
        """The next fetch reports the clean end, even if the log is idle, because the other replicas keep tombstones
        until then."""
        self._moved()

    def cleanable_end(self) -> int:
        """As on the leader, but bounded by this log's last stable offset, because an undecided record does not
        supersede another record (TX17). `verified_end`: the end that the leader verified in the bucket."""
        stable = self.log.last_stable_offset(self.high_watermark)
        return min(stable, self.verified_end) if self.log.config.tiered else stable

    def tombstones_end(self) -> int:
        """By the leader's last report. The report stays true, because a clean log never gets a superseded record
        again."""
        return self._all_clean_end

    def is_in_bucket(self) -> bool:
        """Whether the bucket may have records of this log, by the leader's last report; True before the first
        report."""
        return self.verified_end != NOT_IN_BUCKET

    # ── ticks ────────────────────────────────────────────────────────────────────────────────────────────────────
    def tick(self, now_ms: int, now_s: float) -> bool:
        self.opened.flusher.tick(now_ms)
        self.log.last_stable_offset(self.high_watermark)  # this call drops committed entries
        return self.log.dirty_bytes > 0


def _checked(records: memoryview, offset: int, epoch_max: int) -> list[BatchHeader]:
    """The headers of a response's batches; each batch must be complete. The checksum does not cover the leader epoch,
    which is at most `epoch_max`. Raises CorruptBatch."""
    headers, at, end = [], 0, len(records)
    while at < end:
        header = check_stored(records, at, end, offset_min=offset)
        if header[LEADER_EPOCH] > epoch_max:
            raise CorruptBatch(f"the batch at offset {header.base_offset} has leader epoch {header.leader_epoch}")
        headers.append(header)
        at += header[LENGTH] + LOG_OVERHEAD
        offset = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1
    return headers
