"""Server: binds listeners, makes, admits and counts connections, ticks their deadlines, and drains them.

Either all addresses are bound, or none. A connection is admitted before its first byte is read. A stop takes no longer
than the drain time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from broker.net.admission import AddressRates, Admission, ConnectionLimiter, Crowd
from broker.net.buffers import BufferPool, FrameBudget
from broker.net.connection import Connection
from broker.net.connection_timeouts import DeadlineWheel, Ticks
from broker.net.dispatch import Dispatcher, Peer, PeerDispatcher
from broker.net.limits import NetLimits
from broker.net.shared import NetCounters, Shared
from broker.net.tls.handshakes import Handshakes
from broker.net.tls.layer import TlsLayer
from broker.net.tls.session import ServerSession, ServerTls
from broker.net.transport_writer import WideSendBuffers
from broker.security_protocol import SecurityProtocol
from seams.files import descriptors
from seams.loop.afterwards import Afterwards
from seams.loop.beats import Beats
from seams.loop.tasks import FailureReport
from seams.loop.workers import Workers
from seams.net import Listener, Net

log = logging.getLogger(__name__)

_ABORT_S: Final = 1.0  # time in which aborted transports report their end
_RETRY_S_MIN: Final = 0.001


class Bind(NamedTuple):
    """A listener: its name for peers, its address (port 0 picks one) and its protocol. `apart`: it has separate limits
    on new connections and handshakes, so that many connections on other listeners do not block its peers. `tls`: set if
    the protocol uses TLS. `login` makes the dispatcher of a new peer that has to log in first (`Peer.dispatcher`)."""

    name: str
    host: str
    port: int
    apart: bool = False
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: ServerTls | None = None
    login: Callable[[], PeerDispatcher] | None = None


class Server:
    """The listeners of one broker. `tick_s`: the grain of deadlines; `workers` run the steps of TLS handshakes."""

    def __init__(
        self,
        net: Net,
        dispatcher: Dispatcher,
        limits: NetLimits,
        report: FailureReport,
        *,
        workers: Workers,
        tick_s: float = 1.0,
        afterwards: Afterwards | None = None,
        beats: Beats = Beats(),  # noqa: B008 - immutable
    ) -> None:
        self.counters = NetCounters()
        self.handshakes = Handshakes(workers, report)
        self._handshakes_apart = Handshakes(workers, report)  # separate, so that many clients do not block brokers
        self.budget = FrameBudget(limits.frame_bytes_total_max, limits.request_bytes_max)
        self._net = net
        self._limits = limits
        self._tick_s = tick_s
        self._beats = beats
        self._listeners: dict[str, Listener] = {}
        self._connections: dict[Connection, None] = {}  # in order of arrival
        self._connection_id = 0
        self._apart: set[str] = set()
        self._admissions: dict[str, ConnectionLimiter[Connection]] = {}
        self._address_rates: AddressRates | None = None
        self._delayed: dict[Connection, asyncio.TimerHandle] = {}  # at most `connections_waiting_max`
        self._admit_timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._empty: asyncio.Event = asyncio.Event()
        self._shared = Shared(
            net=net,
            dispatcher=dispatcher,
            limits=limits,
            pool=BufferPool(),
            budget=self.budget,
            wide_buffers=WideSendBuffers(net, limits.wide_send_buffers_max),
            wheel=DeadlineWheel(),
            counters=self.counters,
            report=report,
            afterwards=afterwards or Afterwards(),
            ticks=Ticks(
                frame=_ticks(limits.frame_ms_max, tick_s),
                idle=_ticks(limits.idle_ms_max, tick_s),
                stall=_ticks(limits.write_stall_ms_max, tick_s),
                handshake=_ticks(limits.handshake_ms_max, tick_s),
            ),
        )

    @property
    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """Host and port really bound, by listener name, in the order given to `bind`."""
        return {name: listener.address for name, listener in self._listeners.items()}

    @property
    def connections_waiting(self) -> int:
        """Connections accepted by the kernel and not admitted yet."""
        return sum(admissions.waiting for admissions in self._admissions.values())

    async def bind(self, binds: Iterable[Bind]) -> None:
        """Bind the addresses, without accepting connections. After OSError no address is bound."""
        assert not self._admissions, "accepting already"
        try:
            for bind in binds:
                assert bind.name not in self._listeners, f"{bind.name} was bound before"
                assert bind.protocol.uses_tls == (bind.tls is not None), f"{bind.name}: {bind.protocol}"
                assert bind.protocol.uses_sasl == (bind.login is not None), f"{bind.name}: {bind.protocol}"
                if bind.apart:
                    self._apart.add(bind.name)
                made: Callable[[], asyncio.BaseProtocol] = partial(self._connection, bind)
                if bind.tls is not None:
                    made = partial(self._tls_connection, bind, bind.tls)
                self._listeners[bind.name] = await self._net.bind(bind.host, bind.port, made, self._limits.buffers)
        except BaseException:
            await self._close_listeners()
            raise

    async def accept(self) -> None:
        """Accept connections. Raises OSError when another process took an address at the same moment; then no listener
        is open."""
        assert self._listeners, "not bound"
        now_s = asyncio.get_running_loop().time()
        together = Crowd(self._limits, now_s)
        for name in self._listeners:
            crowd = Crowd(self._limits, now_s, apart=True) if name in self._apart else together
            self._admissions[name] = ConnectionLimiter(self._limits, now_s, name, crowd)
        try:
            for listener in self._listeners.values():
                await listener.accept()
        except BaseException:
            await self._close_listeners()
            raise

    async def _close_listeners(self) -> None:
        while self._listeners:
            _, listener = self._listeners.popitem()
            await listener.close()

    def limit_connections(self, limits: NetLimits) -> None:
        """Change the limits on new connections; present connections stay. Other limits do not change."""
        self._limits = limits
        if not self._admissions:
            return
        now_s = asyncio.get_running_loop().time()
        for admissions in self._admissions.values():
            admissions.set_limits(limits, now_s)
        if self._admit_timer is not None:
            self._admit_timer.cancel()
            self._admit_timer = None
        self._admit_later(now_s)

    def limit_addresses(self, rates: AddressRates) -> None:
        """Ask `rates` about every new connection, except on listeners that are `apart`."""
        self._address_rates = rates

    async def stop(self, *, drain: bool = True) -> None:
        """Accept no more connections, let responses in flight leave for `drain_ms_max`, then close all connections.

        `drain` False: close at once, for a broker that may send no more responses.
        """
        self._stopping = True
        await self._close_listeners()
        for connection in list(self._connections) if drain else ():
            connection.drain()
        if not drain or not await self._wait_empty(self._limits.drain_ms_max / 1000):
            for connection in list(self._connections):
                connection.stop()
            await self._wait_empty(_ABORT_S)
        await self.handshakes.close()
        await self._handshakes_apart.close()
        for timer in (self._admit_timer, self._tick_timer, *self._delayed.values()):
            if timer is not None:
                timer.cancel()

    async def _wait_empty(self, timeout_s: float) -> bool:
        self._empty.clear()
        if not self._connections:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    # -- called by connections ------------------------------------------------------------------------------------

    def _connection(self, bind: Bind) -> Connection:
        self._connection_id += 1
        peer = Peer(self._connection_id, "", bind.name)
        if bind.login is not None:
            peer.dispatcher = bind.login()
        return Connection(self._shared, peer, self)

    def _tls_connection(self, bind: Bind, tls: ServerTls) -> TlsLayer:
        handshakes = self._handshakes_apart if bind.apart else self.handshakes
        return ServerSession(self._connection(bind), self._shared, tls, handshakes).protocol

    def arrived(self, connection: Connection, transport: asyncio.BaseTransport) -> Admission:
        """Count the connection and decide whether to admit it."""
        self._connections[connection] = None
        self.counters.connections_accepted += 1
        self.counters.connections_open += 1
        if self._stopping:
            return Admission.REFUSE
        now_s = asyncio.get_running_loop().time()
        is_apart = connection.peer.listener in self._apart
        share = descriptors.BROKERS if is_apart else descriptors.CONNECTIONS
        if not self._net.has_room(transport, share):
            log.warning("a connection is refused: %s", descriptors.shortage(share))
            return Admission.REFUSE
        if not is_apart and self._address_rates is not None:
            delay_s = self._address_rates.arrived(connection.peer.host, now_s)
            if delay_s > 0:
                return self._delay(connection, delay_s)
        verdict = self._admissions[connection.peer.listener].arrived(connection, connection.peer.host, now_s)
        if verdict is Admission.WAIT:
            self._admit_later(now_s)
        if self._tick_timer is None:
            self._tick_later()
        return verdict

    def _delay(self, connection: Connection, delay_s: float) -> Admission:
        """Close the connection later, so that its client does not open the next connection at once."""
        if len(self._delayed) >= self._limits.connections_waiting_max:
            return Admission.REFUSE
        self._delayed[connection] = asyncio.get_running_loop().call_later(delay_s, connection.close_delayed)
        self.counters.connections_delayed += 1
        return Admission.DELAY

    def left(self, connection: Connection) -> None:
        """The connection is gone: a waiting connection may be admitted."""
        self._connections.pop(connection, None)
        self.counters.connections_open -= 1
        if (timer := self._delayed.pop(connection, None)) is not None:
            timer.cancel()
        if connection.admission in (Admission.ADMIT, Admission.WAIT):
            admissions = self._admissions[connection.peer.listener]
            admissions.left(connection, connection.peer.host, connection.admission is Admission.ADMIT)
            self._admit_later(asyncio.get_running_loop().time())
        if not self._connections:
            self._empty.set()

    def _admit_later(self, now_s: float) -> None:
        """Set a timer for the time at which a waiting connection may be admitted."""
        found = (admissions.retry_in_s(now_s) for admissions in self._admissions.values())
        retry_s = min((retry_s for retry_s in found if retry_s is not None), default=None)
        if retry_s is not None and self._admit_timer is None and not self._stopping:
            self._admit_timer = asyncio.get_running_loop().call_later(max(retry_s, _RETRY_S_MIN), self._admit_waiting)

    def _admit_waiting(self) -> None:
        self._admit_timer = None
        now_s = asyncio.get_running_loop().time()
        turns = deque(self._admissions.values())
        while turns and not self._stopping:  # listeners take turns, so that no listener uses up the shared limits
            if (connection := turns[0].next(now_s)) is None:
                turns.popleft()
            else:
                connection.admit()
                turns.rotate(-1)
        self._admit_later(now_s)

    def _tick(self) -> None:
        """A second of the running loop passed."""
        self._tick_timer = None
        self._shared.wheel.advance()
        if self._connections:
            self._tick_later()

    def _tick_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._tick_timer = loop.call_at(self._beats.after(loop.time(), self._tick_s), self._tick)


def _ticks(duration_ms: int, tick_s: float) -> int:
    """The time in whole ticks, rounded up by one: a deadline may be late by a tick, never early."""
    return int(duration_ms / 1000 / tick_s) + 1
