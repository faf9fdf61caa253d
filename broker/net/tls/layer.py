"""TLS layer between a transport and a protocol: it is a protocol for the transport, and a transport for the protocol.

The inner protocol gets the same calls as without TLS, in the same order: `connection_made` at once, so that connections
are admitted before their handshake, then plaintext, then `connection_lost` once. The inner protocol gets no data before
the handshake is complete and `established` was called. As with asyncio's transports, it is not called from within
`resume_reading` or `write`, except for `pause_writing`. If the inner protocol pauses reading before the handshake, the
handshake also waits. Plaintext is decrypted into the inner protocol's own buffer. While reading is paused, the rest
stays as ciphertext: at most one read of the transport.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from broker.net.dispatch import CloseReason
from broker.net.tls.machine import PlaintextReceived, TlsFailed, TlsMachine, check_first_bytes

RECEIVE_BYTES: Final = 256 << 10
_received = memoryview(bytearray(RECEIVE_BYTES))
_received_early = _received[: 16 << 10]
"""Ciphertext of the current read, shared by all connections; it is copied before the next read. Before the handshake is
complete little is read at a time, because the bytes may have to wait.
"""


class TlsEvents(Protocol):
    """Listener for the events of one session."""

    def began(self) -> None:
        """The transport is connected, and the inner protocol accepted it."""
        ...

    def ask_step(self) -> None:
        """The handshake can make a step: call `TlsLayer.step` once, in any thread, then `stepped` on the loop. The next
        `ask_step` comes only after `stepped`."""
        ...

    def complete(self, machine: TlsMachine) -> None:
        """The handshake is complete; called before the first plaintext. Raises TlsFailed to end the session."""
        ...

    def failed(self, reason: CloseReason, detail: str) -> None:
        """The session cannot continue; the transport is closed next. Called once at most."""
        ...

    def lost(self, exc: Exception | None) -> None:
        """The transport is closed; the inner protocol's `connection_lost` follows."""
        ...


class TlsLayer(asyncio.BufferedProtocol, asyncio.Transport):
    """One session. `context` is asked when the first bytes of a client arrive."""

    def __init__(
        self,
        inner: asyncio.BufferedProtocol,
        events: TlsEvents,
        context: Callable[[], ssl.SSLContext],
        *,
        is_server: bool,
        server_name: str | None = None,
    ) -> None:
        self._inner = inner
        self._events = events
        self._context = context
        self._is_server = is_server
        self._server_name = server_name
        self._machine: TlsMachine | None = None  # None before the first step
        self._early = b""  # bytes received before the first step
        self._transport: asyncio.Transport
        self._reads = True  # the inner protocol takes plaintext
        self._transport_reads = True
        self._stepping = False  # a step is requested or running: do not use the machine
        self._complete = False  # whether the last step completed the handshake
        self._resuming = False
        self._delivering = False
        self._over = False  # closed, failed or lost: do not deliver or write

    # -- the transport's calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(self)
        if self._over:
            return
        self._events.began()
        if not self._is_server:
            self._ask_step()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _received if self._complete else _received_early

    def buffer_updated(self, nbytes: int) -> None:
        if self._over:
            return
        machine, data = self._machine, _received[:nbytes]
        assert not self._stepping, "read during a step"
        try:
            if machine is not None:
                machine.receive(data)
            else:
                check_first_bytes(data)
                self._early = bytes(data)
        except TlsFailed as failed:
            self._fail(failed)
            return
        if self._complete:
            self._deliver()
        else:
            self._ask_step()

    def eof_received(self) -> None:
        """The transport closes itself. Frames have lengths, so truncation is detected without a close_notify."""
        if not self._over:
            self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._events.lost(exc)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # -- the inner protocol's calls -------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if self._over or not data:
            return
        machine = self._machine
        assert machine is not None and self._complete, "written before the handshake"
        machine.encrypt(data)
        self._transport.write(machine.take())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False
        self._read_on()

    def resume_reading(self) -> None:
        self._reads = True
        machine = self._machine
        if self._delivering or self._resuming or self._over:
            return
        if machine is None or not self._complete or not machine.undelivered:
            self._read_on()
        else:
            self._resuming = True
            asyncio.get_running_loop().call_soon(self._resume)

    def is_closing(self) -> bool:
        return self._over or self._transport.is_closing()

    def close(self) -> None:
        """Close with close_notify after all written bytes. If the handshake is not complete, close at once."""
        if self._over:
            return
        self._over = True
        machine = self._machine
        if machine is None or not self._complete:
            self._transport.abort()
            return
        machine.close()
        self._flush(machine)
        self._transport.close()

    def abort(self) -> None:
        self._over = True
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The key `sslcontext` tells `seams.net` that bytes of files must not bypass this layer."""
        return self._context if name == "sslcontext" else self._transport.get_extra_info(name, default)

    # -- the handshake --------------------------------------------------------------------------------------------

    def _ask_step(self) -> None:
        assert not self._stepping
        self._stepping = True
        self._read_on()
        self._events.ask_step()

    def step(self) -> None:
        """Run the requested step. Blocking: up to milliseconds. Raises TlsFailed."""
        machine = self._machine
        if machine is None:
            machine = TlsMachine(self._context(), is_server=self._is_server, server_name=self._server_name)
            self._machine = machine
            machine.receive(self._early)
            self._early = b""
        self._complete = machine.handshake()

    def step_now(self) -> None:
        """`step` and `stepped`, on the loop."""
        failure: BaseException | None = None
        try:
            self.step()
        except TlsFailed as failed:
            failure = failed
        self.stepped(failure)

    def stepped(self, failure: BaseException | None) -> None:
        """The step of the handshake ended, or failed with `failure`."""
        self._stepping = False
        machine = self._machine
        if self._over:
            return
        try:
            if failure is not None:
                raise failure
            assert machine is not None
            if self._complete:
                self._events.complete(machine)
        except TlsFailed as failed:
            self._fail(failed)
            return
        except BaseException:
            self.abort()
            raise
        self._flush(machine)
        if self._complete and self._reads:
            self._deliver()
        else:
            self._read_on()

    # -- plaintext ------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Decrypt the received bytes until the inner protocol pauses reading."""
        machine, inner = self._machine, self._inner
        assert machine is not None
        self._delivering = True
        try:
            while self._reads and not self._over:
                buffer = cast(memoryview, inner.get_buffer(-1))
                size = len(buffer)
                count = machine.decrypt(buffer)
                del buffer
                inner.buffer_updated(count)  # a call with 0 bytes returns the unused buffer
                if count < size:
                    break
        finally:
            self._delivering = False
        if self._over:
            return
        if machine.failure is not None:
            self._fail(machine.failure)
            return
        self._flush(machine)  # send tickets and key updates
        if machine.is_finished:
            inner.eof_received()
            self.close()
        else:
            self._read_on()

    def _resume(self) -> None:
        self._resuming = False
        if self._reads and not self._over:
            self._deliver()

    def _read_on(self) -> None:
        """Pause or resume the transport. It reads only if the inner protocol wants to read and no step runs."""
        wanted = self._reads and not self._stepping
        if wanted is not self._transport_reads and not self._over:
            self._transport_reads = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _flush(self, machine: TlsMachine) -> None:
        if data := machine.take():
            self._transport.write(data)

    def _fail(self, failed: TlsFailed) -> None:
        """Send the alert, if any, and close."""
        self._over = True
        if isinstance(failed, PlaintextReceived):
            reason = CloseReason.TLS_PLAINTEXT
        else:
            reason = CloseReason.TLS_BROKEN if self._machine and self._machine.failure else CloseReason.TLS_HANDSHAKE
        self._events.failed(reason, str(failed))
        if self._machine is not None:
            self._flush(self._machine)
        self._transport.close()
