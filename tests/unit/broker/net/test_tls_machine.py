"""The TLS machine by itself: any split of bytes, what is no TLS, and the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.net.tls.machine import HANDSHAKE_BYTES_MAX, PlaintextReceived, TlsFailed, TlsMachine, check_first_bytes
from tests.support.net.tls_peer import client_context, listener_tls


def pair() -> tuple[TlsMachine, TlsMachine]:
    """A client and a server that have not spoken yet."""
    server = TlsMachine(listener_tls().context(), is_server=True)
    return TlsMachine(client_context(), is_server=False, server_name="localhost"), server


def joined() -> tuple[TlsMachine, TlsMachine]:
    """After the handshake."""
    client, server = pair()
    while not (client.is_established and server.is_established):
        for one, other in ((client, server), (server, client)):
            if not one.is_established:
                one.handshake()
            if data := one.take():
                other.receive(data)
    return client, server


def decrypted(machine: TlsMachine, size: int = 1 << 16) -> bytes:
    buffer, found = memoryview(bytearray(size)), bytearray()
    while count := machine.decrypt(buffer):
        found += buffer[:count]
    return bytes(found)


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 40_000), max_size=6),
    st.integers(1, 70_000),
    st.integers(1, 40_000),
    st.integers(0, 1 << 32),
)
def test_plaintext_arrives_whatever_the_split(sizes: list[int], most: int, room: int, seed: int) -> None:
    """Handshake and data cut at any byte, into buffers of any size: the other side reads what was written."""
    rng = random.Random(seed)
    texts = [rng.randbytes(size) for size in sizes]
    client, server = pair()
    wires = {client: bytearray(), server: bytearray()}  # on their way to it
    found = {client: bytearray(), server: bytearray()}
    buffer = memoryview(bytearray(room))
    sent = False
    while not sent or any(wires.values()):
        for one, other in ((client, server), (server, client)):
            piece = bytes(wires[one][: rng.randrange(1, most + 1)])
            del wires[one][: len(piece)]
            if piece:
                one.receive(piece)
            if one.is_established or one.handshake():
                while count := one.decrypt(buffer):
                    found[one] += buffer[:count]
            wires[other] += one.take()
        if client.is_established and server.is_established and not sent:
            sent = True
            for text in texts:
                client.encrypt(text)
                server.encrypt(text[::-1])
            wires[server] += client.take()
            wires[client] += server.take()
    assert found[server] == b"".join(texts)
    assert found[client] == b"".join(text[::-1] for text in texts)


def test_the_handshake_is_tls_1_3_with_the_first_suite() -> None:
    client, server = joined()
    assert server.suite == client.suite == "TLS_AES_256_GCM_SHA384"
    assert not server.is_resumed and server.peer_certificate is None and client.peer_certificate is not None


@pytest.mark.parametrize(
    "first", [b"GET / HTTP/1.1\r\n", b"\x00\x00\x00\x14\x00\x12\x00\x03", b"\x80\x2e\x01", b"\x17\x03\x03"]
)
def test_what_does_not_begin_as_tls_is_plaintext(first: bytes) -> None:
    """HTTP, Kafka without TLS, SSL 2, and a record of data."""
    with pytest.raises(PlaintextReceived, match=first[:2].hex()):
        check_first_bytes(memoryview(first))


def test_garbage_in_a_record_gets_an_alert() -> None:
    _, server = pair()
    server.receive(b"\x16\x03\x01\x00\x05hello")
    with pytest.raises(TlsFailed):
        server.handshake()
    assert server.take()[:1] == b"\x15"


def test_a_handshake_has_a_bound() -> None:
    """Bytes of a certificate that never ends."""
    _, server = pair()
    with pytest.raises(TlsFailed, match="without a complete handshake"):
        for _ in range(HANDSHAKE_BYTES_MAX // 1000 + 1):
            server.receive(b"\x16" * 1000)


@settings(max_examples=40)
@given(st.integers(0, 5000), st.integers(1, 255))
def test_a_changed_record_ends_the_session_after_what_came_before(at: int, change: int) -> None:
    """The record before it is delivered; what follows never is."""
    client, server = joined()
    client.take()
    client.encrypt(b"whole")
    whole = client.take()
    client.encrypt(b"x" * 5000)
    broken = bytearray(client.take())
    broken[min(at, len(broken) - 1)] ^= change
    server.receive(whole + broken)
    buffer = memoryview(bytearray(1 << 16))
    count = server.decrypt(buffer)
    assert buffer[:count] == b"whole"
    if server.failure is None:  # a changed length: more is awaited
        server.receive(b"\x17\x03\x03\x00\x01x" * 10_000)
        server.decrypt(buffer)
    assert isinstance(server.failure, TlsFailed)
    assert server.take()[:1] == b"\x17", "an encrypted alert"


def test_nothing_counts_after_close_notify() -> None:
    client, server = joined()
    client.encrypt(b"last")
    client.close()
    server.receive(client.take() + b"\x17\x03\x03\x00\x20" + b"y" * 32)
    assert decrypted(server) == b"last"
    assert server.is_finished and server.failure is None


def test_a_ticket_resumes_without_a_certificate() -> None:
    """Tickets come after the handshake; a later session uses one."""
    tls, context = listener_tls(), client_context()
    resumed = []
    session = None
    for _ in range(2):
        server = TlsMachine(tls.context(), is_server=True)
        client = TlsMachine(context, is_server=False, server_name="localhost")
        if session is not None:
            client._object.session = session
        while not (client.is_established and server.is_established):
            for one, other in ((client, server), (server, client)):
                if not one.is_established:
                    one.handshake()
                if data := one.take():
                    other.receive(data)
        decrypted(client)
        session = client._object.session
        resumed.append(server.is_resumed)
    assert resumed == [False, True]
