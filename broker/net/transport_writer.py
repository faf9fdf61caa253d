"""Writes responses to a transport: small buffers joined, large buffers in slices, file ranges by sendfile. Bytes leave
in the given order. A frame whose length was sent is completed, or the connection is aborted. When the socket is full,
writing stops until it has room. Meanwhile at most one slice of a buffer is held as a copy, and no file range.

Hot path: several small responses leave in one system call. A file range leaves in one `sendfile` per MiB (measured:
from 64 KB on as fast as C). If the socket's buffer is too small, more calls are needed; the buffer grows the first time
that happens.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from broker.net.dispatch import CloseReason, Part
from seams.files.disk import FileRange
from seams.net import Net

if TYPE_CHECKING:
    from broker.net.shared import NetCounters

JOIN_MAX: Final = 64 << 10
"""Buffers up to this together are joined for one send: the copy costs less than a system call and a packet."""

_SLICE: Final = 1 << 20
_TLS_SLICE: Final = 256 << 10
"""Bytes to encrypt at a time: about as many as a wide socket takes at once. On every send asyncio (CPython 3.11) moves
the bytes that the socket did not take: 1 MiB at a time costs 3.3 s/GB, this size 0.84."""

_WAKE_PIECE: Final = 16 << 10
"""Bytes read into memory when the socket is full and cannot be watched. The transport waits until they fit; then
sendfile resumes. It is small, because the bytes are copied.
"""

_TURN: Final = 4 << 20
"""Bytes one connection may send before others have their turn (about 1 ms)."""

WIDE_BYTES: Final = 208 << 10
"""Requested from the kernel; the usual `net.core.wmem_max`."""


class Sender(Protocol):
    """Listener for the events of a writer."""

    def stalled(self) -> None:
        """The socket is full."""
        ...

    def writable(self) -> None:
        """The socket has room again."""
        ...

    def cut(self, reason: CloseReason, detail: str) -> None:
        """A frame can no longer be completed, and the transport is aborted. Called once."""
        ...


class TransportWriter:
    """The send side of one connection. `drained` is called whenever all parts have left the process."""

    __slots__ = (
        "_closed",
        "_counters",
        "_drained",
        "_full",
        "_is_tls",
        "_net",
        "_parts",
        "_room",
        "_sender",
        "_sent",
        "_slice",
        "_transport",
        "_unwatch",
        "_wide",
        "_writable",
        "_yielded",
    )

    def __init__(
        self,
        net: Net,
        room: WideSendBuffers,
        counters: NetCounters,
        transport: asyncio.Transport,
        drained: Callable[[], None],
        sender: Sender,
    ) -> None:
        transport.set_write_buffer_limits(high=0)  # the transport is paused while it buffers bytes
        self._net = net
        self._room = room
        self._counters = counters
        self._transport = transport
        self._drained = drained
        self._sender = sender
        self._parts: deque[Part] | None = None  # parts that wait for room, without the bytes already sent
        self._writable = True  # the transport's buffer is empty
        self._unwatch: Callable[[], None] | None = None  # stops watching the socket for room
        self._full = False  # the watched socket had no room
        self._wide = False
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        self._slice = _TLS_SLICE if self._is_tls else _SLICE
        self._yielded = False
        self._closed = False
        self._sent = 0  # bytes handed to the transport or the kernel

    @property
    def busy(self) -> bool:
        """Whether bytes have not left the process yet."""
        return not self._writable or bool(self._parts)

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes whenever the peer took bytes, including bytes that were only in the kernel."""
        return self._sent, self._transport.get_write_buffer_size() + self._net.unacknowledged(self._transport)

    def send(self, parts: list[Part]) -> None:
        """Send parts after all earlier parts."""
        if self._writable and not self._parts:
            try:
                size = sum(map(len, parts))  # type: ignore[arg-type]
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
        self._writable = False
        if self._is_tls and self._parts and not self._wide:
            self._wide = self._room.widen(self._transport)

    def resume(self) -> None:
        """The transport's buffer is empty. Ignored after `close`."""
        if not self._closed:
            self._writable = True
            self._resume_pump()

    def close(self) -> None:
        """The connection is gone: drop buffers and files."""
        self._parts = None
        self._writable = False
        self._closed = True
        self._stop_watching()
        if self._wide:
            self._wide = False
            self._room.give_back()

    def _resume_pump(self) -> None:
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
                asyncio.get_running_loop().call_soon(self._resume_pump)
            elif isinstance(part, FileRange):
                self._send_file(parts, part)
            elif len(part) > JOIN_MAX:
                self._send_large(parts, part)
            else:
                self._send_small(parts)
            parts = self._parts  # None if the connection broke meanwhile
        if self._unwatch is not None and not self._full:
            self._stop_watching()

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
        if len(view) > self._slice:
            parts[0] = view[self._slice :]
            view = view[: self._slice]
        else:
            parts.popleft()
        self._count(len(view))
        self._transport.write(view)

    def _send_file(self, parts: deque[Part], part: FileRange) -> None:
        wanted = min(part.length, self._slice)
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
        """Watch the socket, or widen its buffer. False: the transport has to buffer and wait instead."""
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
        if self._transport.is_closing():  # `connection_lost` follows
            self._stop_watching()
            return
        self._full = False
        self._sender.writable()
        self._resume_pump()

    def _stop_watching(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None

    def _fail_short(self, part: FileRange, count: int, wanted: int) -> None:
        self._fail(
            CloseReason.SHORT_FILE,
            f"{part.file.path} has only {count} bytes at {part.position}, and a response announced {wanted}",
        )

    def _fail(self, reason: CloseReason, detail: str) -> None:
        self.close()
        self._transport.abort()
        self._sender.cut(reason, detail)


class WideSendBuffers:
    """Kernel send buffers wider than configured, for at most `connections_max` connections that fetch much. A
    connection gets a wide buffer when its socket has no room for a file range, and keeps the buffer to its end. A
    reader of 1 MB responses then needs half as many turns of the broker, because the kernel sends while the reader
    reads. The kernel holds references to the page cache, not copies: at most 416 KiB a connection (the kernel doubles
    the requested size), 256 MiB in all. Further connections need more turns, and so do all connections if
    `net.core.wmem_max` is smaller. A larger buffer would be worse. If a whole response fits, eight readers cost 0.73
    s/GB of CPU (with the readers' CPU) instead of 0.57 s/GB. A busy reader then had 1 MB after 8 ms instead of 2 to 4
    ms (under BBR and Reno).
    """

    def __init__(self, net: Net, connections_max: int) -> None:
        self._net = net
        self._free = connections_max

    def widen(self, transport: asyncio.WriteTransport) -> bool:
        """Give this connection a wide buffer; False when too many connections have a wide buffer. `give_back` follows
        at the end of the connection."""
        if not self._free:
            return False
        self._free -= 1
        self._net.widen(transport, WIDE_BYTES)
        return True

    def give_back(self) -> None:
        self._free += 1
