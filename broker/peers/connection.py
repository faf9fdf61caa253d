"""A connection to one broker, opened by the first request and again after a break.

A request is sent at most once. It ends within its time by one of these:

* its response;
* ConnectionRefusedError: no process listens, nothing was sent;
* another ConnectionError: the broker may have received it, unless the message says that nothing was sent;
* TimeoutError. A time-out closes the connection: responses arrive in order, so all later ones would be as late. Only a
  time-out detects a network that drops all bytes.
"""

from __future__ import annotations

import asyncio

from broker.net.buffers import BufferPool
from broker.peers.link_login import LinkLogin
from broker.peers.stream import PeerStream
from broker.peers.tls_client import ClientSession, ClientTls
from broker.wire.message import Message
from seams.net import Net

Address = tuple[str, int]


class PeerConnection:
    """A connection that reconnects. `tls` is None if the other broker's listener does not speak TLS. `login` is None if
    the listener needs no login."""

    def __init__(
        self,
        net: Net,
        address: Address,
        client_id: str,
        pool: BufferPool,
        frame_bytes_max: int,
        tls: ClientTls | None = None,
        login: LinkLogin | None = None,
    ) -> None:
        self.address = address
        self._tls = tls
        self._login = login
        self._replace_s: float | None = None  # time at which the login of `_stream` is too old
        self._net = net
        self._client_id = client_id
        self._pool = pool
        self._frame_bytes_max = frame_bytes_max
        self._stream: PeerStream | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        return 0 if self._stream is None else self._stream.in_flight

    async def ask(self, request: Message, version: int, timeout_s: float) -> Message:
        """The response to `request`. `timeout_s` includes the time to connect. Raises ConnectionError and TimeoutError
        as the module says. PeerBusy and UnsupportedByPeer are ConnectionErrors."""
        stream: PeerStream | None = None
        try:
            async with asyncio.timeout(timeout_s):
                known = self._stream
                stream = known if known is not None and self._is_usable(known) else await self._connected(timeout_s)
                return await stream.ask(request, version)
        except TimeoutError:
            if stream is None:
                raise TimeoutError(f"{self._who}: no connection within {timeout_s:g} s") from None
            stream.end(f"there was no answer within {timeout_s:g} s")
            raise TimeoutError(f"{self._who}: no answer within {timeout_s:g} s") from None

    def close(self) -> None:
        """Close the connection, and never reconnect. Waiting requests get ConnectionError."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.end("this broker closed the connection")

    @property
    def _who(self) -> str:
        return f"broker at {self.address[0]}:{self.address[1]}"

    async def _connected(self, timeout_s: float) -> PeerStream:
        async with self._connecting:
            if self._is_closed:
                raise ConnectionError(f"{self._who}: this broker closed the connection; nothing was sent")
            old = self._stream
            if old is not None and self._is_usable(old):
                return old
            self._stream = await self._connect(timeout_s)
            if old is not None:
                old.retire()
            return self._stream

    def _is_usable(self, stream: PeerStream) -> bool:
        due_s = self._replace_s
        return stream.is_open and (due_s is None or asyncio.get_running_loop().time() < due_s)

    async def _connect(self, timeout_s: float) -> PeerStream:
        stream = PeerStream(self._who, self._client_id, self._pool, self._frame_bytes_max)
        session = None if self._tls is None else ClientSession(stream, self._tls, self.address[0], self._who)
        try:
            await self._net.connect(*self.address, stream if session is None else session.protocol, timeout_s)
        except ConnectionRefusedError:
            raise ConnectionRefusedError(f"{self._who}: the connection was refused; nothing was sent") from None
        except TimeoutError:
            raise
        except OSError as unreachable:
            raise ConnectionError(f"{self._who}: unreachable; nothing was sent: {unreachable}") from unreachable
        if session is not None:
            await session.established()
        if self._login is not None:
            await self._log_in(self._login, stream)
        if self._is_closed:
            stream.end("this broker closed the connection")
        return stream

    async def _log_in(self, login: LinkLogin, stream: PeerStream) -> None:
        try:
            self._replace_s = await login.log_in(stream)
        except (ConnectionError, OSError) as failed:  # OSError: a token file cannot be read
            stream.end("its login failed")
            raise ConnectionError(f"{self._who}: nothing was sent: {failed}") from failed
        except BaseException:
            stream.end("its login did not end in time")
            raise
