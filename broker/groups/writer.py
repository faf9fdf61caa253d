"""Appends to one partition of `__consumer_offsets`: many writes in one batch, one batch at a time.

Owns the queue in front of the log. Always true: writes are applied in the order they were submitted; each write's
`done` is called exactly once; while a batch is being made durable what arrives gathers for the next, so that hundreds
of commits share one flush without any linger. Must not know what the records mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from broker.config.groups import GroupConfig
from broker.groups.log import BATCH_BYTES_MAX, OffsetsLog
from broker.groups.records import KeyValue, batch_of
from logformat.errors import InvalidRequest, Retryable, ThermoclineError
from seams.clock import Clock
from seams.tasks import Tasks

log = logging.getLogger(__name__)


_RECORD_OVERHEAD_BYTES: Final = 64  # lengths, deltas and the batch's header: 20 at most are used


class Done(Protocol):
    def __call__(self, failure: Exception | None) -> None:
        """The write's records are durable and applied, or `failure` says why that is not known to be so."""
        ...


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    size: int
    done: Done


class PartitionWriter:
    """`appended(end_offset)` is told of every durable batch before its writes' `done`."""

    def __init__(
        self,
        partition: int,
        offsets_log: OffsetsLog,
        clock: Clock,
        config: GroupConfig,
        tasks: Tasks,
        appended: Callable[[int], None],
    ) -> None:
        self._partition = partition
        self._log = offsets_log
        self._clock = clock
        self._config = config
        self._tasks = tasks
        self._appended = appended
        self._queue: deque[_Write] = deque()
        self._queued_bytes = 0
        self._is_running = False

    @property
    def is_idle(self) -> bool:
        return not self._is_running

    def submit(self, records: Sequence[KeyValue], done: Done) -> None:
        """Queue a write; refused, by `done` a moment later, when the log is that far behind."""
        size = sum(record.size for record in records)
        limits = self._config
        if len(self._queue) >= limits.append_queue_max or self._queued_bytes + size > limits.append_queue_bytes_max:
            late = Retryable(f"__consumer_offsets-{self._partition} is {len(self._queue)} writes behind; try again")
            self._refuse(done, late)
            return
        if size + _RECORD_OVERHEAD_BYTES * len(records) > BATCH_BYTES_MAX:
            self._refuse(done, InvalidRequest(f"a write of {len(records)} records and {size} bytes is too large"))
            return
        self._queue.append(_Write(records, size, done))
        self._queued_bytes += size
        if not self._is_running:
            self._is_running = True
            self._tasks.spawn(f"groups-append-{self._partition}", self._drain())

    def _refuse(self, done: Done, refusal: Exception) -> None:
        # Not now: the caller may be in the middle of performing effects.
        asyncio.get_running_loop().call_soon(done, refusal)

    async def _drain(self) -> None:
        try:
            while self._queue:
                await self._append(self._take())
        finally:
            # Only a bug of ours or the end of the broker leaves something here.
            self._is_running = False
            while self._queue:
                self._queue.popleft().done(Retryable("the group coordinator stopped; find the new one"))
            self._queued_bytes = 0

    def _take(self) -> list[_Write]:
        writes: list[_Write] = []
        size = 0
        while self._queue and (not writes or size + self._queue[0].size <= self._config.append_batch_bytes_max):
            write = self._queue.popleft()
            writes.append(write)
            size += write.size
        self._queued_bytes -= size
        return writes

    async def _append(self, writes: list[_Write]) -> None:
        failure: Exception | None = Retryable("the append was cut off; its outcome is unknown")
        try:
            batch = batch_of([record for write in writes for record in write.records], self._clock.wall_ms())
            await self._ensure_created()
            last_offset = await self._log.append(self._partition, batch)
            failure = None
            self._appended(last_offset + 1)
        except (ThermoclineError, OSError) as refused:  # TimeoutError is an OSError
            log.warning("append of %d writes to __consumer_offsets-%d: %s", len(writes), self._partition, refused)
            failure = refused
        finally:
            for write in writes:
                write.done(failure)

    async def _ensure_created(self) -> None:
        try:
            await self._log.ensure_created()
        except InvalidRequest as refused:  # that is not the fault of whoever commits
            raise Retryable(f"__consumer_offsets cannot be made: {refused}") from refused
