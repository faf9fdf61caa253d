"""One end of a connection, for tests of `seams.net.Net`s."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class End(asyncio.BufferedProtocol):
    """One end: what it read, and when it was made and lost. An `echo` sends everything back."""

    def __init__(self, echo: bool = False) -> None:
        self.echo = echo
        self.got = bytearray()
        self.made = self.lost = 0
        self.heard = asyncio.Event()
        self._buffer = bytearray(100)
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.made += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        self.got += data
        if self.echo:
            self.transport.write(data)
        self.heard.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1
        self.heard.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for 20 s at most."""
        async with asyncio.timeout(20):
            while not condition():
                self.heard.clear()
                await self.heard.wait()
