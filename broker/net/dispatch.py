"""The doors between the network and whoever answers requests.

Owns the vocabulary: a peer, a frame handed over, an answer handed back. Always true: frames of one connection are
dispatched in the order they came, and their answers leave in that order. Must not know the Kafka protocol beyond "a
frame has a length prefix", nor sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from seams.disk import FileRange

Part = bytes | bytearray | memoryview | FileRange
"""A piece of an answer. Buffers are kept by reference until the kernel took them: never change one after handing it
over, and never hand over a slice of the request's frame (its buffer is reused). A memoryview must be of bytes."""


AnswerFuture = asyncio.Future["list[Part] | None"]
"""Done with an answer's parts; None: there is no response. How a task gives or awaits a `Later`."""


class Later:
    """An answer that is not ready yet: whoever dispatched the request keeps it and says once what came of it.

    `answer` with the parts, or None for "no response"; `fail` with `CloseConnection`, or with what is reported as a bug
    and closes the connection. It is never cancelled from here: when the peer is gone (`peer.closed`) what it is told is
    dropped. Who listens is called at once, by whoever says it: no future and no turn of the loop between (0.3 µs).

    `blocks=True`: the connection's next frame is not dispatched, and this frame stays valid, until it is done (Kafka's
    muted channel). `blocks=False`: later frames are dispatched meanwhile and this frame is already invalid.
    """

    __slots__ = ("_listeners", "blocks", "failure", "is_done", "parts")

    def __init__(self, *, blocks: bool) -> None:
        self.blocks = blocks
        self.is_done = False
        self.parts: list[Part] | None = None
        self.failure: BaseException | None = None
        self._listeners: list[Callable[[Later], object]] = []

    @classmethod
    def of(cls, future: AnswerFuture, *, blocks: bool) -> Later:
        """What a future, or a task, will give."""
        later = cls(blocks=blocks)
        future.add_done_callback(later._settle)
        return later

    @property
    def future(self) -> AnswerFuture:
        """For a task that waits for it: yields the parts, or raises."""
        future: AnswerFuture = asyncio.get_running_loop().create_future()
        self.when_done(partial(_copy, future))
        return future

    def answer(self, parts: list[Part] | None) -> None:
        """It is there."""
        assert not self.is_done
        self.parts = parts
        self._tell()

    def fail(self, failure: BaseException) -> None:
        """It will never be."""
        assert not self.is_done
        self.failure = failure
        self._tell()

    def when_done(self, listener: Callable[[Later], object]) -> None:
        """Call `listener` once it is done: now, if it is."""
        if self.is_done:
            listener(self)
        else:
            self._listeners.append(listener)

    def forget(self, listener: Callable[[Later], object]) -> None:
        """Do not call it, however often it asked."""
        self._listeners = [one for one in self._listeners if one != listener]

    def _tell(self) -> None:
        self.is_done = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)

    def _settle(self, future: AnswerFuture) -> None:
        failure = asyncio.CancelledError() if future.cancelled() else future.exception()
        if failure is None:
            self.answer(future.result())
        else:
            self.fail(failure)


def _copy(future: AnswerFuture, later: Later) -> None:
    if future.done():
        return  # whoever waited was cancelled
    if later.failure is None:
        future.set_result(later.parts)
    else:
        future.set_exception(later.failure)


Answer = list[Part] | None | Later
"""Parts of a whole response, its length prefix included; None when there is none (acks=0)."""


class CloseReason(StrEnum):
    """Why a connection ended: the label of the counter, so a closed set."""

    PEER = "peer"  # it closed, or the network did
    FRAME_LENGTH = "frame-length"  # a length that is negative, zero or above socket.request.max.bytes
    FRAME_DEADLINE = "frame-deadline"  # a frame begun was not completed in time (drip)
    IDLE = "idle"  # connections.max.idle.ms
    SLOW_READER = "slow-reader"  # it does not take its answers
    REFUSED = "refused"  # the dispatcher raised CloseConnection
    FAILED = "failed"  # the dispatcher raised anything else: a bug of ours
    SHORT_FILE = "short-file"  # a file range ended before its length: its frame cannot be completed
    SEND_FAILED = "send-failed"  # reading or sending a file range raised OSError
    TOO_MANY = "too-many"  # max.connections.per.ip, or too many waiting to be admitted
    DRAINED = "drained"  # we stop, and it had nothing left in flight
    STOPPED = "stopped"  # we stop, and its answers did not leave within the drain time


class CloseConnection(Exception):
    """Raised by a dispatcher (or set on a `Later`) to drop the peer: answers before this frame still leave first.

    `reason` is text for the log; it never reaches the peer.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(slots=True, eq=False)
class Peer:
    """One connection as its requests see it; lives as long as the connection, equal only to itself.

    `address` is `host:port`, or "" where the network has none. Client id and software are what the peer last said:
    the dispatcher fills them in. `principal` is Kafka's name of who nobody authenticated, until authentication exists.
    """

    connection_id: int
    address: str
    listener: str
    client_id: str | None = None
    software_name: str = ""
    software_version: str = ""
    principal: str = "User:ANONYMOUS"
    closed: bool = False
    farewell: Callable[[], None] | None = None
    """Called once when the connection is gone, if somebody wants to know."""
    produce_route: object = None
    """What the dispatcher remembers of its last produce request; while it is None, `dispatch_run` is not asked."""
    sent_away: object = None
    """What the leader remembers of the replicas that it sent it to (`broker.replication.read_replica_selection`)."""


class Dispatcher(Protocol):
    """Who answers frames. Called on the loop, in frame order; must not block."""

    def dispatch(self, peer: Peer, frame: memoryview) -> Answer:
        """Answer one request.

        `frame` is the request without its length prefix: bytes, writable (headers are stamped in place), valid until
        this returns, or, for `Later(blocks=True)`, until it is done. Raises `CloseConnection`.
        """
        ...

    def dispatch_run(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        """Answer the first few of the requests that `view[pos:end]` holds as one.

        The bytes begin with a length prefix, and are writable; what follows the last whole frame is incomplete. How
        many requests were answered, where the next length prefix stands, and their joined answer (None: they have
        none). (0, `pos`, None): the first has to be dispatched by itself, or is not whole; nothing happened then. A
        length that the reader would refuse is left where it is. Called only for peers whose `produce_route` is set.
        The bytes are valid until this returns: never answers with `Later(blocks=True)`. Raises `CloseConnection`.
        """
        ...
