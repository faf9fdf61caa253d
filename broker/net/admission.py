"""Limits on new connections: total, per address, and rate.

Above the total or the rate a connection waits, as in Kafka. It is closed when its address has too many connections, or
when too many wait already. A connection from an address that opens them too fast is closed after a delay (KIP-612). No
I/O: the time is a parameter.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import Enum
from typing import Generic, Protocol, TypeVar

from broker.net.limits import NetLimits

T = TypeVar("T")


class Admission(Enum):
    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"
    DELAY = "close later"  # its address opens connections too fast


class AddressRates(Protocol):
    """The rates at which addresses may open connections."""

    def arrived(self, address: str, now_s: float) -> float:
        """Count a connection. Returns the seconds after which to close it unserved; 0: it may be served."""
        ...


class NoAddressRates:
    """`AddressRates` without limits."""

    def arrived(self, address: str, now_s: float) -> float:
        return 0.0


class ConnectionLimiter(Generic[T]):
    """Connections admitted and waiting. A connection is any hashable value; `left` follows every `arrived` that was not
    refused."""

    def __init__(self, limits: NetLimits, now_s: float) -> None:
        self._limits = limits
        self._rate = limits.connections_per_s_max
        self._credit = self._burst = _burst(limits)
        self._credit_s = now_s
        self._per_address: Counter[str] = Counter()
        self._waiting: deque[T] = deque()
        self.admitted = 0

    def set_limits(self, limits: NetLimits, now_s: float) -> None:
        """Change the limits. Unused credit of the old rate remains, up to the new burst."""
        self._refill(now_s)
        self._limits = limits
        self._rate = limits.connections_per_s_max
        self._burst = _burst(limits)
        self._credit = min(self._credit, self._burst)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def arrived(self, connection: T, address: str, now_s: float) -> Admission:
        """Decide on a connection from `address` ("" = unknown: not counted per address)."""
        limits = self._limits
        most = limits.connections_per_ip_overrides.get(address, limits.connections_per_ip_max)
        if address and self._per_address[address] >= most:
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
        """A connection that was admitted or still waits has closed."""
        if admitted:
            self.admitted -= 1
        else:
            self._waiting.remove(connection)
        if address:
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def next(self, now_s: float) -> T | None:
        """Admit and return the longest waiting connection, if one may be admitted now."""
        return self._waiting.popleft() if self._waiting and self._spend(now_s) else None

    def retry_in_s(self, now_s: float) -> float | None:
        """Seconds until `next` may admit a connection; None when none waits, or only a `left` makes room."""
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
