"""Shared objects of a server's connections: counters, limits, buffers, timers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from broker.net.buffers import BufferPool, FrameBudget
from broker.net.connection_timeouts import DeadlineWheel, Ticks, Timed
from broker.net.dispatch import CloseReason, Dispatcher
from broker.net.limits import NetLimits
from broker.net.transport_writer import WideSendBuffers
from seams.loop.afterwards import Afterwards
from seams.loop.tasks import FailureReport
from seams.net import Net


@dataclass(slots=True)
class NetCounters:
    """Totals since start, except for `connections_open`. Bytes are counted as they cross the socket, with prefixes."""

    connections_open: int = 0
    connections_accepted: int = 0
    connections_delayed: int = 0  # closed after a delay: their addresses open connections too fast
    bytes_in: int = 0
    bytes_out: int = 0
    frames: int = 0
    budget_waits: int = 0  # pauses of reading because frames in flight had used up the budget
    tls_handshakes: int = 0  # complete handshakes
    tls_resumed: int = 0  # handshakes that resumed a session, without a certificate
    closes: Counter[CloseReason] = field(default_factory=Counter)


@dataclass(slots=True)
class Shared:
    net: Net
    dispatcher: Dispatcher
    limits: NetLimits
    pool: BufferPool
    budget: FrameBudget
    wide_buffers: WideSendBuffers
    wheel: DeadlineWheel[Timed]
    ticks: Ticks
    counters: NetCounters
    report: FailureReport
    afterwards: Afterwards
    """Runs callbacks later: if code completes many requests at once, they run once it is done with all."""
