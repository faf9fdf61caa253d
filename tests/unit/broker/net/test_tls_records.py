"""Records of a client that bring no data: counted by their headers, and never many in one call."""

from __future__ import annotations

import ctypes
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.tls.machine import TlsMachine
from broker.net.tls.records import RECORDS_AT_ONCE, Records
from tests.support.net.tls_peer import listener_tls

_ROOM = memoryview(bytearray(1 << 20))


class ForeignClient:
    """A client of libssl itself: Python's ssl sends neither KeyUpdates nor renegotiations."""

    def __init__(self, version: ssl.TLSVersion) -> None:
        try:
            self._tls, self._crypto = ctypes.CDLL("libssl.so.3"), ctypes.CDLL("libcrypto.so.3")
        except OSError:
            pytest.skip("no libssl.so.3")
        self._context = self._call("SSL_CTX_new", self._call("TLS_client_method"))
        self._call("SSL_CTX_ctrl", self._context, 124, int(version), None)  # SSL_CTX_set_max_proto_version
        self._session = self._call("SSL_new", self._context)
        self._in, self._out = (self._call("BIO_new", self._call("BIO_s_mem")) for _ in range(2))
        self._call("SSL_set_bio", self._session, self._in, self._out)
        self._call("SSL_set_connect_state", self._session)
        self._buffer = ctypes.create_string_buffer(1 << 16)

    def _call(self, name: str, *values: Any) -> Any:
        function = getattr(self._tls if name.startswith(("SSL", "TLS")) else self._crypto, name)
        function.restype = ctypes.c_void_p if name.endswith(("new", "method", "mem")) else ctypes.c_int
        wrapped = [ctypes.c_void_p(value) if isinstance(value, int) and value > 1 << 31 else value for value in values]
        return function(*wrapped)

    def join(self, server: TlsMachine) -> None:
        while not server.is_established:
            self._call("SSL_do_handshake", self._session)
            server.receive(self.sent())
            server.handshake()
            self.receive(server.take())

    def receive(self, data: bytes) -> None:
        self._call("BIO_write", self._in, data, len(data))
        self._call("SSL_read", self._session, self._buffer, len(self._buffer))

    def sent(self) -> bytes:
        found = b""
        while (count := self._call("BIO_read", self._out, self._buffer, len(self._buffer))) > 0:
            found += self._buffer.raw[:count]
        return found

    def updated_key(self, *, asks: bool) -> bytes:
        assert self._call("SSL_key_update", self._session, int(asks)) == 1
        self._call("SSL_do_handshake", self._session)
        return self.sent()

    def wrote(self, text: bytes) -> bytes:
        assert self._call("SSL_write", self._session, text, len(text)) == len(text)
        return self.sent()


@pytest.fixture
def server() -> TlsMachine:
    return TlsMachine(listener_tls().context(), is_server=True)


@pytest.mark.parametrize("asks", [True, False])
def test_key_updates_without_end_end_the_session(server: TlsMachine, asks: bool) -> None:
    """Found by a penetration test: 256 KiB of them held the loop for 0.4 s, before any login."""
    client = ForeignClient(ssl.TLSVersion.TLSv1_3)
    client.join(server)
    flood = b"".join(client.updated_key(asks=asks) for _ in range(2_000))
    server.receive(flood)
    assert server.decrypt(_ROOM) == 0
    assert server.failure is not None and "no data" in str(server.failure)
    assert server.undelivered > len(flood) // 2  # the rest was never decrypted


def test_key_updates_between_data_end_the_session(server: TlsMachine) -> None:
    client = ForeignClient(ssl.TLSVersion.TLSv1_3)
    client.join(server)
    for _ in range(300):
        server.receive(client.updated_key(asks=False) + client.wrote(b"x" * 100))
        server.decrypt(_ROOM)
        if server.failure is not None:
            return
    pytest.fail("as many key updates as requests")


def test_a_key_update_now_and_then_is_a_clients_right(server: TlsMachine) -> None:
    client = ForeignClient(ssl.TLSVersion.TLSv1_3)
    client.join(server)
    for _ in range(50):
        server.receive(client.wrote(b"before") + client.updated_key(asks=True) + client.wrote(b"after"))
        count = server.decrypt(_ROOM)
        assert bytes(_ROOM[:count]) == b"beforeafter" and server.failure is None
        client.receive(server.take())


def test_records_of_tls_1_2_that_are_no_data_are_wasted() -> None:
    """Renegotiations, alerts: the header says so."""
    records = Records("TLSv1.2")
    for _ in range(4):
        assert records.take(memoryview(_record(22, 200))) == 205
        assert not records.are_wasted(0)
    records.take(memoryview(_record(23, 40) + _record(21, 300)))
    assert records.are_wasted(16)


def test_many_small_records_are_a_client_too(server: TlsMachine) -> None:
    client = ForeignClient(ssl.TLSVersion.TLSv1_3)
    client.join(server)
    for _ in range(3):
        server.receive(b"".join(client.wrote(b"x") for _ in range(10 * RECORDS_AT_ONCE)))
        assert server.decrypt(_ROOM) == 10 * RECORDS_AT_ONCE and server.failure is None
    assert server.undelivered == 0


def _record(kind: int, length: int) -> bytes:
    return bytes((kind, 3, 3)) + length.to_bytes(2, "big") + bytes(length)


def _pieces(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = next(sizes)
        yield data[at : at + size]
        at += size


@given(
    st.lists(st.integers(17, 3_000), max_size=200), st.lists(st.integers(1, 2_000), min_size=1, max_size=20), st.data()
)
def test_records_are_found_whatever_the_split(lengths: list[int], sizes: list[int], data: st.DataObject) -> None:
    records, stream = Records("TLSv1.3"), b"".join(_record(23, length) for length in lengths)

    def cycle() -> Iterator[int]:
        while True:
            yield from sizes

    for piece in _pieces(stream, cycle()):
        left = memoryview(piece)
        while left:
            taken = records.take(left)
            assert taken
            left = left[taken:]
    possible = sum(length - 17 for length in lengths)
    assert not records.are_wasted(possible)
    assert records.are_wasted(possible - 2_000 - (possible >> 14)) or possible < 2_000
