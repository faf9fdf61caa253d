"""Delayed operations of one partition: acknowledgements wait for the high watermark, readers wait for new records,
DeleteRecords waits for a log start.

- Acknowledgements are ordered by offset, including acknowledgements of resent batches. Each acknowledgement is called
  once on the loop, in the turn in which the high watermark passed it.
- An exception in a callback does not affect other callbacks; the loop's exception handler reports it.
- A fetch session's reader is called once, then registers again.
- When the leadership ends, all operations are called at once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.fetch_sessions.session import Target
from broker.replication.leader import Leader
from seams.loop.tasks import tell

Watcher = Callable[[], None]

Acked = Callable[[Exception | None], None]
"""Called once on the loop, when the records are committed or with the reason why they may not be. Never called while it
registers. It may append and register again."""

_PRODUCER: Final = "a producer that waits for an acknowledgement"
_LATE: Final = "appended, but not committed within the request's timeout"


class DelayedOperations:
    """Delayed operations of one partition. An acknowledgement costs one tuple."""

    __slots__ = ("_acks", "_high_watermark", "_is_notifying", "_readers", "_watchers", "at_tail")

    def __init__(self) -> None:
        self._acks: deque[tuple[int, float, Acked]] = deque()
        self._high_watermark = -1  # high watermark of the last `moved`
        self._is_notifying = False
        self._watchers: dict[Watcher, None] = {}  # called in the order of registration
        self._readers: dict[Target, None] = {}  # readers of fetch sessions
        self.at_tail: dict[Target | Watcher, None] = {}
        """The readers and watchers that read above the high watermark: replicas."""

    def ack(self, end_offset: int, deadline_s: float, acked: Acked) -> None:
        """Call `acked` once everything below `end_offset` is committed. When `ack` is called, it is not yet committed.
        `acked` gets the error of `fail`, or TimeoutError soon after the loop's time `deadline_s`. `expire` checks
        deadlines once a second, so an acknowledgement needs no timer."""
        acks = self._acks
        if acks and end_offset < acks[-1][0]:  # a resent batch that is not committed yet
            acks.insert(bisect_right([ack[0] for ack in acks], end_offset), (end_offset, deadline_s, acked))
        else:
            acks.append((end_offset, deadline_s, acked))

    def awaits_flush(self) -> bool:
        """Whether an acknowledgement or a reader waits for the flushed end."""
        return bool(self._acks or self._watchers) or any(reader.awaits_flush() for reader in self._readers)

    @property
    def has_acks(self) -> bool:
        """Whether an acknowledgement waits, so that deadlines have to be checked."""
        return bool(self._acks)

    def expire(self, now_s: float) -> None:
        """Fail the acknowledgements past their deadline. The records may still be committed."""
        late = [acked for _, deadline_s, acked in self._acks if deadline_s <= now_s]
        if late:
            self._acks = deque(ack for ack in self._acks if ack[1] > now_s)
            for acked in late:
                tell(acked, TimeoutError(_LATE), _PRODUCER)

    def moved(self, high_watermark: int) -> None:
        """Acknowledge committed records and wake the readers. Readers of replicas only get the new high watermark."""
        self._high_watermark = high_watermark
        if self._is_notifying:
            return  # a callback appended a batch that is committed already; the outer call continues with it
        self._is_notifying = True
        try:
            while True:
                upto = self._high_watermark
                while self._acks and self._acks[0][0] <= upto:
                    tell(self._acks.popleft()[2], None, _PRODUCER)
                self._advanced()
                if self._high_watermark == upto:
                    break
        finally:
            self._is_notifying = False

    def fail(self, failure: Exception) -> None:
        """Fail every acknowledgement now, because the pending records will not be committed here."""
        acks, self._acks = self._acks, deque()  # a callback that registers again waits for the next leadership
        for _, _, acked in acks:
            tell(acked, failure, _PRODUCER)
        self.wake()

    def watch(self, watcher: Watcher, *, at_tail: bool = False) -> None:
        """Call `watcher` whenever more may be readable, until `unwatch`. `at_tail`: call it also when more is readable
        only for replicas."""
        self._watchers[watcher] = None
        if at_tail:
            self.at_tail[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self.at_tail.pop(watcher, None)

    def tell_once(self, reader: Target) -> None:
        """Call a fetch session's reader once, when its last response may be outdated; see
        `broker.fetch_sessions.session`."""
        self._readers[reader] = None
        if reader.is_at_tail:
            self.at_tail[reader] = None

    def forget(self, reader: Target) -> None:
        self._readers.pop(reader, None)
        self.at_tail.pop(reader, None)

    def appended(self) -> None:
        """Call only the readers above the high watermark."""
        for one in tuple(self.at_tail):
            if isinstance(one, Target):
                self.forget(one)
                one.changed()
            else:
                one()

    def wake(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()
        if self._readers:
            readers, self._readers = self._readers, {}
            for reader in readers:
                self.at_tail.pop(reader, None)
                reader.changed()

    def _advanced(self) -> None:
        """The high watermark moved: all readers except replicas read again at once."""
        for watcher in tuple(self._watchers):
            watcher()
        if self._readers:
            readers, self._readers = self._readers, {}
            for reader in readers:
                if reader.is_at_tail:
                    self._readers[reader] = None
                    reader.advanced()
                else:
                    reader.changed()


class DelayedDeleteRecords:
    """DeleteRecords requests that wait until the replicas of one partition know its new log start (R7). Each request is
    notified once on the loop: when every active in-sync or proposed member fetched with that start, or when the
    leadership ends. The object is false while no request waits."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, offset: int) -> asyncio.Future[None]:
        """A future, done when all replicas know a start at or above `offset`. A caller that no longer waits cancels the
        future."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, future))
        return future

    def check(self, leader: Leader) -> None:
        left = []
        for offset, future in self._waiting:
            if future.done():
                continue
            if leader.all_know_start(offset):
                future.set_result(None)
            else:
                left.append((offset, future))
        self._waiting = left

    def fail(self, why: Exception) -> None:
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(why)
