"""A TLS client at the other end of a scripted transport."""

from __future__ import annotations

import ssl
from functools import cache

from broker.config.sources import Explicit
from broker.net.tls.machine import TlsMachine
from broker.security.tls.listener_tls import ListenerTls
from tests.support.net.certificates import Authority, Signed
from tests.support.net.scripted_net import ScriptedTransport


@cache
def authority() -> Authority:
    return Authority()


@cache
def broker_certificate() -> Signed:
    return authority().sign("broker")


def no_file(path: str) -> bytes:
    raise FileNotFoundError(2, "no file in this test", path)


def now_ms() -> int:
    from datetime import UTC, datetime

    return int(datetime.now(UTC).timestamp() * 1000)


def inline(signed: Signed | None = None, **configs: str) -> dict[str, str]:
    """Kafka's configs of a listener with certificates inline; `a_b` in `configs` is `ssl.a.b`."""
    own = broker_certificate() if signed is None else signed
    found = {"ssl.keystore.key": own.key_pem(), "ssl.keystore.certificate.chain": own.chain_pem}
    return found | {f"ssl.{name.replace('_', '.')}": text for name, text in configs.items()}


def listener_tls(signed: Signed | None = None, **configs: str) -> ListenerTls:
    values = Explicit(inline(signed, **configs))
    return ListenerTls("listener SSL", lambda: values, no_file, now_ms)


def client_context(signed: Signed | None = None, trusts: Authority | None = None) -> ssl.SSLContext:
    from seams.files.nameless import nameless_file

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.load_verify_locations(cadata=(trusts or authority()).pem)
    if signed is not None:
        with nameless_file(signed.pem().encode()) as path:
            made.load_cert_chain(path)
    return made


class TlsPeer:
    """The client's side of a connection that arrived. `heard`: what it decrypted."""

    def __init__(self, transport: ScriptedTransport, context: ssl.SSLContext | None = None) -> None:
        self.transport = transport
        self.machine = TlsMachine(context or client_context(), is_server=False, server_name="localhost")
        self.heard = bytearray()
        self.failure: Exception | None = None

    @property
    def is_established(self) -> bool:
        return self.machine.is_established

    def turn(self) -> None:
        """Read what came, answer what has to be answered."""
        wire = bytes(self.transport.wire)
        self.transport.wire.clear()
        if wire:
            self.machine.receive(wire)
        if not self.machine.is_established:
            self.machine.handshake()
        if self.machine.is_established:
            buffer = memoryview(bytearray(1 << 20))
            while count := self.machine.decrypt(buffer):
                self.heard += buffer[:count]
            if self.machine.failure is not None:
                raise self.machine.failure
        if data := self.machine.take():
            self.transport.give(data)

    def say(self, data: bytes) -> None:
        self.machine.encrypt(data)
        self.transport.give(self.machine.take())
