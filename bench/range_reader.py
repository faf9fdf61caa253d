"""Reads a range of one partition by Fetch v11 over a plain socket, at either isolation level.

The load generator computes the next offset from the size of an answer, which markers in the log make impossible; this
reads the headers of batches. Records are not decoded, so the client costs little beside the broker.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

FETCH_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 30.0
_KEY, _VERSION = 1, 11
_WAIT_MS: Final = 500


def read_range(port: int, topic: str, start: int, end: int, *, read_committed: bool) -> tuple[int, int]:
    """From `start` to `end` or beyond, one request of 1 MB at a time. Returns the bytes of batches, and how many
    aborted transactions the answers named. Raises OSError, RuntimeError for an error code."""
    name = topic.encode()
    buffer = bytearray(FETCH_BYTES + (4 << 20))
    view, nbytes, aborted, offset = memoryview(buffer), 0, 0, start
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while offset < end:
            connection.sendall(_request(name, offset, is_committed=read_committed))
            _fill(connection, view[:4])
            (size,) = struct.unpack_from(">i", buffer)
            if size > len(buffer):
                raise RuntimeError(f"an answer of {size} bytes")
            _fill(connection, view[:size])
            named, records_at, length = _answer(buffer, len(name))
            last = _last_offset(buffer, records_at, records_at + length)
            if last is None:
                raise RuntimeError(f"nothing at offset {offset}")
            nbytes, aborted, offset = nbytes + length, aborted + named, last + 1
    return nbytes, aborted


def _request(name: bytes, offset: int, *, is_committed: bool) -> bytes:
    head = struct.pack(">hhih5s", _KEY, _VERSION, 1, 5, b"bench")
    head += struct.pack(">iiiibii", -1, _WAIT_MS, 1, FETCH_BYTES, is_committed, 0, -1)
    of_topic = struct.pack(">ih", 1, len(name)) + name
    of_partition = struct.pack(">iiiqqi", 1, 0, -1, offset, -1, FETCH_BYTES)
    body = head + of_topic + of_partition + struct.pack(">ih", 0, 0)
    return struct.pack(">i", len(body)) + body


def _fill(connection: socket.socket, into: memoryview) -> None:
    got = 0
    while got < len(into):
        read = connection.recv_into(into[got:])
        if not read:
            raise ConnectionError("the broker closed the connection")
        got += read


def _answer(buffer: bytearray, name_length: int) -> tuple[int, int, int]:
    """(aborted transactions named, where the records begin, their length). Behind the correlation id: throttle time,
    error, session, one topic, one partition."""
    at = 4 + 4 + 2 + 4 + 4 + 2 + name_length + 4 + 4
    (error,) = struct.unpack_from(">h", buffer, at)
    if error:
        raise RuntimeError(f"Fetch was answered with error {error}")
    at += 2 + 8 + 8 + 8
    (named,) = struct.unpack_from(">i", buffer, at)
    at += 4 + 16 * max(named, 0) + 4
    (length,) = struct.unpack_from(">i", buffer, at)
    return max(named, 0), at + 4, length


def _last_offset(buffer: bytearray, at: int, end: int) -> int | None:
    """Of the last whole batch."""
    last = None
    while at + 61 <= end:
        base, length = struct.unpack_from(">qi", buffer, at)
        if at + 12 + length > end:
            break
        last = base + struct.unpack_from(">i", buffer, at + 23)[0]
        at += 12 + length
    return last
