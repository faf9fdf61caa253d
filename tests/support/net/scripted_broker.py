"""Another broker as a test wants it, on a simulated network: it answers, is silent, lies or goes away."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from broker.wire.apis import response_header_version
from broker.wire.codec import decode_request, encode_response
from broker.wire.framing import RequestHeader, parse_request_header, request_frame, response_frame
from broker.wire.message import Message
from seams.net import SocketBuffers
from tests.sim.world.net import SimListener, SimNet

Rule = Callable[["Told", RequestHeader, Any], None]

__all__ = ["ScriptedBroker", "Told", "request_frame"]


class Told(asyncio.BufferedProtocol):
    """One connection to it."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._buffer = bytearray(1 << 16)
        self._data = bytearray()
        self.transport: Any = None
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._broker.connections.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self._data += self._buffer[:nbytes]
        while len(self._data) >= 4 and len(self._data) >= 4 + (size := struct.unpack_from(">i", self._data)[0]):
            frame = memoryview(bytes(self._data[4 : 4 + size]))
            del self._data[: 4 + size]
            header, at = parse_request_header(frame)
            self._broker.heard.append(header)
            self._broker.rule(self, header, decode_request(header.api_key, header.api_version, frame[at:]))

    def answer(self, header: RequestHeader, response: Message) -> None:
        version = response_header_version(header.api_key, header.api_version)
        body = encode_response(header.api_key, header.api_version, response)
        self.transport.write(b"".join(response_frame(version, header.correlation_id, body)))  # type: ignore[arg-type]


class ScriptedBroker:
    """`rule` is called with each request; `heard` has their headers. It listens from `listen` until `stop`."""

    def __init__(self, net: SimNet, rule: Rule, address: tuple[str, int] = ("127.0.0.1", 9500)) -> None:
        self.rule = rule
        self.address = address
        self.heard: list[RequestHeader] = []
        self.connections: list[Told] = []
        self._net = net
        self._listener: SimListener

    async def listen(self) -> ScriptedBroker:
        self._listener = await self._net.bind(*self.address, lambda: Told(self), SocketBuffers())
        await self._listener.accept()
        return self

    async def stop(self) -> None:
        """Nobody listens any more; connections stay."""
        await self._listener.close()

    async def die(self) -> None:
        """Nobody listens, and what there was is closed."""
        await self.stop()
        for told in self.connections:
            told.transport.abort()
