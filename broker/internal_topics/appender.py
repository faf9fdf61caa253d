"""Appends to one led partition of an internal topic: many writes in one batch, one batch at a time.

- Writes are applied in the order of submission. Each write's `done` is called exactly once.
- Writes gather while a batch is made durable, so hundreds share one flush without any linger.
- After `resign` nothing is appended, and the outcome of a batch in flight is ignored: its writes failed, and the next
  epoch's replay decides (KAFKA-20634).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from broker.internal_topics.batches import BATCH_BYTES_MAX, KeyValue, batch_of
from broker.internal_topics.interfaces import LogLimits, ShardLog
from logformat.errors import Fenced, InvalidRequest, Retryable, ThermoclineError
from seams.clock import Clock
from seams.loop.tasks import Tasks, tell

log = logging.getLogger(__name__)

_RECORD_OVERHEAD_BYTES: Final = 64  # of lengths, deltas and the batch's header, at most 20 are used


class Done(Protocol):
    def __call__(self, failure: Exception | None) -> None:
        """The write's records are durable and applied, or `failure` says why that is unknown."""


Cut = Callable[[], Sequence[KeyValue]]
"""The records to append, read at the time of the call; may be empty."""


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    size: int
    done: Done
    cut: Cut | None = None
    begins_rewrite: bool = False


class Appender:
    """`appended(end_offset, size)` is called for every durable batch, before its writes' `done`."""

    def __init__(
        self, shard_log: ShardLog, clock: Clock, limits: LogLimits, tasks: Tasks, appended: Callable[[int, int], None]
    ) -> None:
        self._shard_log = shard_log
        self._clock = clock
        self._limits = limits
        self._tasks = tasks
        self._appended = appended
        self._queue: deque[_Write] = deque()
        self._queued_bytes = 0
        self._under_way: list[_Write] = []
        self._is_running = False
        self._resigned: Fenced | None = None

    @property
    def is_idle(self) -> bool:
        return not self._is_running

    def submit(self, records: Sequence[KeyValue], done: Done) -> None:
        """Queue a write. It is refused, by a later `done`, when too many writes wait."""
        size = sum(record.size for record in records)
        refusal = self._resigned or self._refusal(len(records), size)
        if refusal is not None:
            # Not at once: the caller may be performing effects.
            asyncio.get_running_loop().call_soon(done, refusal)
            return
        self._queue.append(_Write(records, size, done))
        self._queued_bytes += size
        self._run()

    def submit_cut(self, cut: Cut, done: Done, *, begins_rewrite: bool) -> None:
        """Queue the records of `cut` as a batch of their own. When they are read, all earlier writes are applied or
        failed, and no batch is in flight. One at a time; `begins_rewrite` as in `batch_of`."""
        if self._resigned is not None:
            asyncio.get_running_loop().call_soon(done, self._resigned)
            return
        self._queue.append(_Write((), 0, done, cut, begins_rewrite))
        self._run()

    def _run(self) -> None:
        if not self._is_running:
            try:
                self._tasks.spawn(f"append {self._shard_log.name}", self._drain())
            except RuntimeError:  # the broker ends
                asyncio.get_running_loop().call_soon(self._fail_queued, self._stopped())
            else:
                self._is_running = True

    def _refusal(self, count: int, size: int) -> Exception | None:
        limits = self._limits
        if len(self._queue) >= limits.append_queue_max or self._queued_bytes + size > limits.append_queue_bytes_max:
            return Retryable(f"{self._shard_log.name} is {len(self._queue)} writes behind; try again")
        if size + _RECORD_OVERHEAD_BYTES * count > BATCH_BYTES_MAX:
            return InvalidRequest(f"a write of {count} records and {size} bytes is too large")
        return None

    def resign(self, why: Fenced) -> None:
        """The leader epoch is over: every pending write fails with `why`, now."""
        self._resigned = why
        self._settle(why)
        self._fail_queued(why)

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._append_next()
        finally:
            # Only a bug or the end of the broker leaves writes here.
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
        while self._queue and self._queue[0].cut is None and (not writes or size + self._queue[0].size <= room):
            write = self._queue.popleft()
            writes.append(write)
            size += write.size
        self._queued_bytes -= size
        return writes

    async def _append_next(self) -> None:
        failure: Exception | None = Retryable("the append was interrupted; its outcome is unknown")
        self._under_way = writes = self._take()
        try:
            records = [record for write in writes for record in (write.cut() if write.cut else write.records)]
            if records:
                batch = batch_of(records, self._clock.wall_ms(), begins_rewrite=writes[0].begins_rewrite)
                last_offset = await self._shard_log.append(batch)
                if self._resigned is None:
                    self._appended(last_offset + 1, len(batch))
            failure = None
        except (ThermoclineError, OSError) as refused:  # TimeoutError is an OSError
            if self._resigned is None:  # else it is expected, and the writes were notified
                log.warning("append of %d writes to %s: %s", len(writes), self._shard_log.name, refused)
            failure = refused
        finally:
            self._settle(failure)

    def _settle(self, failure: Exception | None) -> None:
        """Notify the writes of the batch in flight, unless they were notified."""
        writes, self._under_way = self._under_way, []
        for write in writes:
            tell(write.done, failure, "the writer of an append")

    def _fail_queued(self, failure: Exception) -> None:
        self._queued_bytes = 0
        while self._queue:
            tell(self._queue.popleft().done, failure, "the writer of an append")
