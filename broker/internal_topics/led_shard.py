"""One shard: a partition of an internal topic while this broker leads it in one leader epoch.

State, appender and bookkeeping are created for one load and dropped together. A dropped shard does not answer or write.
Late results of its log have no effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from broker.internal_topics.appender import Appender, Cut, Done, Guard
from broker.internal_topics.batches import KeyValue, Rewrite
from broker.internal_topics.interfaces import LogLimits, ReplayedState, ShardLog
from broker.internal_topics.loading import SnapshotBook, encode, load
from logformat.errors import Fenced
from logformat.transaction_marker import TransactionMarker
from seams.clock import Clock
from seams.loop.tasks import Tasks

GROWTH_BYTES: Final = 4 << 20  # allowed above twice the live bytes: a load takes at most some hundreds of ms


@dataclass(slots=True)
class Growth:
    """Growth of a shard's log beyond its live records, and when to rewrite it. `log_bytes`: bytes in the log since the
    last rewrite began. `is_whole`: a load needs only the local log, not the bucket. `live_bytes`: the last measurement;
    None: not measured in this leader epoch. `start`: beginning of a committed rewrite to which the log start must still
    move."""

    log_bytes: int
    is_whole: bool
    live_bytes: int | None = None
    start: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether to rewrite. A rewrite writes the live bytes, so a rewrite is due only after at least as many bytes of
        changes. While `live_bytes` is unknown, a rewrite is due at the smallest size that is worth a measurement.
        """
        needs_bucket = not self.is_whole and self.start is None
        return needs_bucket or self.log_bytes > 2 * (self.live_bytes or 0) + GROWTH_BYTES

    def rewritten(self, start: int, bytes_before: int, live_bytes: int) -> None:
        """All live records are committed from `start` on, `bytes_before` bytes after the last rewrite began."""
        self.start = start
        self.log_bytes -= bytes_before
        self.live_bytes = live_bytes

    def start_moved(self) -> None:
        self.start = None
        self.is_whole = True


S = TypeVar("S", bound=ReplayedState)


class Snapshot(NamedTuple):
    """The live state at `end_offset` (exclusive), as whole batches whose offsets end at `end_offset`; b"" without live
    records."""

    end_offset: int
    batches: bytes


class LedShard(Generic[S]):
    """One shard: the state that `make` creates, its appender and its bookkeeping."""

    def __init__(
        self, shard_log: ShardLog, clock: Clock, limits: LogLimits, tasks: Tasks, make: Callable[[LedShard[S]], S]
    ) -> None:
        self.shard_log = shard_log
        self.index = shard_log.index
        self.is_ready = False
        """Requests may use the state: from the end of its load until it is dropped or the broker stops."""
        self.book = SnapshotBook(clock.monotonic_s())
        self.growth = Growth(0, is_whole=False)
        self.is_dropped = False
        self._clock = clock
        self._limits = limits
        self._appender = Appender(shard_log, clock, limits, tasks, self._appended, self._end_transaction)
        self.state = make(self)

    async def load(self, keep_objects: Callable[[], None]) -> None:
        """Replay all records. Requests are not served yet. Raises as `ShardLog.replay`."""
        loaded = await load(self.shard_log, self.state, keep_objects)
        self.book = SnapshotBook(self._clock.monotonic_s(), loaded.end_offset, loaded.snapshot_end)
        self.growth = Growth(loaded.log_bytes, is_whole=self.shard_log.is_whole)
        self._appender.loaded(loaded.end_offset)

    def submit(self, records: Sequence[KeyValue], done: Done, guard: Guard | None = None) -> None:
        """Append, in one batch with other writes. `done` is called exactly once, never before this returns. `guard`:
        nothing is appended once the guard is void; the failure is TransactionEnded."""
        self._appender.submit(records, done, guard)

    def guard(self, producer_id: int) -> Guard:
        """A guard, which the next marker of that producer makes void. The caller has to release the guard."""
        return self._appender.guard(producer_id)

    def marked(self, marker: TransactionMarker, offset: int) -> None:
        """A marker was appended to this partition at `offset`, in this leader epoch and turn of the loop."""
        self._appender.marked(marker, offset)

    def _end_transaction(self, marker: TransactionMarker) -> None:
        self.state.end_transaction(marker)

    @property
    def leader_epoch(self) -> int:
        return self.shard_log.leader_epoch

    @property
    def is_idle(self) -> bool:
        return self._appender.is_idle

    def _appended(self, end_offset: int, size: int) -> None:
        self.book.applied(end_offset)
        self.growth.log_bytes += size

    async def append_cut(self, cut: Cut, rewrite: Rewrite) -> tuple[int, Sequence[KeyValue]]:
        """Append the records of `cut`, after all earlier writes were applied (`Appender.submit_cut`). Returns the first
        offset and the records. Raises as `ShardLog.append`."""
        appended: asyncio.Future[tuple[int, Sequence[KeyValue]]] = asyncio.get_running_loop().create_future()
        records: Sequence[KeyValue] = ()

        def taken() -> Sequence[KeyValue]:
            nonlocal records
            records = cut()
            return records

        def done(failure: Exception | None) -> None:
            if appended.done():
                return  # the caller was cancelled
            if failure is None:
                appended.set_result((self.book.end_offset - len(records), records))
            else:
                appended.set_exception(failure)

        self._appender.submit_cut(taken, done, rewrite)
        return await appended

    def drop(self, why: Fenced) -> None:
        """The partition is no longer led: answer waiting requests and fail pending writes with `why`, at once."""
        self.is_ready = False
        self.is_dropped = True
        self.state.unload()
        self._appender.resign(why)

    async def snapshot(self) -> Snapshot:
        """A snapshot of the state at the time of the call; the encoding yields to the loop. One call at a time."""
        end_offset = self.book.cut(self._clock.monotonic_s())
        live = self.state.live()
        batches = await encode(live, end_offset, self._clock.wall_ms(), self._limits.append_batch_bytes_max)
        return Snapshot(end_offset, batches)


Shard: TypeAlias = LedShard[Any]
"""A shard as its state sees it."""
