"""Limits on logins, so that a login storm does not delay other clients' requests (S2). Pure: time is a parameter.

Two rates limit the tokens that are judged: one for all clients together and one for each address. A token above a rate
waits. At most `UNDER_WAY_MAX` logins may be under way, and at most a quarter of them from one address. Without the
second bound a silent address could block all other logins.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

UNDER_WAY_MAX: Final = 4096
UNDER_WAY_PER_ADDRESS_MAX: Final = UNDER_WAY_MAX // 4
TOKENS_PER_S: Final = 6000  # a token takes about 40 µs, so this is a quarter of the loop
TOKENS_PER_S_OF_ADDRESS: Final = 3000
_BURST_S: Final = 1.0
WAIT_S_MAX: Final = 5.0
_ADDRESSES_MAX: Final = 10_000


class LoginRate:
    """A token bucket stored as one number, the time when it is full again (GCRA)."""

    __slots__ = ("_full_s", "_interval_s")

    def __init__(self, per_s: float) -> None:
        self._interval_s = 1 / per_s
        self._full_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Take a token. Returns how long the caller has to wait for it."""
        wait_s = self.would_wait_s(now_s)
        self._full_s = max(self._full_s, now_s) + self._interval_s
        return wait_s

    def would_wait_s(self, now_s: float) -> float:
        """The wait for a token if it were taken now."""
        return max(0.0, max(self._full_s, now_s) + self._interval_s - now_s - _BURST_S)


class LoginLimits:
    """Login limits of one broker."""

    def __init__(self) -> None:
        self.under_way = 0
        self._under_way_of: Counter[str] = Counter()  # by address
        self._all = LoginRate(TOKENS_PER_S)
        self._by_address: dict[str, LoginRate] = {}

    def begin(self, host: str) -> bool:
        """Count a login of `host`, if one more may begin. Returns whether it may. The caller calls `end` when the login
        is over. An unknown host ("") has no limit of its own."""
        if self.under_way >= UNDER_WAY_MAX:
            return False
        if host and self._under_way_of[host] >= UNDER_WAY_PER_ADDRESS_MAX:
            return False
        self.under_way += 1
        if host:
            self._under_way_of[host] += 1
        return True

    def end(self, host: str) -> None:
        self.under_way -= 1
        if host:
            self._under_way_of[host] -= 1
            if not self._under_way_of[host]:
                del self._under_way_of[host]

    def wait_s(self, host: str, now_s: float) -> float | None:
        """Take a token for `host`. Returns how long the caller has to wait for it. None if the wait would be longer
        than a login may take; then no token is taken."""
        rate = self._by_address.pop(host, None)
        if rate is None:
            rate = LoginRate(TOKENS_PER_S_OF_ADDRESS)
            while len(self._by_address) >= _ADDRESSES_MAX:
                self._by_address.pop(next(iter(self._by_address)))  # the address that was silent for the longest time
        self._by_address[host] = rate
        if max(rate.would_wait_s(now_s), self._all.would_wait_s(now_s)) > WAIT_S_MAX:
            return None  # a refused token does not use up the rate of all clients
        return max(rate.wait_s(now_s), self._all.wait_s(now_s))
