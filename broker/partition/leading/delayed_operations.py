"""Who waits for one partition: acknowledgements for the high watermark, readers for anything new.

Owns the waiting lists. Always true: acknowledgements are kept in the order of their offsets, also of a resend that asks
behind newer ones, and each is told once, on the loop, in the turn in which the high watermark passed it; whoever fails
over being told keeps nobody else from it, and the loop's exception handler hears of that; a session's reader is told
once, then it asks again; when leadership ends everybody is told at once. Must not know what moved it, nor Kafka's
requests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.fetch_sessions.session import Target
from seams.tasks import tell

Watcher = Callable[[], None]

Acked = Callable[[Exception | None], None]
"""Told that what waits for its acknowledgement is committed, or why it is not known to be. On the loop, once, in the
same turn in which that came about, and never while it is still asking; it may append and ask again."""

_PRODUCER: Final = "a producer that waits for an acknowledgement"
_LATE: Final = "appended, but not committed within the request's timeout"


class DelayedOperations:
    """Of one partition. An acknowledgement costs a tuple."""

    __slots__ = ("_acks", "_high_watermark", "_is_telling", "_readers", "_watchers", "at_tail")

    def __init__(self) -> None:
        self._acks: deque[tuple[int, float, Acked]] = deque()
        self._high_watermark = -1  # what `moved` heard last
        self._is_telling = False
        self._watchers: dict[Watcher, None] = {}  # woken in the order they came
        self._readers: dict[Target, None] = {}  # of fetch sessions
        self.at_tail: dict[Target | Watcher, None] = {}
        """Those of both who read beyond the high watermark: replicas."""

    def ack(self, end_offset: int, deadline_s: float, acked: Acked) -> None:
        """Call `acked` once everything below `end_offset` is committed, which it is not now; with a failure as `fail`
        says, and with TimeoutError soon after the loop's time `deadline_s`: `expire` looks once a second, so that an
        ack costs no timer of its own."""
        acks = self._acks
        if acks and end_offset < acks[-1][0]:  # a resend of what is not committed yet
            acks.insert(bisect_right([ack[0] for ack in acks], end_offset), (end_offset, deadline_s, acked))
        else:
            acks.append((end_offset, deadline_s, acked))

    def awaits_flush(self) -> bool:
        """Whether an acknowledgement or a reader waits for the flushed end."""
        return bool(self._acks or self._watchers) or any(reader.awaits_flush() for reader in self._readers)

    @property
    def has_acks(self) -> bool:
        """Whether an acknowledgement waits, for whatever: its deadline has to be looked at."""
        return bool(self._acks)

    def expire(self, now_s: float) -> None:
        """Whoever waits for an ack past its deadline learns that it may still come true, or not."""
        late = [acked for _, deadline_s, acked in self._acks if deadline_s <= now_s]
        if late:
            self._acks = deque(ack for ack in self._acks if ack[1] > now_s)
            for acked in late:
                tell(acked, TimeoutError(_LATE), _PRODUCER)

    def moved(self, high_watermark: int) -> None:
        """Acknowledge what is committed now, and wake all readers; to replicas it is no more than news of the high
        watermark."""
        self._high_watermark = high_watermark
        if self._is_telling:
            return  # one of those who are told appended, and that is committed: the call that tells them goes on
        self._is_telling = True
        try:
            while True:
                upto = self._high_watermark
                while self._acks and self._acks[0][0] <= upto:
                    tell(self._acks.popleft()[2], None, _PRODUCER)
                self._advanced()
                if self._high_watermark == upto:
                    break
        finally:
            self._is_telling = False

    def fail(self, failure: Exception) -> None:
        """Nothing that waits will be committed here: whoever waits for an ack learns it now."""
        acks, self._acks = self._acks, deque()  # who asks again while being told waits for what comes next
        for _, _, acked in acks:
            tell(acked, failure, _PRODUCER)
        self.wake()

    def watch(self, watcher: Watcher, *, at_tail: bool = False) -> None:
        """Call `watcher` whenever something new may be readable, until `unwatch`; `at_tail`: also by replicas."""
        self._watchers[watcher] = None
        if at_tail:
            self.at_tail[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self.at_tail.pop(watcher, None)

    def tell_once(self, reader: Target) -> None:
        """Tell a session's reader when anything it was answered may have changed; see
        `broker.fetch_sessions.session`."""
        self._readers[reader] = None
        if reader.is_at_tail:
            self.at_tail[reader] = None

    def forget(self, reader: Target) -> None:
        self._readers.pop(reader, None)
        self.at_tail.pop(reader, None)

    def appended(self) -> None:
        """Tell those who read beyond the high watermark. Nobody else: to them nothing happened yet."""
        for one in tuple(self.at_tail):
            if isinstance(one, Target):
                self.forget(one)
                one.changed()
            else:
                one()

    def verified(self) -> None:
        """The bucket is known to hold more: replicas let go of it, nobody else is to know."""
        self.appended()

    def wake(self) -> None:
        """Tell all of them to look again."""
        for watcher in tuple(self._watchers):
            watcher()
        if self._readers:
            readers, self._readers = self._readers, {}
            for reader in readers:
                self.at_tail.pop(reader, None)
                reader.changed()

    def _advanced(self) -> None:
        """Tell them that the high watermark moved: all but replicas look again at once."""
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


class WaitedFor:
    """What a partition passes on to its `delayed_operations` as it is."""

    __slots__ = ()

    waiters: DelayedOperations

    def unwatch(self, watcher: Watcher) -> None:
        self.waiters.unwatch(watcher)

    def tell_once(self, reader: Target) -> None:
        """See `DelayedOperations.tell_once`."""
        self.waiters.tell_once(reader)

    def forget(self, reader: Target) -> None:
        self.waiters.forget(reader)
