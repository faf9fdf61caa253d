"""Answers into a transport: small buffers joined, large ones in slices, file ranges from the kernel's page cache.

Always true: bytes leave in the order given, and a frame whose length was announced is completed or the connection is
aborted. Memory stays bounded: as soon as the socket is full nothing more is handed over until it has room again; of a
file range nothing is copied meanwhile, of anything else at most one slice. Must not know requests or queues.

Hot path: several small answers leave in one system call; a file range in one `sendfile` per MiB (measured: equal to C
from 64 KB up), or as many as the socket's buffer makes it, which grows the first time that is more than one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, cast

from broker.net.counters import NetCounters
from broker.net.dispatch import CloseReason, Part
from broker.net.send_room import SendRoom
from seams.disk import FileRange
from seams.net import Net

JOIN_MAX: Final = 64 << 10
"""Buffers up to this together are joined for one send: the copy costs less than a system call and a packet."""

_SLICE: Final = 1 << 20
_WAKE_PIECE: Final = 16 << 10
"""Read into memory when the socket is full and nobody can watch it for us: the transport waits for room with it, then
sendfile goes on. Small, because it is the part that is copied."""

_TURN: Final = 4 << 20
"""Bytes one connection may send before the others get the loop (about 1 ms)."""


class Sender(Protocol):
    """Whose answers leave: the connection's life."""

    def stalled(self) -> None:
        """The socket is full."""
        ...

    def flows(self) -> None:
        """It has room again."""
        ...

    def cut(self, reason: CloseReason, detail: str) -> None:
        """A frame can no longer be completed, and the transport is aborted. Told once."""
        ...


class SendPath:
    """The send side of one connection. `drained` is told whenever everything given has left the process."""

    __slots__ = (
        "_closed",
        "_counters",
        "_drained",
        "_full",
        "_net",
        "_parts",
        "_room",
        "_sender",
        "_sent",
        "_transport",
        "_unwatch",
        "_wide",
        "_writable",
        "_yielded",
    )

    def __init__(
        self,
        net: Net,
        room: SendRoom,
        counters: NetCounters,
        transport: asyncio.Transport,
        drained: Callable[[], None],
        sender: Sender,
    ) -> None:
        transport.set_write_buffer_limits(high=0)  # paused means: something is buffered; resumed means: nothing is
        self._net = net
        self._room = room
        self._counters = counters
        self._transport = transport
        self._drained = drained
        self._sender = sender
        self._parts: deque[Part] | None = None  # what waits for room, the first one already shortened by what was sent
        self._writable = True  # the transport buffers nothing
        self._unwatch: Callable[[], None] | None = None  # the socket is watched for room: what ends that
        self._full = False  # and had none when it was looked at last
        self._wide = False
        self._yielded = False
        self._closed = False
        self._sent = 0  # bytes handed to the transport or the kernel

    @property
    def busy(self) -> bool:
        """Something has not left the process yet."""
        return not self._writable or bool(self._parts)

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever the peer took something, also of what only the kernel still has."""
        return self._sent, self._transport.get_write_buffer_size() + self._net.unacknowledged(self._transport)

    def send(self, parts: list[Part]) -> None:
        """Send parts behind all that was given before."""
        if self._writable and not self._parts:
            try:
                size = sum(map(len, cast("list[bytes]", parts)))
            except TypeError:  # a file range has no len
                size = JOIN_MAX + 1
            if size <= JOIN_MAX:
                if size:
                    self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))  # type: ignore[arg-type]
                    self._count(size)
                return
        if self._parts is None:
            self._parts = deque()
        self._parts += parts
        self._pump()

    def pause(self) -> None:
        """The socket is full."""
        self._writable = False

    def resume(self) -> None:
        """Nothing is buffered any more. Ignored after `close`."""
        if not self._closed:
            self._writable = True
            self._go_on()

    def close(self) -> None:
        """The connection is gone: let go of buffers and files."""
        self._parts = None
        self._writable = False
        self._closed = True
        self._watch_no_more()
        if self._wide:
            self._wide = False
            self._room.give_back()

    def _go_on(self) -> None:
        self._yielded = False
        self._pump()
        if not self.busy:
            self._drained()

    def _pump(self) -> None:
        parts = self._parts
        turn_end = self._sent + _TURN
        while parts and self._writable and not self._full and not self._yielded:
            part = parts[0]
            if self._sent >= turn_end:
                self._yielded = True
                asyncio.get_running_loop().call_soon(self._go_on)
            elif isinstance(part, FileRange):
                self._send_file(parts, part)
            elif len(part) > JOIN_MAX:
                self._send_large(parts, part)
            else:
                self._send_small(parts)
            parts = self._parts  # None when the connection broke meanwhile
        if self._unwatch is not None and not self._full:
            self._watch_no_more()

    def _count(self, count: int) -> None:
        self._sent += count
        self._counters.bytes_out += count

    def _send_small(self, parts: deque[Part]) -> None:
        run: list[bytes | bytearray | memoryview] = []
        size = 0
        while parts:
            part = parts[0]
            if isinstance(part, FileRange) or size + len(part) > JOIN_MAX:
                break
            run.append(part)
            size += len(part)
            parts.popleft()
        self._count(size)
        if size:
            self._transport.write(b"".join(run))

    def _send_large(self, parts: deque[Part], part: bytes | bytearray | memoryview) -> None:
        view = memoryview(part)
        if len(view) > _SLICE:
            parts[0] = view[_SLICE:]
            view = view[:_SLICE]
        else:
            parts.popleft()
        self._count(len(view))
        self._transport.write(view)

    def _send_file(self, parts: deque[Part], part: FileRange) -> None:
        wanted = min(part.length, _SLICE)
        try:
            try:
                count = self._net.send_file(self._transport, part.file, part.position, wanted)
            except BlockingIOError:
                if not self._wait_for_room():
                    self._send_copied(parts, part, min(wanted, _WAKE_PIECE))
                return
            if count < 0:
                self._send_copied(parts, part, wanted)
                return
        except ConnectionError as failure:
            self._fail(CloseReason.PEER, str(failure))
            return
        except OSError as failure:
            self._fail(CloseReason.SEND_FAILED, f"{part.file.path} at {part.position}: {failure}")
            return
        if not count and wanted:
            self._fail_short(part, 0, wanted)
            return
        self._sent_of(parts, part, count)
        if count < wanted:
            self._wait_for_room()

    def _send_copied(self, parts: deque[Part], part: FileRange, wanted: int) -> None:
        piece = part.file.read_at(part.position, wanted)
        if len(piece) != wanted:
            self._fail_short(part, len(piece), wanted)
            return
        self._sent_of(parts, part, wanted)
        self._transport.write(piece)

    def _sent_of(self, parts: deque[Part], part: FileRange, count: int) -> None:
        if count == part.length:
            parts.popleft()
        else:
            parts[0] = FileRange(part.file, part.position + count, part.length - count)
        self._count(count)

    # -- a full socket --------------------------------------------------------------------------------------------

    def _wait_for_room(self) -> bool:
        """Have the socket watched, or make it a larger one; False: a transport that buffers has to wait instead."""
        if not self._wide and self._room.widen(self._transport):
            self._wide = True
            return True
        if self._unwatch is None:
            self._unwatch = self._net.when_roomy(self._transport, self._roomy)
            if self._unwatch is None:
                return False
        self._full = True
        self._sender.stalled()
        return True

    def _roomy(self) -> None:
        if self._transport.is_closing():  # its loss is about to be told
            self._watch_no_more()
            return
        self._full = False
        self._sender.flows()
        self._go_on()

    def _watch_no_more(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _fail_short(self, part: FileRange, count: int, wanted: int) -> None:
        self._fail(
            CloseReason.SHORT_FILE,
            f"{part.file.path} has {count} of {wanted} bytes at {part.position} that a response promised",
        )

    def _fail(self, reason: CloseReason, detail: str) -> None:
        self.close()
        self._transport.abort()
        self._sender.cut(reason, detail)
