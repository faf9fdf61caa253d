"""One TLS session as a machine without I/O: ciphertext in, plaintext out, and the reverse (`ssl.SSLObject` between two
memory BIOs).

The caller gives received bytes to `receive`, then calls `handshake` until it returns True, then `decrypt`. After every
call it sends the bytes of `take`, even after a failure: these bytes are then the alert that tells the peer the reason.
A machine is used by one thread at a time. A machine does not know a transport or a clock.

Records of a client after its handshake are decrypted a few at a time, and the session ends if they contain no data
(`records`).

Hot path: `decrypt` fills the caller's buffer record by record (16 KiB each, 2.6 GB/s with AES-256-GCM), `encrypt` and
`take` copy the ciphertext once (2.8 GB/s).
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final, cast

from broker.net.tls.records import Records

HANDSHAKE_BYTES_MAX: Final = 128 << 10
"""Bytes that a peer may send before its handshake is complete. OpenSSL accepts at most 100 KiB of certificates."""

_HANDSHAKE_RECORD: Final = 22


class TlsFailed(Exception):
    """The session cannot continue: the peer's bytes are not TLS, or not acceptable. The text is OpenSSL's reason."""


class PlaintextReceived(TlsFailed):
    """The first byte does not begin a TLS record: the peer speaks another protocol, often plaintext Kafka or HTTP."""


def check_first_bytes(data: memoryview) -> None:
    """Check that the first bytes begin a TLS record. Raises PlaintextReceived."""
    if data[0] != _HANDSHAKE_RECORD:
        raise PlaintextReceived(f"the client does not speak TLS: its first bytes are {bytes(data[:8]).hex()}")


class TlsMachine:
    """One session. `server_name`: the name by which a client knows the server. If the context checks names, the
    certificate must have this name. None on the server's side."""

    __slots__ = (
        "_decrypted",
        "_held",
        "_held_at",
        "_incoming",
        "_is_server",
        "_object",
        "_outgoing",
        "_records",
        "failure",
        "handshake_bytes",
        "is_established",
        "is_finished",
    )

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, server_name: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, is_server, server_name)
        self._is_server = is_server
        self._records: Records | None = None  # set if the peer is a client whose handshake is complete
        self._held = b""  # received bytes; from `_held_at` on they are not in `_incoming` yet
        self._held_at = 0
        self._decrypted = 0
        self.handshake_bytes = 0  # bytes received before the handshake was complete
        self.is_established = False
        self.failure: TlsFailed | None = None  # the failure of `decrypt`
        self.is_finished = False  # the peer sent close_notify: later bytes are ignored

    @property
    def undelivered(self) -> int:
        """Bytes received and not decrypted yet, or decrypted and not fetched."""
        return self._incoming.pending + self._object.pending() + len(self._held) - self._held_at

    @property
    def peer_certificate(self) -> bytes | None:
        """The peer's certificate in DER, verified against the context's CAs; None if the peer sent no certificate."""
        return self._object.getpeercert(True)

    @property
    def is_resumed(self) -> bool:
        return self._object.session_reused is True

    @property
    def suite(self) -> str:
        """The cipher suite, by OpenSSL's name."""
        found = self._object.cipher()
        return "" if found is None else found[0]

    def receive(self, data: memoryview | bytes) -> None:
        """Accept bytes from the peer. Raises TlsFailed when a handshake exceeds its limit."""
        if not self.is_established:
            self.handshake_bytes += len(data)
            if self.handshake_bytes > HANDSHAKE_BYTES_MAX:
                raise TlsFailed(f"{self.handshake_bytes} bytes without a complete handshake")
        if self._records is None:
            self._incoming.write(data)
        else:
            self._take_records(self._records, memoryview(data))

    def _take_records(self, records: Records, data: memoryview) -> None:
        """Pass the first records to OpenSSL. Later records follow when OpenSSL has used up the first."""
        if self._incoming.pending or self._held:
            self._held = self._held[self._held_at :] + bytes(data)
        else:
            taken = records.take(data)
            self._incoming.write(data[:taken])
            self._held = bytes(data[taken:])
        self._held_at = 0

    def _take_held(self, records: Records) -> bool:
        """Pass the next held records to OpenSSL, which has used up the earlier records. Returns whether there were held
        records."""
        if records.are_wasted(self._decrypted):
            self.failure = TlsFailed("its TLS records carry no data: endless key updates, renegotiations or padding")
            return False
        if not self._held:
            return False
        data = memoryview(self._held)[self._held_at :]
        taken = records.take(data)
        self._incoming.write(data[:taken])
        self._held_at += taken
        if self._held_at == len(self._held):
            self._held, self._held_at = b"", 0
        return True

    def handshake(self) -> bool:
        """Take the next step. True: complete; False: more bytes are needed. Raises TlsFailed."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ssl.CertificateError, ConnectionError) as refused:
            raise TlsFailed(_reason(refused)) from refused
        self.is_established = True
        if self._is_server:  # a client does not count records, because it trusts its broker
            self._records = Records(self._object.version())
            self._take_records(self._records, memoryview(self._incoming.read()))  # the records after the handshake
        return True

    def decrypt(self, into: memoryview) -> int:
        """Decrypt complete records into `into`. Returns the number of bytes. If the decrypted bytes do not fill `into`,
        more ciphertext is needed, or the session `is_finished`, or `failure` has the reason of its end."""
        count, size, read, before = 0, len(into), self._object.read, self._decrypted
        try:
            while count < size:
                try:
                    got = cast(int, read(size - count, into[count:] if count else into))
                except ssl.SSLWantReadError:
                    self._decrypted = before + count
                    if self._records is None or not self._take_held(self._records):
                        break
                    continue
                if not got:
                    self.is_finished = True
                    break
                count += got
        except ssl.SSLZeroReturnError:
            self.is_finished = True
        except (ssl.SSLError, ConnectionError) as refused:
            self.failure = TlsFailed(_reason(refused))
        self._decrypted = before + count
        return count

    def encrypt(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt all of `data`. The session must be established."""
        view = memoryview(data)
        while len(view):
            view = view[self._object.write(view) :]

    def take(self) -> bytes:
        """The bytes to send now, possibly none."""
        return self._outgoing.read()

    def close(self) -> None:
        """Send close_notify; nothing is encrypted afterwards. The peer's close_notify is not awaited."""
        with suppress(ssl.SSLError):  # OpenSSL waits for the peer's close_notify, or the session is broken
            self._object.unwrap()


def _reason(refused: Exception) -> str:
    """OpenSSL's reason in words, without its source line."""
    if isinstance(refused, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {refused.verify_message}"
    reason = getattr(refused, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(refused)
