"""Interfaces between the network and the dispatcher: a peer, a frame, a response.

Frames of one connection are dispatched in the order in which they arrive, and their responses leave in that order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, Protocol

from seams.files.disk import FileRange
from seams.loop.tasks import failure_of_task

ANONYMOUS: Final = "User:ANONYMOUS"
"""Kafka's principal of a client without authentication."""

Part = bytes | bytearray | memoryview | FileRange
"""A piece of a response. A buffer is kept by reference until the kernel took it: never change it after handing it over,
and never hand over a slice of the request's frame (its buffer is reused). A memoryview must be of bytes."""


AnswerFuture = asyncio.Future["list[Part] | None"]
"""Resolves to a response's parts; None: there is no response. A task awaits a `Later` in this form."""


class Later:
    """A response that is not ready yet. It is completed once: by `answer` with the parts (None: no response), or by
    `fail`.

    A failure is a `CloseConnection`, or a bug, which is reported. Both failures close the connection. A `Later` is
    never cancelled: when the peer is gone (`peer.closed`) its result is dropped. Listeners are called at once, without
    a future or a turn of the loop in between (0.3 µs).

    `blocks=True`: until the `Later` is done, the connection's next frame is not dispatched, and this frame stays valid
    (Kafka's muted channel). `blocks=False`: later frames are dispatched meanwhile, and this frame is already invalid.
    If a task returns another `Later`, the task's `Later` stops blocking before it is done.
    """

    __slots__ = ("_listeners", "_released", "blocks", "failure", "is_done", "parts")

    def __init__(self, *, blocks: bool) -> None:
        self.blocks = blocks
        self.is_done = False
        self.parts: list[Part] | None = None
        self.failure: BaseException | None = None
        self._listeners: list[Callable[[Later], object]] = []
        self._released: Callable[[Later], object] | None = None

    @classmethod
    def of(cls, future: asyncio.Future[Answer], *, blocks: bool) -> Later:
        """The result of a future or task. If that result is another `Later`, the request stops blocking, and completes
        when that `Later` does.
        """
        later = cls(blocks=blocks)
        future.add_done_callback(later._settle)
        return later

    @property
    def future(self) -> AnswerFuture:
        """Await this from a task: returns the parts, or raises."""
        future: AnswerFuture = asyncio.get_running_loop().create_future()
        self.when_done(partial(_copy, future))
        return future

    def answer(self, parts: list[Part] | None) -> None:
        assert not self.is_done
        self.parts = parts
        self._tell()

    def fail(self, failure: BaseException) -> None:
        assert not self.is_done
        self.failure = failure
        self._tell()

    def when_done(self, listener: Callable[[Later], object]) -> None:
        """Call `listener` when this `Later` is done; at once if it is done already."""
        if self.is_done:
            listener(self)
        else:
            self._listeners.append(listener)

    def hear(self, listener: Callable[[Later], object]) -> None:
        """As `when_done`, unless `listener` waits already."""
        if listener not in self._listeners:
            self.when_done(listener)

    def when_released(self, listener: Callable[[Later], object]) -> None:
        """Call `listener` if this `Later` stops blocking before it is done. At most one listener."""
        self._released = listener

    def forget(self, listener: Callable[[Later], object]) -> None:
        """Remove `listener`, however often it was added."""
        self._listeners = [one for one in self._listeners if one != listener]
        self._released = None

    def _tell(self) -> None:
        self.is_done = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(self)

    def _settle(self, future: asyncio.Future[Answer]) -> None:
        if (failure := failure_of_task(future)) is not None:
            self.fail(failure)
        elif isinstance(result := future.result(), Later):
            self._follow(result)
        else:
            self.answer(result)

    def _follow(self, other: Later) -> None:
        if not other.is_done:
            if other.blocks:
                other.when_released(self._release)
            else:
                self._release(other)
        other.when_done(self._take)

    def _release(self, _: Later) -> None:
        self.blocks = False
        if (released := self._released) is not None:
            released(self)

    def _take(self, other: Later) -> None:
        if other.failure is None:
            self.answer(other.parts)
        else:
            self.fail(other.failure)


def _copy(future: AnswerFuture, later: Later) -> None:
    if future.done():
        return  # the waiting task was cancelled
    if later.failure is None:
        future.set_result(later.parts)
    else:
        future.set_exception(later.failure)


Answer = list[Part] | None | Later
"""Parts of a whole response with its length prefix; None when there is none (acks=0)."""


class CloseReason(StrEnum):
    """The reason why a connection ended. The value is the label of a counter."""

    PEER = "peer"  # the peer or the network closed it
    FRAME_LENGTH = "frame-length"  # the length of a frame is negative, zero or above socket.request.max.bytes
    FRAME_DEADLINE = "frame-deadline"  # a frame was not completed in time
    IDLE = "idle"  # no byte for connections.max.idle.ms
    SLOW_READER = "slow-reader"  # the peer does not take its responses
    REFUSED = "refused"  # the dispatcher raised CloseConnection
    FAILED = "failed"  # the dispatcher raised another exception: a bug
    TLS_PLAINTEXT = "tls-plaintext"  # the first bytes on a listener with TLS are not TLS
    TLS_HANDSHAKE = "tls-handshake"  # no common version or cipher, or a certificate was refused by either side
    TLS_DEADLINE = "tls-deadline"  # the handshake was not completed in time
    TLS_BROKEN = "tls-broken"  # a record cannot be decrypted
    SHORT_FILE = "short-file"  # a file range ended too early: its frame cannot be completed
    SEND_FAILED = "send-failed"  # reading or sending a file range raised OSError
    TOO_MANY = "too-many"  # above max.connections.per.ip, or too many connections wait to be admitted
    TOO_FAST = "too-fast"  # the connection_creation_rate quota of the address
    DRAINED = "drained"  # the broker stops, and nothing was in flight
    STOPPED = "stopped"  # the broker stops, and responses did not leave within the drain time


class CloseConnection(Exception):
    """Raised by a dispatcher (or set on a `Later`) to close the connection after the responses to earlier requests.

    `reason` is text for the log; the peer does not see it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ServedConnection(Protocol):
    """The operations of a connection that a peer's own dispatcher uses."""

    def end(self, reason: str) -> None:
        """Close the connection after the responses in flight are sent; `reason` is for the log."""
        ...

    def limit_frames(self, frame_bytes_max: int | None) -> None:
        """Refuse longer frames from now on; None: the server's limit."""
        ...


@dataclass(slots=True, eq=False)
class Peer:
    """One connection as its requests see it; it lives as long as the connection and equals only itself. `address` is
    `host:port`, or "" if the network has no addresses.
    """

    connection_id: int
    address: str
    listener: str
    principal: str = ANONYMOUS
    closed: bool = False
    has_left: Callable[[], bool] | None = None
    """Asks the network whether the peer closed its end. While a frame waits, nothing may be read, and `closed` is late.
    None: the connection is gone, or there is none here."""
    on_closed: Callable[[], None] | None = None
    """Called once when the connection is gone."""
    throttle: Callable[[int], None] | None = None
    """Stops reading from the peer for a number of ms. None: the client of a forwarded request, which has no connection
    here."""
    produce_route: object = None
    """The dispatcher's memory of the last produce request; while it is None, `dispatch_run` is not called."""
    dispatcher: PeerDispatcher | None = None
    """Answers this peer's frames in place of the server's dispatcher, until the peer logged in and while its login may
    expire."""
    connection: ServedConnection | None = None
    """The connection of an admitted peer that has its own dispatcher."""
    access: object = None
    """The dispatcher's cache of this principal's permissions (`broker.security.client_access`)."""
    redirects: object = None
    """The leader's cache of redirects to replicas (`broker.replication.read_replica_selection`)."""

    @property
    def is_gone(self) -> bool:
        """Whether the client closed its connection. Such a client may have sent its request again to another broker."""
        return self.closed or (self.has_left is not None and self.has_left())

    @property
    def host(self) -> str:
        """`address` without the port."""
        return self.address.rpartition(":")[0]


class Dispatcher(Protocol):
    """Answers frames. Called on the event loop, in frame order; must not block."""

    def dispatch(self, peer: Peer, frame: memoryview) -> Answer:
        """Answer one request.

        `frame` is the request without its length prefix: bytes, writable (headers are stamped in place). `frame` is
        valid until this call returns. If the call returns a `Later(blocks=True)`, `frame` is valid until this `Later`
        is done. Raises `CloseConnection`.
        """
        ...

    def dispatch_run(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        """Answer the first few requests of `view[pos:end]` together.

        The bytes begin with a length prefix and are writable; the last frame may be incomplete. Returns the number of
        requests answered, the position of the next length prefix, and the joined response (None: no response). (0,
        `pos`, None): nothing happened, because the first request is incomplete or has to be dispatched by itself. A
        length that the reader would refuse is not taken. Called only for peers whose `produce_route` is set. The bytes
        are valid until this call returns, so the answer is never `Later(blocks=True)`. Raises `CloseConnection`.
        """
        ...


class PeerDispatcher(Dispatcher, Protocol):
    """The dispatcher of one peer, which replaces the server's dispatcher: it performs the login that comes before other
    requests."""

    def admitted(self, peer: Peer) -> None:
        """The connection is admitted: `peer.connection` is set, and no frame was read."""
        ...
