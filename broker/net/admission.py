"""Limits on new connections: total and rate of the broker and of each listener, and limits per address (KIP-402,
KIP-612).

Above a total or a rate a connection waits, as in Kafka. A connection is closed when its address has too many
connections, or when too many connections wait already. If an address opens connections too fast, a new connection is
closed after a delay (KIP-612). No I/O: the time is a parameter.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from enum import Enum
from typing import Generic, Protocol, TypeVar

from broker.net.limits import NO_LIMITS, NetLimits

T = TypeVar("T")


class Admission(Enum):
    ADMIT = "admit"
    WAIT = "wait"
    REFUSE = "refuse"
    DELAY = "close later"  # the address opens connections too fast


class AddressRates(Protocol):
    """The rates at which addresses may open connections."""

    def arrived(self, address: str, now_s: float) -> float:
        """Count a connection. Returns the seconds after which to close it unserved; 0: it may be served."""
        ...


class Allowance:
    """Bounds on open connections and on new connections per second. At most one second's worth of new connections may
    come at once. None: no limit.
    """

    def __init__(self, most: float | None, per_s: float | None, now_s: float) -> None:
        self._most, self._per_s = most, per_s
        self._credit = self._burst
        self._credit_s = now_s
        self.open = 0

    def set(self, most: float | None, per_s: float | None, now_s: float) -> None:
        """Change the limits. Unused credit of the old rate remains, up to the new burst."""
        self._refill(now_s)
        self._most, self._per_s = most, per_s
        self._credit = min(self._credit, self._burst)

    def has_room(self, now_s: float) -> bool:
        self._refill(now_s)
        return self._credit >= 1.0 and (self._most is None or self.open < self._most)

    def spend(self) -> None:
        """Admit one connection, after `has_room` returned True."""
        self.open += 1
        self._credit -= 1.0

    def retry_in_s(self, now_s: float) -> float | None:
        """Seconds until there is room; None if there is no room before a connection leaves or the limits change."""
        self._refill(now_s)
        if self._most is not None and self.open >= self._most:
            return None
        if self._credit >= 1.0:
            return 0.0
        return (1.0 - self._credit) / self._per_s if self._per_s else None

    @property
    def _burst(self) -> float:
        """The connections of one second; 0 for a rate of 0. Kafka admits the connections of eleven seconds at once.
        After a restart of the broker all clients connect at once, and each costs a handshake."""
        if self._per_s is None:
            return math.inf
        return max(self._per_s, 1.0) if self._per_s else 0.0

    def _refill(self, now_s: float) -> None:
        gained = math.inf if self._per_s is None else (now_s - self._credit_s) * self._per_s
        self._credit = min(self._burst, self._credit + gained)
        self._credit_s = now_s


class Crowd:
    """Bounds that several listeners share: on all their connections, on the connections of one address, and on waiting
    connections. With `apart` there is no bound on all connections; each listener without its own bounds then gets the
    bounds of the broker.
    """

    def __init__(self, limits: NetLimits, now_s: float, *, apart: bool = False) -> None:
        self.apart = apart
        self.limits = limits
        self.total = Allowance(*self._of_all(), now_s)
        self.per_address: Counter[str] = Counter()
        self.waiting = 0

    def set_limits(self, limits: NetLimits, now_s: float) -> None:
        self.limits = limits
        self.total.set(*self._of_all(), now_s)

    def own(self, listener: str) -> tuple[float | None, float | None]:
        """Open connections and rate of one listener."""
        own = self.limits.of_listener.get(listener, NO_LIMITS)
        most, per_s = self._broker_wide() if self.apart else (None, None)
        return most if own.most is None else own.most, per_s if own.per_s is None else own.per_s

    def _of_all(self) -> tuple[float | None, float | None]:
        return (None, None) if self.apart else self._broker_wide()

    def _broker_wide(self) -> tuple[float, float]:
        return self.limits.connections_max, self.limits.connections_per_s_max


class ConnectionLimiter(Generic[T]):
    """Connections of one listener, admitted and waiting. A connection is any hashable value; `left` follows every
    `arrived` that was not refused. A listener at its own bounds does not keep out connections to another listener of
    its crowd.
    """

    def __init__(self, limits: NetLimits, now_s: float, listener: str = "", crowd: Crowd | None = None) -> None:
        self._listener = listener
        self._crowd = crowd or Crowd(limits, now_s)
        self._own = Allowance(*self._crowd.own(listener), now_s)
        self._waiting: deque[T] = deque()

    @property
    def admitted(self) -> int:
        return self._own.open

    def set_limits(self, limits: NetLimits, now_s: float) -> None:
        """Change the limits of the listener and of its crowd."""
        self._crowd.set_limits(limits, now_s)
        self._own.set(*self._crowd.own(self._listener), now_s)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def arrived(self, connection: T, address: str, now_s: float) -> Admission:
        """Decide on a connection from `address` ("" = unknown: not counted per address)."""
        crowd, limits = self._crowd, self._crowd.limits
        most = limits.connections_per_ip_overrides.get(address, limits.connections_per_ip_max)
        if address and crowd.per_address[address] >= most:
            return Admission.REFUSE
        if not self._waiting and self._spend(now_s):
            verdict = Admission.ADMIT
        elif crowd.waiting >= limits.connections_waiting_max:
            return Admission.REFUSE
        else:
            self._waiting.append(connection)
            crowd.waiting += 1
            verdict = Admission.WAIT
        if address:
            crowd.per_address[address] += 1
        return verdict

    def left(self, connection: T, address: str, admitted: bool) -> None:
        """A connection that was admitted or still waits has closed."""
        crowd = self._crowd
        if admitted:
            self._own.open -= 1
            crowd.total.open -= 1
        else:
            self._waiting.remove(connection)
            crowd.waiting -= 1
        if address:
            crowd.per_address[address] -= 1
            if not crowd.per_address[address]:
                del crowd.per_address[address]

    def next(self, now_s: float) -> T | None:
        """Admit and return the longest waiting connection, if one may be admitted now."""
        if not self._waiting or not self._spend(now_s):
            return None
        self._crowd.waiting -= 1
        return self._waiting.popleft()

    def retry_in_s(self, now_s: float) -> float | None:
        """Seconds until `next` may admit one. None if no connection waits, or if no connection is admitted before
        another leaves."""
        if not self._waiting:
            return None
        own, total = self._own.retry_in_s(now_s), self._crowd.total.retry_in_s(now_s)
        return None if own is None or total is None else max(own, total)

    def _spend(self, now_s: float) -> bool:
        total = self._crowd.total
        if not (self._own.has_room(now_s) and total.has_room(now_s)):
            return False
        self._own.spend()
        total.spend()
        return True
