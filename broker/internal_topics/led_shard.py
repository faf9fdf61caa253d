"""One shard: what a broker holds of a partition of an internal topic while it leads it in one leader epoch.

Owns state, appender and books, made together for one load and dropped together. Always true: a dropped shard
answers nobody and writes nothing; what comes back late from its log changes nothing. Must not know what the state
means, nor when a shard is loaded or dropped (internal_log).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from broker.internal_topics.appender import Appender, Cut, Done
from broker.internal_topics.batches import KeyValue
from broker.internal_topics.growth import Growth
from broker.internal_topics.loading import encode, load
from broker.internal_topics.partition_door import LogLimits, PartitionDoor
from broker.internal_topics.replayed_state import ReplayedState
from broker.internal_topics.snapshot_book import SnapshotBook
from logformat.errors import Fenced
from seams.clock import Clock
from seams.tasks import Tasks

S = TypeVar("S", bound=ReplayedState)


class Snapshot(NamedTuple):
    """The live state at `end_offset` (exclusive), as whole batches whose offsets end there; b"" when nothing lives."""

    end_offset: int
    batches: bytes


class Shard(Protocol):
    """What a state knows of the shard it is the state of."""

    @property
    def index(self) -> int:
        """Of the partition."""
        ...

    @property
    def is_ready(self) -> bool:
        """Requests may see and change the state: from the end of its load until it is dropped, or the broker stops."""
        ...

    def submit(self, records: Sequence[KeyValue], done: Done) -> None:
        """Append, in one batch with others'; `done` is called exactly once, never before this returns."""
        ...


class LedShard(Generic[S]):
    """See the module. It is a `Shard` to its state, which `make` makes."""

    def __init__(
        self, door: PartitionDoor, clock: Clock, limits: LogLimits, tasks: Tasks, make: Callable[[Shard], S]
    ) -> None:
        self.door = door
        self.index = door.index
        self.is_ready = False
        self.book = SnapshotBook(clock.monotonic_s())
        self.growth = Growth(0, is_whole=False)
        self.is_dropped = False
        self._clock = clock
        self._limits = limits
        self._appender = Appender(door, clock, limits, tasks, self._appended)
        self.state = make(self)

    async def load(self, keep_objects: Callable[[], None]) -> None:
        """Replay everything; requests are not served by that alone. Raises as `PartitionDoor.replay`."""
        loaded = await load(self.door, self.state, keep_objects)
        self.book = SnapshotBook(self._clock.monotonic_s(), loaded.end_offset, loaded.snapshot_end)
        self.growth = Growth(loaded.log_bytes, is_whole=self.door.is_whole)

    def submit(self, records: Sequence[KeyValue], done: Done) -> None:
        self._appender.submit(records, done)

    @property
    def is_idle(self) -> bool:
        """No append is under way."""
        return self._appender.is_idle

    def _appended(self, end_offset: int, size: int) -> None:
        self.book.applied(end_offset)
        self.growth.log_bytes += size

    async def append_cut(self, cut: Cut, *, begins_rewrite: bool) -> tuple[int, Sequence[KeyValue]]:
        """Append what `cut` says, all before it being applied (`Appender.submit_cut`); its first offset, and what it
        was. Raises as `PartitionDoor.append`."""
        appended: asyncio.Future[tuple[int, Sequence[KeyValue]]] = asyncio.get_running_loop().create_future()
        records: Sequence[KeyValue] = ()

        def taken() -> Sequence[KeyValue]:
            nonlocal records
            records = cut()
            return records

        def done(failure: Exception | None) -> None:
            if appended.done():
                return  # whoever waited was cancelled
            if failure is None:
                appended.set_result((self.book.end_offset - len(records), records))
            else:
                appended.set_exception(failure)

        self._appender.submit_cut(taken, done, begins_rewrite=begins_rewrite)
        return await appended

    def drop(self, why: Fenced) -> None:
        """It is led no longer: whoever waits is answered, what is pending fails with `why`; all of it now."""
        self.is_ready = False
        self.is_dropped = True
        self.door.resign()
        self.state.unload()
        self._appender.resign(why)

    async def snapshot(self) -> Snapshot:
        """Cut at the moment of the call; the encoding takes turns with everybody else. One at a time."""
        end_offset = self.book.cut(self._clock.monotonic_s())
        live = self.state.live()
        batches = await encode(live, end_offset, self._clock.wall_ms(), self._limits.append_batch_bytes_max)
        return Snapshot(end_offset, batches)
