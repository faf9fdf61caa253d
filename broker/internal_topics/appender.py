"""Appender of one led partition of an internal topic: many writes in one batch, one batch at a time.

- Writes are applied in the order of submission. Each write's `done` is called exactly once.
- While a batch becomes durable, further writes wait for the next batch, so hundreds of writes share one flush without a
  linger.
- Records of one batch have the same producer. Transaction markers are appended elsewhere (`marked`). Committed markers
  and batches are applied in the order of the log.
- After `resign` nothing is appended, and the outcome of a batch in flight is ignored: its writes have failed, and the
  replay of the next epoch decides their outcome (KAFKA-20634).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from broker.internal_topics.batches import BATCH_BYTES_MAX, KeyValue, Producer, Rewrite, batch_of
from broker.internal_topics.interfaces import LogLimits, NotCommittedYet, ShardLog
from logformat.errors import Fenced, InvalidRequest, Retryable, ThermoclineError
from logformat.transaction_marker import TransactionMarker
from seams.clock import Clock
from seams.loop.tasks import Tasks, tell

log = logging.getLogger(__name__)

MARKER_BYTES: Final = 78
_MARKERS_WAIT_S: Final = 30.0
_RECORD_OVERHEAD_BYTES: Final = 64  # for lengths, deltas and the batch's header; at most 20 are used


class Done(Protocol):
    def __call__(self, failure: Exception | None) -> None:
        """The write's records are durable and applied. If this is unknown, `failure` has the reason."""


Cut = Callable[[], Sequence[KeyValue]]
"""The records to append, read at the time of the call; may be empty."""


class TransactionEnded(Retryable):
    """A marker of the producer was appended after the verification of its transaction, so that transaction has
    ended."""


class Guard:
    """A guard from the verification of a producer's transaction to the append of its records (KIP-890). A marker of the
    producer invalidates the guard, even if the marker is not committed yet.
    """

    __slots__ = ("_guards", "is_void", "producer_id")

    def __init__(self, producer_id: int, guards: dict[int, set[Guard]]) -> None:
        self.producer_id = producer_id
        self.is_void = False
        self._guards = guards
        guards.setdefault(producer_id, set()).add(self)

    def release(self) -> None:
        held = self._guards.get(self.producer_id)
        if held is not None:
            held.discard(self)
            if not held:
                del self._guards[self.producer_id]


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    size: int
    done: Done
    guard: Guard | None = None
    cut: Cut | None = None
    rewrite: Rewrite | None = None


class _Marked(NamedTuple):
    """A marker at `offset` of the log. `batches`: earlier batches, which are applied or failed first."""

    offset: int
    marker: TransactionMarker
    batches: int


class Appender:
    """The appender of one shard. `appended(end_offset, size)` is called for every durable batch, before its writes'
    `done`, and for every committed marker before `end_transaction(marker)`."""

    def __init__(
        self,
        shard_log: ShardLog,
        clock: Clock,
        limits: LogLimits,
        tasks: Tasks,
        appended: Callable[[int, int], None],
        end_transaction: Callable[[TransactionMarker], None],
    ) -> None:
        self._shard_log = shard_log
        self._clock = clock
        self._limits = limits
        self._tasks = tasks
        self._appended = appended
        self._end_transaction = end_transaction
        self._markers: deque[_Marked] = deque()
        self._guards: dict[int, set[Guard]] = {}
        self._begun = 0  # number of batches begun
        self._ended = 0
        self._moved = asyncio.Event()  # a batch ended, or markers were applied
        self._applies_markers: bool | None = None  # None until the log is loaded
        self._queue: deque[_Write] = deque()
        self._queued_bytes = 0
        self._under_way: list[_Write] = []
        self._is_running = False
        self._resigned: Fenced | None = None
        self._late: NotCommittedYet | None = None  # set while the batch in flight waits for the high watermark

    @property
    def is_idle(self) -> bool:
        return not self._is_running

    def guard(self, producer_id: int) -> Guard:
        return Guard(producer_id, self._guards)

    def submit(self, records: Sequence[KeyValue], done: Done, guard: Guard | None = None) -> None:
        """Queue a write. If too many writes wait, the write is refused by a later call of `done`."""
        size = sum(record.size for record in records)
        refusal = self._resigned or self._refusal(len(records), size)
        if refusal is not None:
            # Not at once: the caller may be performing effects.
            asyncio.get_running_loop().call_soon(done, refusal)
            return
        self._queue.append(_Write(records, size, done, guard))
        self._queued_bytes += size
        self._run()

    def submit_cut(self, cut: Cut, done: Done, rewrite: Rewrite) -> None:
        """Queue the records of `cut` as a separate batch. The records are read when all earlier writes are applied or
        failed, and no batch is in flight. Refused while a batch is late, because this rewrite must not delay the
        rewrites of other shards. One call at a time; `rewrite` as in `batch_of`."""
        if (refusal := self._resigned or self._late) is not None:
            asyncio.get_running_loop().call_soon(done, refusal)
            return
        self._queue.append(_Write((), 0, done, None, cut, rewrite))
        self._run()

    # ---- markers ---------------------------------------------------------------------------------------------------

    def marked(self, marker: TransactionMarker, offset: int) -> None:
        """A marker was appended at `offset`; called in the same turn of the loop."""
        for guard in self._guards.get(marker.producer_id, ()):
            guard.is_void = True
        if self._resigned is None:
            self._markers.append(_Marked(offset, marker, self._begun))
            self._await_markers()

    def loaded(self, end_offset: int) -> None:
        """All records and markers below `end_offset` are applied."""
        while self._markers and self._markers[0].offset < end_offset:
            self._markers.popleft()
        self._applies_markers = False
        self._await_markers()

    def _await_markers(self) -> None:
        if self._markers and self._applies_markers is False:
            try:
                self._tasks.spawn(f"markers {self._shard_log.name}", self._apply_committed())
            except RuntimeError:  # the broker stops; the next load reads the markers
                return
            self._applies_markers = True

    async def _apply_committed(self) -> None:
        """Wait for each marker until it is committed and the batches before it are decided. Ends with the epoch."""
        try:
            while self._markers and self._resigned is None:
                first = self._markers[0]
                try:
                    await self._shard_log.committed(first.offset + 1)
                except Retryable as late:
                    log.warning("%s: a marker at %d is not committed yet: %s", self._shard_log.name, first.offset, late)
                    continue
                except (ThermoclineError, OSError) as over:
                    log.warning("%s: markers are no longer applied: %s", self._shard_log.name, over)
                    return  # the epoch ends; the next load reads the markers
                while self._ended < first.batches and self._resigned is None:
                    self._moved.clear()
                    await self._moved.wait()
                self._apply_markers(first.offset + 1)
        finally:
            self._applies_markers = False

    def _apply_markers(self, below: int) -> None:
        while self._markers and self._markers[0].offset < below and self._resigned is None:
            offset, marker, _ = self._markers.popleft()
            self._appended(offset + 1, MARKER_BYTES)
            self._end_transaction(marker)
        self._moved.set()

    # ---- appending -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._is_running:
            try:
                self._tasks.spawn(f"append {self._shard_log.name}", self._drain())
            except RuntimeError:  # the broker stops
                asyncio.get_running_loop().call_soon(self._fail_queued, self._stopped())
            else:
                self._is_running = True

    def _refusal(self, count: int, size: int) -> Exception | None:
        limits = self._limits
        if len(self._queue) >= limits.append_queue_max or self._queued_bytes + size > limits.append_queue_bytes_max:
            return Retryable(f"{len(self._queue)} writes to {self._shard_log.name} are waiting already; try again")
        if size + _RECORD_OVERHEAD_BYTES * count > BATCH_BYTES_MAX:
            return InvalidRequest(f"a write of {count} records and {size} bytes is too large")
        return None

    def resign(self, why: Fenced) -> None:
        """The leader epoch is over: every pending write fails with `why`, now."""
        self._resigned = why
        self._settle(why)
        self._fail_queued(why)
        self._markers.clear()
        self._moved.set()

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._append_next()
        finally:
            # Writes are left here only by a bug, or when the broker stops.
            self._is_running = False
            self._fail_queued(self._stopped())

    def _stopped(self) -> Retryable:
        return Retryable(f"appends to {self._shard_log.name} stopped; find its new leader")

    def _take(self) -> list[_Write]:
        first = self._queue[0]
        if first.cut is not None:
            return [self._queue.popleft()]
        writes: list[_Write] = []
        size = 0
        room = self._limits.append_batch_bytes_max
        producer = _producer_of(first)
        while self._queue and self._queue[0].cut is None and (not writes or size + self._queue[0].size <= room):
            if _producer_of(self._queue[0]) != producer:
                break
            write = self._queue.popleft()
            writes.append(write)
            size += write.size
        self._queued_bytes -= size
        return writes

    async def _append_next(self) -> None:
        failure: Exception | None = Retryable("the append was interrupted; its outcome is unknown")
        self._under_way = writes = self._still_valid(self._take())
        if not writes:
            return
        self._begun += 1
        is_cut = writes[0].cut is not None
        at_once = is_cut or any(write.guard is not None for write in writes)
        try:
            if is_cut:
                await self._all_markers_applied()
            records = [record for write in writes for record in (write.cut() if write.cut else write.records)]
            if records:
                batch = batch_of(records, self._clock.wall_ms(), rewrite=writes[0].rewrite)
                last_offset = await self._committed(batch, may_wait=not at_once, waits_on=not is_cut)
                if self._resigned is None:
                    self._apply_markers(last_offset + 1 - len(records))
                    self._appended(last_offset + 1, len(batch))
            failure = None
        except (ThermoclineError, OSError) as refused:  # TimeoutError is an OSError
            if self._resigned is None:  # after `resign` a failure is expected, and the writes were notified
                log.warning("append of %d writes to %s: %s", len(writes), self._shard_log.name, refused)
            failure = refused
        finally:
            self._settle(failure)
            self._ended += 1
            self._moved.set()

    async def _committed(self, batch: bytes, *, may_wait: bool, waits_on: bool) -> int:
        """Append `batch`, and return its last offset when it is committed. `waits_on`: wait until the high watermark
        passes the batch, or the epoch ends. Otherwise the state would lack records that the next leader reads: a
        deletion would write no tombstones for them. The writers have own deadlines. A rewrite does not wait, because
        its records are in the log already."""
        try:
            return await self._shard_log.append(batch, may_wait=may_wait)
        except NotCommittedYet as late:
            if not waits_on:
                raise
            self._late = late
        log.warning("%s: a batch waits to be committed: %s", self._shard_log.name, self._late)
        self._fail_cuts(self._late)
        last_offset = self._late.last_offset
        try:
            while self._resigned is None:
                try:
                    await self._shard_log.committed(last_offset + 1)
                except Retryable:
                    continue  # it waited for a while
                return last_offset
            raise self._resigned
        finally:
            self._late = None

    def _fail_cuts(self, failure: Exception) -> None:
        cuts = [write for write in self._queue if write.cut is not None]
        self._queue = deque(write for write in self._queue if write.cut is None)
        for write in cuts:
            tell(write.done, failure, "the writer of an append")

    def _still_valid(self, writes: list[_Write]) -> list[_Write]:
        valid = [write for write in writes if write.guard is None or not write.guard.is_void]
        for write in writes if len(valid) < len(writes) else ():
            if write.guard is not None and write.guard.is_void:
                tell(write.done, TransactionEnded("its transaction ended meanwhile"), "the writer of an append")
        return valid

    async def _all_markers_applied(self) -> None:
        """Wait for markers before records of open transactions are read, because a record after its marker would reopen
        the transaction. No batch is appended meanwhile, so few markers follow. Raises TimeoutError."""
        self._ended += 1  # markers must not wait for this batch, which waits for them
        try:
            async with asyncio.timeout(_MARKERS_WAIT_S):
                while self._markers and self._resigned is None:
                    self._moved.clear()
                    await self._moved.wait()
        finally:
            self._ended -= 1
        if self._resigned is not None:
            raise self._resigned

    def _settle(self, failure: Exception | None) -> None:
        """Notify the writes of the batch in flight, unless they were notified."""
        writes, self._under_way = self._under_way, []
        for write in writes:
            tell(write.done, failure, "the writer of an append")

    def _fail_queued(self, failure: Exception) -> None:
        self._queued_bytes = 0
        while self._queue:
            tell(self._queue.popleft().done, failure, "the writer of an append")


def _producer_of(write: _Write) -> Producer | None:
    return write.records[0].producer if write.records else None
