"""A lease: what one role of a partition holds of an open log, for as long as the role lasts.

Owns the only way to change a log or to speak for it. Always true: a log has at most one lease that lasts; `end` takes
effect at once, and an effect through an ended lease is refused, and told to `World.late_effect` as the defect it is;
the next lease is given when the blocking calls of the one before are over (`returned`). Reading needs no lease: offsets
and slices are `log`'s own. Must not know what a role is, the bucket.

Hot path: `append_as_leader` and `append_as_follower` are the log's own methods until the end: they cost nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from hotstore.host.log_owner import UNOWNED, LogOwner
from hotstore.log.partition_log import Appended, PartitionLog
from hotstore.log.segment import Segment
from hotstore.recovery.log_creation import Begin
from logformat.errors import Fenced
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry
from seams.workers import Lane

if TYPE_CHECKING:
    from hotstore.flush.flusher import Flusher
    from hotstore.host.log_host import LogHost
    from hotstore.host.open_log import OpenLog

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LeaseOver(Fenced):
    """The role that held the log is over."""


class Lease:
    """See the module. Made by `LogHost.lend`. `role`: whose it is, for messages."""

    __slots__ = (
        "_calls",
        "_host",
        "_reserved_end",
        "append_as_follower",
        "append_as_leader",
        "is_over",
        "log",
        "opened",
        "role",
    )

    def __init__(self, host: LogHost, opened: OpenLog, role: str) -> None:
        log = opened.log
        self.opened = opened
        self.log: PartitionLog = log
        self.role = role
        self.is_over = False
        self._host = host
        self._reserved_end = log.reserved_end
        self._calls: dict[asyncio.Future[Any], None] = {}
        self.append_as_leader = log.append_as_leader
        self.append_as_follower = log.append_as_follower

    def __str__(self) -> str:
        return f"{self.log.topic}-{self.log.partition}: {self.role}"

    # --- its end ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """The role is over: nothing changes the log or speaks for it through this lease any more."""
        if self.is_over:
            return
        self.is_over = True
        self.append_as_leader = self.append_as_follower = self._late_append  # type: ignore[assignment]  # it raises
        self.log.owner = UNOWNED
        self._reserved_end = self.log.reserved_end
        self.log.reserved_end = self.log.log_end_offset  # no offset is given until the next leader says which

    async def returned(self) -> None:
        """Wait until the blocking calls that were begun under it are over: the log is free for the next role."""
        assert self.is_over, f"{self} goes on"
        while self._calls:
            await asyncio.wait(tuple(self._calls))

    @property
    def reserved_end(self) -> int:
        """Up to where offsets may be given; of a lease that is over, might be given when it ended."""
        return self._reserved_end if self.is_over else self.log.reserved_end

    @property
    def is_returned(self) -> bool:
        return self.is_over and not self._calls

    def check(self) -> None:
        """After a wait, before an effect. Raises LeaseOver where the role ended meanwhile."""
        if self.is_over:
            raise LeaseOver(f"{self} is over")

    def _must_last(self, effect: str) -> None:
        if self.is_over:
            raise self._late(effect)

    def _late(self, effect: str) -> LeaseOver:
        why = f"{effect} of {self} came after that role was over"
        self._host.late_effect(why)
        return LeaseOver(why)

    def _late_append(self, *_: object) -> Any:
        raise self._late("an append")

    # --- effects on the loop ----------------------------------------------------------------------------------------

    @property
    def flusher(self) -> Flusher:
        """The log's; another one after a cut."""
        return self.opened.flusher

    def listen(self, owner: LogOwner) -> None:
        """`owner` is told what happens to the log until the end."""
        self._must_last("a new owner")
        self.log.owner = owner

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
        """Where the log starts, by a root that knows better than its files; lower, perhaps, than they say."""
        self._must_last("a log start")
        self.log.log_start_offset = offset

    def reserve(self, end_offset: int) -> None:
        """Offsets below `end_offset` may be given."""
        self._must_last("a reservation")
        self.log.reserved_end = end_offset

    def move_high_watermark(self, offset: int) -> None:
        """As the next role of the log is to know it."""
        self._must_last("a high watermark")
        self.opened.high_watermark = min(offset, self.log.log_end_offset)

    def saw_epoch(self, leader_epoch: int) -> None:
        """The log led in it, or agreed with its leader."""
        self._must_last("a seen epoch")
        self.opened.seen_epoch = max(self.opened.seen_epoch, leader_epoch)

    def delete_local_before(self, offset: int) -> list[Segment]:
        """See `PartitionLog.delete_local_before`; `unlink` removes their files."""
        self._must_last("a retention")
        return self.log.delete_local_before(offset)

    # --- effects that take a while ------------------------------------------------------------------------------------

    async def call(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        """A blocking call in the log's place. Whoever is cut off only stops waiting. Raises PlaceQuiesced."""
        self._must_last("a blocking call")
        place = self.opened.at
        task = place.begin(function, *args, lane=lane)
        self._count(task)
        return await place.waited(task)

    async def unlink(self) -> None:
        """See `PartitionLog.unlink`. Raises OSError."""
        await self.call(self.log.unlink)

    async def truncate(self, offset: int) -> None:
        """Drop every batch that ends above `offset` (`LogCut.truncate_to`), durably; what was appended is flushed
        first. Raises OSError, LogFailed, after which the log must be closed and opened again."""
        self._must_last("a cut")
        await self._to_its_end(self._host.truncate(self.opened, offset, self.check))

    async def begin_at(
        self, offset: int, epochs: LeaderEpochs, producers: Iterable[ProducerEntry], *, forget_start: bool
    ) -> None:
        """Drop everything local and begin at `offset`. `forget_start`: nothing below it is in any tier. Raises as
        `truncate`."""
        self._must_last("a beginning elsewhere")
        begin = Begin(offset, epochs, tuple(producers))
        await self._to_its_end(self._host.begin_at(self.opened, begin, self.check, forget_start=forget_start))

    async def checkpoint_start(self) -> None:
        """Make the log's start durable: its bytes below may go. Many at once are one write. Raises OSError."""
        self._must_last("a checkpoint")
        await self._to_its_end(self._host.checkpoint_start(self.opened))

    async def checkpoint(self) -> None:
        """Note recovery point, log start and high watermark durably. Raises OSError."""
        self._must_last("a checkpoint")
        await self._to_its_end(self._host.checkpoint({self.log: self.opened.high_watermark}))

    async def note_seen_epoch(self, leader_epoch: int) -> None:
        """Durably: the log leads in `leader_epoch`, whatever it held before. Raises OSError."""
        self._must_last("a seen epoch")
        await self._to_its_end(self._host.note_seen_epoch(self.opened, leader_epoch))

    async def _to_its_end(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._count(task)
        await self.opened.at.waited(task)

    def _count(self, task: asyncio.Task[Any]) -> None:
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
