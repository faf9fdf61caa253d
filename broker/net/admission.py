"""Who may connect: connection count, count per address, and rate.

Always true: nobody is turned away for the rate or the total; those wait their turn, as in Kafka. Only one address with
too many connections, and whoever comes when too many wait already, is closed. A machine: time comes in.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import Enum
from typing import Generic, TypeVar

from broker.net.limits import NetLimits

T = TypeVar("T")


class Admission(Enum):
    """What to do with a new connection."""

    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"


class Admissions(Generic[T]):
    """Connections admitted and waiting. A connection is any hashable value; every `arrived` is followed by `left`
    unless it was refused."""

    def __init__(self, limits: NetLimits, now_s: float) -> None:
        self._limits = limits
        self._rate = limits.connections_per_s_max
        self._credit = self._burst = _burst(limits)
        self._credit_s = now_s
        self._per_address: Counter[str] = Counter()
        self._waiting: deque[T] = deque()
        self.admitted = 0

    def obey(self, limits: NetLimits, now_s: float) -> None:
        """Other bounds from now on; what was earned at the old rate is kept, as far as the new burst allows."""
        self._refill(now_s)
        self._limits = limits
        self._rate = limits.connections_per_s_max
        self._burst = _burst(limits)
        self._credit = min(self._credit, self._burst)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def arrived(self, connection: T, address: str, now_s: float) -> Admission:
        """A connection from `address` ("" = unknown: not counted per address)."""
        if address and self._per_address[address] >= self._limits.connections_per_ip_max:
            return Admission.REFUSE
        if not self._waiting and self._spend(now_s):
            verdict = Admission.ADMIT
        elif len(self._waiting) >= self._limits.connections_waiting_max:
            return Admission.REFUSE
        else:
            self._waiting.append(connection)
            verdict = Admission.WAIT
        if address:
            self._per_address[address] += 1
        return verdict

    def left(self, connection: T, address: str, admitted: bool) -> None:
        """A connection that was admitted, or still waits, is gone."""
        if admitted:
            self.admitted -= 1
        else:
            self._waiting.remove(connection)
        if address:
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def next(self, now_s: float) -> T | None:
        """The longest waiting connection if it may come in now: admitted when returned."""
        return self._waiting.popleft() if self._waiting and self._spend(now_s) else None

    def retry_in_s(self, now_s: float) -> float | None:
        """When `next` is worth asking again; None when nobody waits, or only a `left` can help."""
        if not self._waiting or self.admitted >= self._limits.connections_max:
            return None
        self._refill(now_s)
        return max(0.0, (1.0 - self._credit) / self._rate)

    def _spend(self, now_s: float) -> bool:
        self._refill(now_s)
        if self._credit < 1.0 or self.admitted >= self._limits.connections_max:
            return False
        self._credit -= 1.0
        self.admitted += 1
        return True

    def _refill(self, now_s: float) -> None:
        self._credit = min(self._burst, self._credit + (now_s - self._credit_s) * self._rate)
        self._credit_s = now_s


def _burst(limits: NetLimits) -> float:
    return max(limits.connections_per_s_max, 1.0)  # one second's worth, as Kafka's rate window
