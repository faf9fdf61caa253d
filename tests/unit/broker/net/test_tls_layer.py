"""Connections over TLS: a whole server behind a scripted network, with clients good and hostile."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.net.dispatch import CloseReason
from broker.net.limits import NetLimits
from broker.net.server import Bind
from broker.net.tls.handshakes import HandshakeTurns
from broker.net.tls.layer import TlsLayer
from broker.net.tls.machine import TlsFailed
from broker.security.tls.listener_tls import ListenerTls
from broker.security_protocol import SecurityProtocol
from seams.files.disk import FileRange
from tests.support.fast_loop import run_fast
from tests.support.net.certificates import Authority
from tests.support.net.net_house import House, settled, tick
from tests.support.net.scripted_net import BytesFile, ScriptedTransport, frame
from tests.support.net.tls_peer import TlsPeer, authority, client_context, listener_tls

MIB = 1 << 20


def in_tls_house(
    scenario: Callable[[House], Awaitable[None]], tls: ListenerTls | None = None, limits: NetLimits | None = None
) -> None:
    """Run a scenario on a server whose listener speaks TLS; at the end nothing is left."""

    async def whole() -> None:
        house = House(limits, native=False)
        bind = Bind("SSL", "", 0, protocol=SecurityProtocol.SSL, tls=tls or listener_tls())
        await house.server.bind([bind])
        await house.server.accept()
        await scenario(house)
        await settled()
        await house.server.stop()
        assert house.server.budget.used == 0
        assert house.server.counters.connections_open == 0
        assert house.server.handshakes.turns.under_way == house.server.handshakes.turns.waiting == 0
        assert not house.reports

    run_fast(whole(), timeout_s=600.0)


async def greeted(house: House, context: ssl.SSLContext | None = None, room: int = 1 << 30) -> TlsPeer:
    """A client after its handshake."""
    peer = TlsPeer(house.net.arrive(room), context)
    for _ in range(10):
        peer.turn()
        await settled()
    assert peer.is_established
    return peer


def test_requests_are_answered_over_tls() -> None:
    async def scenario(house: House) -> None:
        peer = await greeted(house)
        peer.say(frame(b"one") + frame(b"two"))
        await settled()
        peer.turn()
        assert peer.heard == frame(b"one") + frame(b"two")
        assert house.dispatcher.seen == [b"one", b"two"]
        assert house.server.counters.tls_handshakes == 1

    in_tls_house(scenario)


def test_a_connection_that_waits_for_admission_is_not_read() -> None:
    """No byte of the handshake is looked at before the connection is admitted."""

    async def scenario(house: House) -> None:
        first = await greeted(house)
        second = TlsPeer(house.net.arrive())
        second.turn()
        await settled()
        assert second.transport.unread and not second.transport.wire
        first.transport.abort()
        await asyncio.sleep(1)
        for _ in range(10):
            second.turn()
            await settled()
        assert second.is_established

    in_tls_house(scenario, limits=NetLimits(connections_max=1))


def test_a_crowd_of_handshakes_does_not_keep_brokers_out() -> None:
    """Found by a penetration test: 1000 handshakes that strangers began, from four addresses, stopped those of brokers,
    whose listener has limits of its own on everything else."""

    async def scenario() -> None:
        house = House(native=False)
        peers = []
        for name, apart in (("SSL", False), ("BROKERS", True)):
            await house.server.bind([Bind(name, "", 0, apart=apart, protocol=SecurityProtocol.SSL, tls=listener_tls())])
            peers.append(house.net.factory)
        await house.server.accept()
        house.server.handshakes.turns = HandshakeTurns(0)  # as many as may be are under way
        found = []
        for factory in peers:
            house.net.factory = factory
            peer = TlsPeer(house.net.arrive())
            for _ in range(10):
                peer.turn()
                await settled()
            found.append(peer.is_established)
        assert found == [False, True]
        await house.server.stop(drain=False)

    run_fast(scenario(), timeout_s=600.0)


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x14\x00\x12\x00\x03\x00\x00\x00\x01"])
def test_plaintext_is_closed_counted_and_told(first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A client without TLS waits for ever and says little: the broker's log says why."""

    async def scenario(house: House) -> None:
        transport = house.net.arrive()
        transport.give(first)
        await settled()
        assert transport.closed and not transport.wire
        assert house.closes == {CloseReason.TLS_PLAINTEXT: 1}

    in_tls_house(scenario)
    (line,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "speaks plaintext to listener" in line.getMessage()


def test_a_broken_handshake_gets_its_alert_and_is_counted() -> None:
    async def scenario(house: House) -> None:
        transport = house.net.arrive()
        transport.give(b"\x16\x03\x01\x00\x05hello")
        await settled()
        assert transport.closed and transport.wire[:1] == b"\x15"
        assert house.closes == {CloseReason.TLS_HANDSHAKE: 1}

    in_tls_house(scenario)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_old_versions_are_refused() -> None:
    """TLS 1.1, which a client may still offer."""

    async def scenario(house: House) -> None:
        context = client_context()
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        peer = TlsPeer(house.net.arrive(), context)
        peer.turn()
        await settled()
        with pytest.raises(TlsFailed, match="protocol version"):
            peer.turn()
        assert house.closes == {CloseReason.TLS_HANDSHAKE: 1}

    in_tls_house(scenario)


@pytest.mark.parametrize("cut", [1, 4, 5, 40, 300])
def test_the_end_of_the_stream_in_a_handshake(cut: int) -> None:
    async def scenario(house: House) -> None:
        peer = TlsPeer(house.net.arrive())
        peer.machine.handshake()
        peer.transport.give(peer.machine.take()[:cut])
        await settled()
        peer.transport.protocol.eof_received()
        peer.transport.close()
        await settled()
        assert house.closes == {CloseReason.PEER: 1}

    in_tls_house(scenario)


def test_an_unfinished_handshake_is_closed_in_time() -> None:
    """A client that stops after its first flight, and one that sends nothing."""

    async def scenario(house: House) -> None:
        silent, slow = house.net.arrive(), TlsPeer(house.net.arrive())
        slow.turn()
        await settled()
        tick(house, 10)
        assert not house.closes and not silent.closed
        tick(house, 2)
        await settled()
        assert house.closes == {CloseReason.TLS_DEADLINE: 2}

    in_tls_house(scenario)


def test_a_complete_handshake_has_no_deadline() -> None:
    async def scenario(house: House) -> None:
        peer = await greeted(house)
        tick(house, 30)
        assert not peer.transport.closed

    in_tls_house(scenario)


def test_handshake_bytes_over_the_bound() -> None:
    """A certificate message without an end."""

    async def scenario(house: House) -> None:
        transport = house.net.arrive()
        record = b"\x16\x03\x03\x40\x00" + b"\x0b\x01\xff\xff" + b"x" * (16384 - 4)
        for _ in range(20):
            transport.give(record)
            await settled()
        assert house.closes == {CloseReason.TLS_HANDSHAKE: 1}

    in_tls_house(scenario)


def test_a_broken_record_ends_the_session() -> None:
    async def scenario(house: House) -> None:
        peer = await greeted(house)
        peer.say(frame(b"good"))
        peer.transport.give(b"\x17\x03\x03\x00\x20" + b"z" * 32)
        await settled()
        assert house.dispatcher.seen == [b"good"]
        assert house.closes == {CloseReason.TLS_BROKEN: 1}

    in_tls_house(scenario)


def test_close_notify_ends_the_connection() -> None:
    async def scenario(house: House) -> None:
        peer = await greeted(house)
        peer.machine.encrypt(frame(b"good"))
        peer.machine.close()
        peer.transport.give(peer.machine.take() + b"\x17\x03\x03\x00\x20" + b"z" * 32)
        await settled()
        assert house.dispatcher.seen == [b"good"] and peer.transport.closed
        assert house.closes == {CloseReason.PEER: 1}

    in_tls_house(scenario)


def test_file_ranges_are_read_in_slices_and_encrypted() -> None:
    """While the peer takes nothing, no more is read than the socket, wide now, and one slice."""

    async def scenario(house: House) -> None:
        data = random.Random(1).randbytes(5 * MIB)
        file = BytesFile(data)
        house.answer_with(b"fetch", FileRange(file, 0, len(data)))
        peer = await greeted(house, room=100_000)
        peer.say(frame(b"fetch"))
        await settled()
        assert file.bytes_read <= 3 * 256 << 10 and house.net.widened == 1
        while peer.transport.buffered or file.bytes_read < len(data):
            peer.transport.take(300_000)
            await settled()
            peer.turn()
        peer.turn()
        assert peer.heard == data

    in_tls_house(scenario)


# -- certificates of clients ------------------------------------------------------------------------------------------


def test_a_client_certificate_is_its_principal() -> None:
    async def scenario(house: House) -> None:
        await greeted(house, client_context(authority().sign("alice")))
        (connection,) = house.server._connections
        assert connection.peer.principal == "User:CN=alice"

    in_tls_house(scenario, listener_tls(client_auth="required", truststore_certificates=authority().pem))


def test_a_client_without_a_certificate_is_anonymous_where_that_is_allowed() -> None:
    async def scenario(house: House) -> None:
        await greeted(house)
        (connection,) = house.server._connections
        assert connection.peer.principal == "User:ANONYMOUS"

    in_tls_house(scenario, listener_tls(client_auth="requested", truststore_certificates=authority().pem))


@pytest.mark.parametrize("kind", ["none", "untrusted", "expired", "not yet valid"])
def test_refused_client_certificates(kind: str) -> None:
    signed = {
        "none": None,
        "untrusted": Authority("Another CA").sign("alice"),
        "expired": authority().sign("alice", lasts=timedelta(hours=-1)),
        "not yet valid": authority().sign("alice", begins=timedelta(days=1)),
    }[kind]

    async def scenario(house: House) -> None:
        peer = TlsPeer(house.net.arrive(), client_context(signed))
        with pytest.raises(TlsFailed):
            for _ in range(10):
                peer.turn()
                await settled()
                if house.closes:
                    peer.turn()
        await settled()
        assert house.closes == {CloseReason.TLS_HANDSHAKE: 1}
        assert not house.dispatcher.seen

    in_tls_house(scenario, listener_tls(client_auth="required", truststore_certificates=authority().pem))


def test_a_subject_without_a_rule_is_refused_after_the_handshake() -> None:
    async def scenario(house: House) -> None:
        peer = TlsPeer(house.net.arrive(), client_context(authority().sign("alice")))
        for _ in range(4):
            peer.turn()
            await settled()
        assert house.closes == {CloseReason.TLS_HANDSHAKE: 1}

    values = {"principal_mapping_rules": "RULE:^CN=b.*$/b/"}
    tls = listener_tls(client_auth="required", truststore_certificates=authority().pem, **values)
    in_tls_house(scenario, tls)


# -- crowds -----------------------------------------------------------------------------------------------------------


def test_five_thousand_slow_handshakes_do_not_hold_the_loop() -> None:
    """All send their first flight and then nothing: a few hold a session, the rest their first bytes, and no turn of
    the loop takes long."""

    async def scenario(house: House) -> None:
        context = client_context()
        hello = TlsPeer(ScriptedTransport(asyncio.BufferedProtocol()), context)
        hello.machine.handshake()
        first = hello.machine.take()
        longest = 0.0
        for _ in range(5_000):
            house.net.arrive().give(first)
        turns = house.server.handshakes.turns
        assert turns.waiting > 4_000
        for _ in range(2_000):
            started = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - started)
        assert longest < 0.1
        assert turns.under_way == 250, "all are of one address"
        tick(house, 12)
        await settled()
        assert house.closes[CloseReason.TLS_DEADLINE] >= 5_000

    in_tls_house(scenario, limits=NetLimits(connections_per_s_max=100_000, connections_per_ip_max=100_000))


# -- any order of reading and pausing ---------------------------------------------------------------------------------


class Moody(asyncio.BufferedProtocol):
    """Reads into buffers of any size, and pauses and resumes as the test says."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.got = bytearray()
        self.reads = True
        self.inside = False
        self.lost = 0
        self.transport: TlsLayer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsLayer)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self.reads and not self.inside
        self._buffer = memoryview(bytearray(self.rng.choice([1, 10, 1000, 20_000])))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self.reads, "delivered while paused"
        assert not self.inside, "delivered from within a call"
        self.inside = True
        self.got += self._buffer[:nbytes]
        if self.rng.randrange(3) == 0:
            self.reads = False
            self.transport.pause_reading()
            if self.rng.randrange(2):
                self.resume()
        self.inside = False

    def resume(self) -> None:
        was, self.inside = self.inside, True
        self.reads = True
        self.transport.resume_reading()
        self.inside = was

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost += 1


class Silent:
    """Events of a session that nobody watches."""

    def __init__(self) -> None:
        self.layer: TlsLayer

    def began(self) -> None: ...
    def ask_step(self) -> None:
        asyncio.get_running_loop().call_soon(self.layer.step_now)

    def complete(self, machine: object) -> None: ...
    def failed(self, reason: CloseReason, detail: str) -> None:
        raise AssertionError(detail)

    def lost(self, exc: Exception | None) -> None: ...


@settings(max_examples=60)
@given(st.lists(st.integers(0, 30_000), max_size=8), st.integers(0, 1 << 32))
def test_pauses_lose_nothing_and_nothing_comes_while_paused(sizes: list[int], seed: int) -> None:
    rng = random.Random(seed)
    texts = [rng.randbytes(size) for size in sizes]

    async def scenario() -> None:
        inner, events = Moody(rng), Silent()
        events.layer = layer = TlsLayer(inner, events, listener_tls().context, is_server=True)
        transport = ScriptedTransport(layer)
        layer.connection_made(transport)
        peer = TlsPeer(transport)
        for _ in range(6):
            peer.turn()
            await settled()
        for text in texts:
            peer.machine.encrypt(text)
        wire = peer.machine.take()
        while wire or len(inner.got) < sum(sizes):
            count = rng.randrange(1, 40_000)
            transport.give(wire[:count], read_max=rng.randrange(1, 70_000))
            wire = wire[count:]
            await settled()
            if not inner.reads and rng.randrange(2):
                inner.resume()
        assert inner.got == b"".join(texts)
        layer.abort()
        layer.abort()
        await settled()
        assert inner.lost == 1

    run_fast(scenario(), timeout_s=600.0)
