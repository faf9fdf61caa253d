"""Response queue of one connection: keeps request order, and decides when the next request may be dispatched.

Three conditions stop dispatch: a blocking request without response (`awaited`), too many responses behind a slow
response (`answers.full`), a peer that does not take responses (`send.busy`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from broker.net.dispatch import CloseConnection, CloseReason, Later, Part
from broker.net.transport_writer import TransportWriter
from seams.files.disk import FileRange

_READY_BYTES_MAX: Final = 64 << 10
"""Bytes of responses that are ready but wait for an earlier one: beyond it the connection is not read."""


class AwaitedAnswer(Protocol):
    @property
    def is_done(self) -> bool: ...
    @property
    def failure(self) -> BaseException | None: ...
    @property
    def parts(self) -> list[Part] | None: ...


class ResponseQueue:
    """Responses that cannot leave yet, oldest first; empty while every request was answered at once.

    A response leaves only after every earlier response; a failed response ends the queue. Other objects may only read
    `entries`. It is read once a frame to see whether there are entries, because `len` costs 0.1 µs.
    """

    __slots__ = ("_count_max", "_ready_bytes", "entries")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.entries: deque[list[Part] | AwaitedAnswer] | None = None  # a deque costs 0.7 KiB: made on first use
        self._ready_bytes = 0

    def __len__(self) -> int:
        return 0 if self.entries is None else len(self.entries)

    @property
    def full(self) -> bool:
        """Whether a response must leave before the next request is dispatched."""
        return len(self) >= self._count_max or self._ready_bytes >= _READY_BYTES_MAX

    def add(self, answer: list[Part] | AwaitedAnswer) -> None:
        if self.entries is None:
            self.entries = deque()
        self.entries.append(answer)
        if isinstance(answer, list):
            self._ready_bytes += _memory(answer)

    def head(self) -> AwaitedAnswer | None:
        """After `pop_ready`, the response for which all others wait; None without such a response. If this response is
        done, it failed."""
        head = self.entries[0] if self.entries else None
        assert not isinstance(head, list), "a ready answer was left behind"
        return head

    def pop_ready(self) -> list[Part]:
        """The parts of all responses that may leave now, in order, up to a failed response."""
        ready: list[Part] = []
        entries = self.entries
        while entries:
            head = entries[0]
            if isinstance(head, list):
                ready += head
                self._ready_bytes -= _memory(head)
            elif not head.is_done or head.failure is not None:
                break
            else:
                ready += head.parts or ()
            entries.popleft()
        return ready

    def remove_last(self, answer: AwaitedAnswer) -> None:
        """Remove `answer`, the last response. No effect if the queue is already empty."""
        if self.entries and self.entries[-1] is answer:
            self.entries.pop()

    def drain(self) -> list[AwaitedAnswer]:
        """Empty the queue; returns the responses that were not ready."""
        waiting = [] if self.entries is None else [entry for entry in self.entries if not isinstance(entry, list)]
        self.entries = None
        self._ready_bytes = 0
        return waiting


def _memory(parts: list[Part]) -> int:
    """Bytes that a waiting response holds in memory; file ranges count 0."""
    return sum(len(part) for part in parts if not isinstance(part, FileRange))


class Outbox:
    """The responses of one connection. `progress` is called on the event loop when a response arrives for which other
    responses or the next frame wait. `released` is called when the next frame no longer waits, although the response is
    not ready. `failed` is called once when a response will never arrive; earlier responses leave, later responses do
    not. Its third argument is the failure if the failure is a bug.
    """

    __slots__ = ("_failed", "_progress", "_released", "answers", "awaited", "send")

    def __init__(
        self,
        answers_max: int,
        send: TransportWriter,
        progress: Callable[[Later], None],
        released: Callable[[Later], None],
        failed: Callable[[CloseReason, str, BaseException | None], None],
    ) -> None:
        self.answers = ResponseQueue(answers_max)
        self.send = send
        self.awaited: Later | None = None  # the response to a request that blocks
        self._progress = progress
        self._released = released
        self._failed = failed

    @property
    def empty(self) -> bool:
        """Whether every response has left the process."""
        return not self.answers and not self.send.busy

    def wait_for(self, later: Later) -> list[Part]:
        """Queue a response that is not ready; returns parts that may leave now (the response may already be ready)."""
        answers = self.answers
        answers.add(later)
        if later.blocks and not later.is_done:
            self.awaited = later
            later.when_released(self._released)
            if len(answers) > 1:
                later.when_done(self._progress)
        return self.pop_ready() if len(answers) == 1 else []

    def unblock(self) -> bool:
        """Whether the response that the next frame waits for is ready, or no longer blocks. If it failed, `failed` is
        called now: the next frame must not be dispatched, even if earlier responses have not left yet."""
        awaited = self.awaited
        if awaited is None or (awaited.blocks and not awaited.is_done):
            return False
        self.awaited = None
        if awaited.failure is not None:
            self.answers.remove_last(awaited)
            self._answer_failed(awaited.failure)
        return True

    def drop(self) -> None:
        for waiting in self.answers.drain():
            cast("Later", waiting).forget(self._progress)  # the callback would keep this object in memory for minutes

    def close(self) -> None:
        """The connection is gone. A blocking request that completes later drops its response; if it were kept here, it
        could hold files of a deleted segment until the garbage collector runs.
        """
        self.send.close()
        self.drop()
        self.awaited = None

    def pop_ready(self) -> list[Part]:
        """The parts that may leave. The next response will call `progress`."""
        ready = self.answers.pop_ready()
        head = cast("Later | None", self.answers.head())
        if head is None:
            pass
        elif not head.is_done:
            head.hear(self._progress)
        else:
            self.drop()
            self._answer_failed(head.failure)
        return ready

    def _answer_failed(self, failure: BaseException | None) -> None:
        if isinstance(failure, CloseConnection):
            self._failed(CloseReason.REFUSED, failure.reason, None)
        else:
            self._failed(CloseReason.FAILED, f"no answer: {failure!r}", failure)
