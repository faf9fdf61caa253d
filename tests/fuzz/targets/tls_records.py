"""TLS before a handshake: any bytes end in a refusal of the session, never in an established one; and `Records`.

Input: one byte with the size of the pieces, then the client's bytes. The server's machine gets the pieces one by one.
`Records` counts the same bytes the same way, however they are cut.
"""

from __future__ import annotations

import ssl
from typing import Final

from broker.net.tls.machine import HANDSHAKE_BYTES_MAX, TlsFailed, TlsMachine
from broker.net.tls.records import Records
from tests.support.net.tls_peer import client_context, listener_tls

_SERVER: Final = listener_tls().context()
_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")


def seeds() -> list[bytes]:
    hello = _client_hello(None)
    older = _client_hello(ssl.TLSVersion.TLSv1_2)
    alert = b"\x15\x03\x03\x00\x02\x02\x28"
    data = b"\x17\x03\x03\x00\x20" + b"\0" * 32
    return [
        b"\xff" + hello,
        b"\x01" + hello,
        b"\x40" + older,
        b"\x10" + hello + data,
        b"\x07" + hello[:60] + alert,
        b"\x05" + alert + data * 3,
        b"\xff" + b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" + b"\x00\x00\x00\x12\x00\x12\x00\x03",
    ]


def run(data: bytes) -> None:
    if not data:
        return
    size, received = data[0] or 256, memoryview(data)[1:]
    pieces = [received[at : at + size] for at in range(0, len(received), size)]
    _refused_or_waiting(pieces)
    for version in _VERSIONS:
        assert _counted(version, pieces) == _counted(version, [received]), "counted otherwise when cut"


def _refused_or_waiting(pieces: list[memoryview]) -> None:
    machine = TlsMachine(_SERVER, is_server=True)
    for piece in pieces:
        try:
            machine.receive(piece)
            assert not machine.handshake(), "a handshake without the client's keys"
        except TlsFailed as refused:
            assert str(refused), "a refusal without a reason"
            break
        assert machine.handshake_bytes <= HANDSHAKE_BYTES_MAX
    machine.take()
    assert not machine.is_established


def _counted(version: str, pieces: list[memoryview]) -> tuple[object, ...]:
    """Everything that the counting of these pieces leaves behind."""
    records = Records(version)
    for piece in pieces:
        at = 0
        while at < len(piece):
            taken = records.take(piece[at:])
            assert 0 < taken <= len(piece) - at
            at += taken
    return tuple(getattr(records, name) for name in Records.__slots__)


def _client_hello(newest: ssl.TLSVersion | None) -> bytes:
    context = client_context()
    if newest is not None:
        context.maximum_version = newest
    client = TlsMachine(context, is_server=False, server_name="localhost")
    client.handshake()
    return client.take()
