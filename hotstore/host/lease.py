"""A lease: the right of one replica role (leader, follower, …) to change an open log.

A log has at most one active lease. `end` takes effect at once: a later effect through the lease raises LeaseOver and is
reported to `World.late_effect` as a defect. The next lease is granted after the blocking calls of the last one
returned. When its lease is over, a log may be closed, so a role calls `check` before reads too. `append_as_leader` and
`append_as_follower` are the log's own methods until the end, so a lease does not make appends slower.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from hotstore.host.log_owner import UNOWNED, LogOwner
from hotstore.log.log_append import MarkerResult
from hotstore.log.log_swap import SegmentRun
from hotstore.log.partition_log import Appended, PartitionLog
from hotstore.log.segment import Segment
from hotstore.recovery.log_creation import Begin
from logformat.errors import Fenced
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry
from logformat.record_batch import BatchHeader, Fields
from logformat.transaction_marker import TransactionMarker
from seams.loop.workers import Lane

if TYPE_CHECKING:
    from hotstore.flush.flusher import Flusher
    from hotstore.host.log_host import LogHost
    from hotstore.host.open_log import OpenLog

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LeaseOver(Fenced):
    """The role that held the lease ended."""


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """One lease, made by `LogHost.lend`. `role`: name of the holder, for messages."""

    host: LogHost
    opened: OpenLog
    role: str
    is_over: bool = False
    log: PartitionLog = field(init=False)
    append_as_leader: Callable[[Sequence[memoryview], Sequence[Fields], int, int], Appended] = field(init=False)
    append_as_follower: Callable[[Sequence[memoryview | bytes], Sequence[BatchHeader], int], None] = field(init=False)
    _reserved_end: int = field(init=False)
    _calls: dict[asyncio.Future[Any], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = log = self.opened.log
        self.append_as_leader = log.append_as_leader
        self.append_as_follower = log.append_as_follower
        self._reserved_end = log.reserved_end

    def __str__(self) -> str:
        return f"{self.log.topic}-{self.log.partition}: {self.role}"

    # --- end --------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """End the lease: it allows no more changes."""
        if self.is_over:
            return
        self.is_over = True
        self.append_as_leader = self.append_as_follower = self._late_append
        self.log.owner = UNOWNED
        self._reserved_end = self.log.reserved_end
        self.log.reserved_end = self.log.log_end_offset  # no offset is assigned until the next leader reserves offsets

    async def returned(self) -> None:
        """Wait until all blocking calls under this lease ended. The log is then free for the next role."""
        assert self.is_over, f"{self} has not ended"
        while self._calls:
            await asyncio.wait(tuple(self._calls))

    @property
    def reserved_end(self) -> int:
        """End of the offsets that may be assigned. After the end of the lease this is the last value."""
        return self._reserved_end if self.is_over else self.log.reserved_end

    @property
    def is_returned(self) -> bool:
        return self.is_over and not self._calls

    def check(self) -> None:
        """Raise LeaseOver if the lease ended. The role calls this after an await, before an effect."""
        if self.is_over:
            raise LeaseOver(f"{self} is over")

    def _must_last(self, effect: str) -> None:
        if self.is_over:
            raise self._late(effect)

    def _late(self, effect: str) -> LeaseOver:
        why = f"{effect} of {self} came after the role ended"
        self.host.late_effect(why)
        return LeaseOver(why)

    def _late_append(self, *_: object) -> Any:
        raise self._late("an append")

    # --- effects on the loop ----------------------------------------------------------------------------------------

    @property
    def flusher(self) -> Flusher:
        """The log's current flusher. A truncation replaces it."""
        return self.opened.flusher

    @property
    def clean_end(self) -> int:
        """Offset below which the local log is clean, or has no records."""
        return max(self.log.local_log_start_offset, self.cleaned_offset)

    @property
    def cleaned_offset(self) -> int:
        """End of the last pass of compaction; 0 without one."""
        return self.host.cleaned_offset(self.opened) or 0

    def listen(self, owner: LogOwner) -> None:
        """Set the log's owner until the end of the lease."""
        self._must_last("a new owner")
        self.log.owner = owner

    def append_transactional(self, batch: memoryview, header: Fields, leader_epoch: int, now_ms: int) -> Appended:
        """See `LogAppend.append_transactional`."""
        self._must_last("a batch of a transaction")
        return self.log.append_transactional(batch, header, leader_epoch, now_ms)

    def append_markers(
        self, markers: Sequence[TransactionMarker], leader_epoch: int, now_ms: int
    ) -> list[MarkerResult]:
        """See `LogAppend.append_markers`."""
        self._must_last("markers")
        return self.log.append_markers(markers, leader_epoch, now_ms)

    def append_gap(self, batch: bytes, now_ms: int) -> Appended:
        """See `LogAppend.append_gap`."""
        self._must_last("a gap")
        return self.log.append_gap(batch, now_ms)

    def roll(self) -> bool:
        """See `LogCore.roll`."""
        self._must_last("a roll")
        return self.log.roll()

    def begin_epoch(self, leader_epoch: int) -> None:
        """See `LogCut.begin_epoch`."""
        self._must_last("a leader epoch")
        self.log.begin_epoch(leader_epoch)

    def advance_log_start(self, offset: int) -> bool:
        """See `PartitionLog.advance_log_start`."""
        self._must_last("a log start")
        return self.log.advance_log_start(offset)

    def set_log_start(self, offset: int) -> None:
        """Set the log start from a root that is newer than the files. It may be lower than the start in the files."""
        self._must_last("a log start")
        self.log.log_start_offset = offset

    def reserve(self, end_offset: int) -> None:
        """Allow the assignment of offsets below `end_offset`."""
        self._must_last("a reservation")
        self.log.reserved_end = end_offset

    def move_high_watermark(self, offset: int) -> None:
        """Record the high watermark for the next role of the log."""
        self._must_last("a high watermark")
        self.opened.high_watermark = offset

    def saw_epoch(self, leader_epoch: int) -> None:
        """Note that the log led in this epoch, or agreed with its leader."""
        self._must_last("a seen epoch")
        self.opened.seen_epoch = max(self.opened.seen_epoch, leader_epoch)

    def delete_local_before(self, offset: int) -> list[Segment]:
        """See `PartitionLog.delete_local_before`. `unlink` removes the files."""
        self._must_last("a retention")
        return self.log.delete_local_before(offset)

    # --- blocking effects ---------------------------------------------------------------------------------------------

    async def call(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        """Run a blocking call in the log's directory. It continues if the caller is cancelled. Raises PlaceQuiesced."""
        self._must_last("a blocking call")
        place = self.opened.at
        task = place.begin(function, *args, lane=lane)
        self._count(task)
        return await place.wait_for(task)

    async def unlink(self) -> None:
        """See `PartitionLog.unlink`. Raises OSError."""
        await self.call(self.log.unlink)

    async def truncate(self, offset: int) -> None:
        """Drop every batch that ends above `offset` (`LogCut.truncate_to`), durably. Earlier appends are flushed first.

        After OSError or LogFailed the log must be closed and opened again."""
        self._must_last("a cut")
        await self._to_its_end(self.host.truncate(self.opened, offset, self.check))

    async def begin_at(
        self, offset: int, epochs: LeaderEpochs, producers: Iterable[ProducerEntry], *, forget_start: bool
    ) -> None:
        """Drop all local records and start the log at `offset`. `forget_start`: no tier has records below `offset`.
        Raises the errors of `truncate`."""
        self._must_last("a restart at another offset")
        begin = Begin(offset, epochs, tuple(producers))
        await self._to_its_end(self.host.begin_at(self.opened, begin, self.check, forget_start=forget_start))

    async def swap(self, run: SegmentRun, size: int, still: Callable[[], None]) -> bool:
        """Replace `run` by its cleaned segment of `size` bytes, which is written and synced. Durable when it returns.
        `still` raises if the log changed since the cleaning. In this case nothing is changed. If the log has other
        segments now, nothing is changed and this returns False. Raises OSError, Corrupt. After an OSError the log may
        be offline."""
        self._must_last("a cleaned segment")
        return await self._to_its_end(self.host.swap(self.opened, run, size, partial(self._check_all, still)))

    async def checkpoint_cleaned(self, offset: int, still: Callable[[], None]) -> None:
        """Write durably that the log is clean below `offset`. `still`: see `swap`. Raises OSError."""
        self._must_last("a checkpoint")
        await self._to_its_end(self.host.checkpoint_cleaned(self.opened, offset, partial(self._check_all, still)))

    async def checkpoint_committed(self, offset: int) -> None:
        """Write durably that the high watermark is at or above `offset`, unless the checkpoint says so. Raises
        OSError."""
        self._must_last("a checkpoint")
        await self._to_its_end(self.host.checkpoint_committed(self.opened, offset))

    def _check_all(self, still: Callable[[], None]) -> None:
        self.check()
        still()

    async def raise_log_start(self, offset: int, still: Callable[[], None] = lambda: None) -> None:
        """Make the log start `offset` durable, then hide the records below it. So records that were reported as deleted
        never reappear (G9). If the log start is higher already, this makes it durable. `still` raises Retryable if the
        records are to stay by now. Raises OffsetOutOfRange, OSError; the log start then did not move."""
        self._must_last("a log start")
        await self._to_its_end(self.host.raise_start(self.opened, offset, partial(self._check_all, still)))

    async def checkpoint_start(self) -> None:
        """Make the log start durable. After this local bytes below it may be deleted. Concurrent calls share one write.
        Raises OSError."""
        self._must_last("a checkpoint")
        await self._to_its_end(self.host.checkpoint_start(self.opened))

    async def checkpoint(self) -> None:
        """Write recovery point, log start and high watermark durably. Raises OSError."""
        self._must_last("a checkpoint")
        await self._to_its_end(self.host.checkpoint({self.log: self.opened.high_watermark}))

    async def note_seen_epoch(self, leader_epoch: int) -> None:
        """Record durably that the log leads in `leader_epoch`, even if it knew a later one. Raises OSError."""
        self._must_last("a seen epoch")
        await self._to_its_end(self.host.note_seen_epoch(self.opened, leader_epoch))

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work)
        self._count(task)
        return await self.opened.at.wait_for(task)

    def _count(self, task: asyncio.Task[Any]) -> None:
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
