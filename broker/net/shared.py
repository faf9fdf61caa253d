"""What all connections of a server share.

Owns nothing of its own. Must not know how a connection works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.net.admission import Admission
from broker.net.buffers import BufferPool, FrameBudget
from broker.net.counters import NetCounters
from broker.net.deadlines import DeadlineWheel, Timed
from broker.net.dispatch import Dispatcher
from broker.net.limits import NetLimits
from broker.net.patience import Ticks
from seams.net import Net
from seams.tasks import FailureReport

if TYPE_CHECKING:
    from broker.net.connection import Connection


@dataclass(slots=True)
class Shared:
    """One value for a server. `arrived` and `left` are the server's own: on WAIT `Connection.admit` follows."""

    net: Net
    dispatcher: Dispatcher
    limits: NetLimits
    pool: BufferPool
    budget: FrameBudget
    wheel: DeadlineWheel[Timed]
    ticks: Ticks
    counters: NetCounters
    report: FailureReport
    arrived: Callable[[Connection], Admission]
    left: Callable[[Connection], None]
