"""Who waits for one partition: acknowledgements for the high watermark, readers for anything new.

Owns the waiting lists. Always true: acknowledgements are kept in the order of their offsets, and told on the loop after
the high watermark moved; a session's reader is told once, then it asks again; when leadership ends everybody is told
at once. Must not know what moved it, nor Kafka's requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from broker.fetch_session import Target

Watcher = Callable[[], None]


class Waiters:
    """Of one partition. An acknowledgement costs one future."""

    __slots__ = ("_acks", "_readers", "_watchers")

    def __init__(self) -> None:
        self._acks: deque[tuple[int, float, asyncio.Future[None]]] = deque()
        self._watchers: dict[Watcher, None] = {}  # woken in the order they came
        self._readers: dict[Target, None] = {}  # of fetch sessions

    def ack(self, end_offset: int, deadline_s: float) -> asyncio.Future[None]:
        """Done once everything below `end_offset` is committed. Fails as `fail` says, and with TimeoutError soon after
        the loop's time `deadline_s`: `expire` looks once a second, so that an ack costs no timer of its own."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acks.append((end_offset, deadline_s, future))
        return future

    @property
    def await_flush(self) -> bool:
        """Whether an acknowledgement or a reader waits for the flushed end."""
        return bool(self._acks or self._watchers) or any(reader.awaits_flush() for reader in self._readers)

    @property
    def has_acks(self) -> bool:
        """Whether an acknowledgement waits, for whatever: its deadline has to be looked at."""
        return bool(self._acks)

    def expire(self, now_s: float) -> None:
        """Whoever waits for an ack past its deadline learns that it may still come true, or not."""
        for _, deadline_s, future in self._acks:
            if deadline_s <= now_s and not future.done():
                future.set_exception(TimeoutError("appended, but not committed within the request's timeout"))

    def moved(self, high_watermark: int) -> None:
        """Acknowledge what is committed now, and wake all readers."""
        acks = self._acks
        while acks and acks[0][0] <= high_watermark:
            future = acks.popleft()[2]
            if not future.done():
                future.set_result(None)
        self.wake()

    def fail(self, failure: Exception) -> None:
        """Nothing that waits will be committed here: whoever waits for an ack learns it now."""
        while self._acks:
            future = self._acks.popleft()[2]
            if not future.done():
                future.set_exception(failure)
        self.wake()

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` whenever something new may be readable, until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def tell_once(self, reader: Target) -> None:
        """Tell a session's reader when anything it was answered may have changed; see `broker.fetch_session`."""
        self._readers[reader] = None

    def forget(self, reader: Target) -> None:
        self._readers.pop(reader, None)

    def wake(self) -> None:
        """Tell the watchers to look again."""
        for watcher in tuple(self._watchers):
            watcher()
        if self._readers:
            readers, self._readers = self._readers, {}
            for reader in readers:
                reader.changed()
