"""One open connection to another broker. Responses arrive in the order of the requests.

A response belongs to the oldest request that has no response yet. When the connection ends, all waiting requests fail
with the reason. Requests in flight are bounded in number and bytes. A response is copied once from the receive buffer,
so that its records remain valid.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

import msgspec

from broker.error_codes import ErrorCode
from broker.net.buffers import BufferPool, FrameBudget
from broker.net.frames import FrameLengthRefused, FrameReader
from broker.wire.apis import APIS, ApiKey
from broker.wire.codec import decode_response, encode_request
from broker.wire.errors import MalformedFrame
from broker.wire.framing import parse_response_header, request_frame
from broker.wire.message import Message

IN_FLIGHT_MAX: Final = 256
IN_FLIGHT_BYTES_MAX: Final = 32 << 20
_CORRELATIONS: Final = 1 << 31
_KEYS: Final = {f"{api.name}Request": api.key for api in APIS.values()}


class PeerBusy(ConnectionError):
    """Too many requests already wait for this broker; nothing was sent."""


class UnsupportedByPeer(ConnectionError):
    """The other broker does not serve this version of a request, because it runs another release."""


class _PendingRequest(msgspec.Struct, frozen=True):
    key: ApiKey
    version: int
    correlation_id: int
    size: int
    answer: asyncio.Future[Message]


class PeerStream(asyncio.BufferedProtocol):
    """The protocol of one connection. Errors name the other broker as `who`. A frame above `frame_bytes_max` ends the
    connection."""

    def __init__(self, who: str, client_id: str, pool: BufferPool, frame_bytes_max: int) -> None:
        self._who = who
        self._client_id = client_id
        # A budget with a single owner always has room for the frame being read.
        self._reader = FrameReader(pool, FrameBudget(2 * frame_bytes_max, frame_bytes_max), frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._in_flight: deque[_PendingRequest] = deque()
        self._in_flight_bytes = 0
        self._correlation_id = 0
        self._failure: str | None = None  # why the connection ended or is about to end
        self._is_retired = False

    @property
    def in_flight(self) -> int:
        """Requests without a response, including those whose caller gave up."""
        return len(self._in_flight)

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._failure is None

    def ask(self, request: Message, version: int) -> asyncio.Future[Message]:
        """Send `request` behind earlier ones. The future gives the response or ConnectionError. If the future is
        cancelled, the response is dropped. Raises PeerBusy, ConnectionError."""
        if not self.is_open:
            raise self._broken()
        key = _KEYS[type(request).__name__]
        self._correlation_id = (self._correlation_id + 1) % _CORRELATIONS
        body = encode_request(key, version, request)
        frame = b"".join(request_frame(key, version, self._correlation_id, self._client_id, body))  # type: ignore[arg-type]
        if len(self._in_flight) >= IN_FLIGHT_MAX or self._in_flight_bytes + len(frame) > IN_FLIGHT_BYTES_MAX:
            waiting = f"{len(self._in_flight)} requests of {self._in_flight_bytes} bytes"
            raise PeerBusy(f"{waiting} are waiting for {self._who}, and no more are sent; try again")
        asked = _PendingRequest(
            key, version, self._correlation_id, len(frame), asyncio.get_running_loop().create_future()
        )
        self._in_flight.append(asked)
        self._in_flight_bytes += len(frame)
        assert self._transport is not None
        self._transport.write(frame)
        return asked.answer

    def end(self, why: str) -> None:
        """Close the connection now. Waiting requests fail with `why`."""
        self._fail(why)

    def retire(self) -> None:
        """Close the connection after the last response. The caller sends no more requests."""
        self._is_retired = True
        if not self._in_flight:
            self._fail("another connection took its place")

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._failure is not None:
            return
        reader = self._reader
        reader.received(nbytes)
        try:
            while (frame := reader.next()) is not None:
                self._answered(frame)
        except (FrameLengthRefused, MalformedFrame) as refused:
            self._fail(f"its answer cannot be read: {refused}")
        else:
            reader.compact()
            if self._is_retired and not self._in_flight:
                self._fail("another connection took its place")

    def eof_received(self) -> None:
        """The other broker closes the connection. The transport then closes itself."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail("the connection was closed" if exc is None else f"the connection broke: {exc}")

    # -- within

    def _answered(self, frame: memoryview) -> None:
        if not self._in_flight:
            raise MalformedFrame("a response arrived without a request")
        asked = self._in_flight.popleft()
        self._in_flight_bytes -= asked.size
        try:
            answer = _decoded(asked, memoryview(bytes(frame)))
        except MalformedFrame:
            self._in_flight.appendleft(asked)  # this request fails together with all others
            self._in_flight_bytes += asked.size
            raise
        if asked.answer.done():
            return
        if getattr(answer, "error_code", ErrorCode.NONE) == ErrorCode.UNSUPPORTED_VERSION:
            asked.answer.set_exception(
                UnsupportedByPeer(
                    f"{self._who} does not serve {asked.key.name} in version {asked.version}: it runs another version "
                    "of this program; let all brokers run the same"
                )
            )
        else:
            asked.answer.set_result(answer)

    def _fail(self, why: str) -> None:
        if self._failure is not None:
            return
        self._failure = why
        waiting, self._in_flight = self._in_flight, deque()
        self._in_flight_bytes = 0
        for asked in waiting:
            if not asked.answer.done():
                asked.answer.set_exception(self._broken(asked.key))
        self._reader.close()
        if self._transport is not None:
            self._transport.abort()

    def _broken(self, key: ApiKey | None = None) -> ConnectionError:
        about = "" if key is None else f" {key.name} was sent, and may have been received:"
        return ConnectionError(f"{self._who}:{about} {self._failure or 'not connected'}")


def _decoded(asked: _PendingRequest, frame: memoryview) -> Message:
    correlation_id, at = parse_response_header(frame, asked.key, asked.version)
    if correlation_id != asked.correlation_id:
        raise MalformedFrame(f"it answered request {correlation_id} in place of request {asked.correlation_id}")
    return decode_response(asked.key, asked.version, frame[at:])
