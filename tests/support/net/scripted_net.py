"""A network for tests of `broker.net`: no sockets; its peer takes and sends exactly what the test says."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any

from broker.net.dispatch import Answer, Part, Peer
from seams.files.disk import Buffer, File, FileRange
from seams.net import SocketBuffers


def frame(body: bytes) -> bytes:
    """`body` with its length prefix, as a peer sends it."""
    return struct.pack(">i", len(body)) + body


class BytesFile:
    """A `File` of fixed content that counts what is read into memory."""

    def __init__(self, data: bytes, path: str = "/log") -> None:
        self.data = data
        self.path = path
        self.bytes_read = 0
        self.failure: OSError | None = None

    def read_at(self, position: int, length: int) -> bytes:
        if self.failure is not None:
            raise self.failure
        piece = self.data[position : position + length]
        self.bytes_read += len(piece)
        return piece

    def read_into(self, position: int, buffer: memoryview) -> int:
        raise NotImplementedError

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        raise NotImplementedError

    def sync(self) -> None: ...
    def truncate(self, size: int) -> None:
        self.data = self.data[:size]

    def allocate_ahead(self, position: int, end: int) -> None:
        raise NotImplementedError

    def size(self) -> int:
        return len(self.data)

    def descriptor(self) -> int | None:
        return None

    def close(self) -> None: ...


class ScriptedTransport(asyncio.Transport):
    """What asyncio's socket transport does, with a socket buffer of `room` bytes and a peer that reads on `take`."""

    def __init__(self, protocol: asyncio.BufferedProtocol, room: int = 1 << 30) -> None:
        super().__init__()
        self.protocol = protocol
        self.room = room
        self.wire = bytearray()  # what reached the peer's side
        self.writes = 0
        self.buffered = bytearray()
        self.reading = True
        self.pauses = 0
        self.closed = False
        self.aborted = False
        self._high = 64 << 10
        self._write_paused = False
        self._resuming = False
        self._unread = bytearray()
        self._watcher: Callable[[], None] | None = None

    @property
    def watched(self) -> bool:
        """Somebody watches the socket for room."""
        return self._watcher is not None

    def watch(self, tell: Callable[[], None]) -> Callable[[], None]:
        """As the loop does it: told once a turn while there is room, until the end."""
        assert self._watcher is None, "watched already"
        self._watcher = tell
        loop = asyncio.get_running_loop()

        def look() -> None:
            if self._watcher is tell:
                if self.room > 0:
                    tell()
                loop.call_soon(look)

        def end() -> None:
            assert self._watcher is tell, "ended before"
            self._watcher = None

        loop.call_soon(look)
        return end

    # what the code under test calls
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            return
        self.writes += 1
        self.buffered += data
        self._flush()
        if len(self.buffered) > self._high and not self._write_paused:
            self._write_paused = True
            self.protocol.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self.buffered)

    def pause_reading(self) -> None:
        self.pauses += 1
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        if self._unread and not self.closed:
            asyncio.get_running_loop().call_soon(self.give, b"")

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def close(self) -> None:
        assert not self._resuming, "closed within resume_writing: asyncio would report the loss twice (CPython 3.11)"
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        if not self.closed:
            self.aborted = True
            self.buffered.clear()
            self.close()

    # what the peer does
    def give(self, data: bytes, read_max: int = 1 << 30) -> None:
        """The peer sends; the protocol reads as long as it wants to, at most `read_max` bytes at a time."""
        self._unread += data
        while self._unread and self.reading and not self.closed:
            buffer = self.protocol.get_buffer(-1)
            assert len(buffer) > 0, "get_buffer returned nothing to read into"
            count = min(len(buffer), len(self._unread), read_max)
            buffer[:count] = self._unread[:count]
            del self._unread[:count]
            self.protocol.buffer_updated(count)

    @property
    def unread(self) -> int:
        """Bytes the peer sent that were not read from it."""
        return len(self._unread)

    def take(self, room: int) -> None:
        """The peer reads, so that `room` more bytes fit."""
        self.room += room
        self._flush()
        if not self.buffered and self._write_paused:
            self._write_paused = False
            self._resuming = True
            self.protocol.resume_writing()
            self._resuming = False

    def send_now(self, data: bytes) -> int:
        count = 0 if self.buffered else min(self.room, len(data))
        self.wire += data[:count]
        self.room -= count
        return count

    def _flush(self) -> None:
        count = min(self.room, len(self.buffered))
        self.wire += self.buffered[:count]
        del self.buffered[:count]
        self.room -= count


class ScriptedListener:
    def __init__(self) -> None:
        self.closed = False

    @property
    def address(self) -> tuple[str, int]:
        return ("test", 1)

    async def accept(self) -> None:
        assert not self.closed

    async def close(self) -> None:
        self.closed = True


class ScriptedNet:
    """`Net` for `ScriptedTransport`s. `native=False`: file ranges cannot be sent by the kernel, as in TLS;
    `watches=False`: no descriptor is left to watch a socket with."""

    def __init__(self, native: bool = True, watches: bool = True) -> None:
        self.native = native
        self.watches = watches
        self.widened = 0
        self.listener = ScriptedListener()
        self.factory: Callable[[], asyncio.BaseProtocol] | None = None
        self.failure: OSError | None = None
        self.files_sent = 0

    async def bind(
        self, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol], buffers: SocketBuffers
    ) -> ScriptedListener:
        self.factory = factory
        return self.listener

    def send_file(self, transport: asyncio.WriteTransport, file: File, position: int, length: int) -> int:
        if self.failure is not None:
            raise self.failure
        if not self.native:
            return -1
        assert isinstance(transport, ScriptedTransport) and isinstance(file, BytesFile)
        self.files_sent += 1
        piece = file.data[position : position + length]
        count = transport.send_now(piece)
        if piece and not count:
            raise BlockingIOError(11, "full")
        return count

    def when_roomy(self, transport: asyncio.WriteTransport, tell: Callable[[], None]) -> Callable[[], None] | None:
        assert isinstance(transport, ScriptedTransport)
        return transport.watch(tell) if self.watches else None

    def has_room(self, transport: asyncio.BaseTransport, share: float) -> bool:
        return True

    def widen(self, transport: asyncio.WriteTransport, size: int) -> None:
        end = transport.get_extra_info("socket")
        assert isinstance(end, ScriptedTransport)
        end.room += size
        self.widened += 1

    def has_left(self, transport: asyncio.BaseTransport) -> bool:
        return transport.is_closing()

    def unacknowledged(self, transport: asyncio.WriteTransport) -> int:
        return 0

    async def resolve(self, host: str, timeout_s: float) -> list[str]:
        raise OSError(f"nobody knows {host}")

    async def connect(
        self, host: str, port: int, protocol: asyncio.BaseProtocol, timeout_s: float
    ) -> asyncio.Transport:
        raise ConnectionRefusedError(f"nobody listens at {host}:{port}")

    def arrive(self, room: int = 1 << 30) -> ScriptedTransport:
        """A peer connects to us."""
        assert self.factory is not None, "nobody listens"
        protocol = self.factory()
        assert isinstance(protocol, asyncio.BufferedProtocol)
        transport = ScriptedTransport(protocol, room)
        protocol.connection_made(transport)
        return transport


class ScriptedDispatcher:
    """Answers by the first bytes of a frame: what `rules` says, or an echo. Remembers every frame it saw.

    `together`: how many frames of a run are answered as one; the next run takes the next number, then none.
    """

    def __init__(self) -> None:
        self.together: list[int] = []
        self.seen: list[bytes] = []
        self.views: list[memoryview] = []
        self.peers: list[Peer] = []
        self.rules: dict[bytes, Callable[[], Answer]] = {}

    def dispatch_run(self, peer: Peer, view: memoryview, pos: int, end: int) -> tuple[int, int, Answer]:
        start, count = pos, self.together.pop(0) if self.together else 0
        taken = 0
        while taken < count and end - pos >= 4:
            stop = pos + 4 + struct.unpack_from(">i", view, pos)[0]
            if stop > end:
                break
            self.seen.append(bytes(view[pos + 4 : stop]))
            taken, pos = taken + 1, stop
        return taken, pos, [bytes(view[start:pos])] if taken else None

    def dispatch(self, peer: Peer, request: memoryview) -> Answer:
        body = bytes(request)
        self.seen.append(body)
        self.views.append(request)
        self.peers.append(peer)
        for start, rule in self.rules.items():
            if body.startswith(start):
                return rule()
        return [frame(body)]


def flat(parts: list[Part]) -> bytes:
    """The bytes of an answer."""
    return b"".join(
        part.file.read_at(part.position, part.length) if isinstance(part, FileRange) else bytes(part) for part in parts
    )
