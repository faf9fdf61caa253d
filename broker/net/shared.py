"""What all connections of a server share.

Owns nothing of its own. Must not know connections.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.net.buffers import BufferPool, FrameBudget
from broker.net.counters import NetCounters
from broker.net.deadlines import DeadlineWheel, Timed
from broker.net.dispatch import Dispatcher
from broker.net.limits import NetLimits
from broker.net.patience import Ticks
from broker.net.send_room import SendRoom
from seams.afterwards import Afterwards
from seams.net import Net
from seams.tasks import FailureReport


@dataclass(slots=True)
class Shared:
    """One value for a server."""

    net: Net
    dispatcher: Dispatcher
    limits: NetLimits
    pool: BufferPool
    budget: FrameBudget
    send_room: SendRoom
    wheel: DeadlineWheel[Timed]
    ticks: Ticks
    counters: NetCounters
    report: FailureReport
    afterwards: Afterwards
    """Of whoever answers many requests at once."""
