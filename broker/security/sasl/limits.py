"""Limits on logins, so that a login storm delays itself and not other requests (S2). Pure: time is a parameter. Two
rates limit the tokens: of all clients, and of one address. A token above a rate waits. At most `UNDER_WAY_MAX` logins
run at a time.
"""

from __future__ import annotations

from typing import Final

UNDER_WAY_MAX: Final = 4096
TOKENS_PER_S: Final = 6000  # a token costs about 40 µs: a quarter of the loop
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
        """Take a token. Returns the time to wait for it."""
        self._full_s = max(self._full_s, now_s) + self._interval_s
        return max(0.0, self._full_s - now_s - _BURST_S)

    def is_full(self, now_s: float) -> bool:
        return self._full_s <= now_s


class LoginLimits:
    """Login limits of one broker."""

    def __init__(self) -> None:
        self.under_way = 0
        self._all = LoginRate(TOKENS_PER_S)
        self._by_address: dict[str, LoginRate] = {}

    def begin(self) -> bool:
        """Whether one more login may begin; `end` when it is over."""
        if self.under_way >= UNDER_WAY_MAX:
            return False
        self.under_way += 1
        return True

    def end(self) -> None:
        self.under_way -= 1

    def wait_s(self, host: str, now_s: float) -> float | None:
        """Waiting time of the next token of `host`; None: longer than a login may take."""
        rate = self._by_address.pop(host, None)
        if rate is None:
            rate = LoginRate(TOKENS_PER_S_OF_ADDRESS)
            while len(self._by_address) >= _ADDRESSES_MAX:
                self._by_address.pop(next(iter(self._by_address)))  # the longest silent address
        self._by_address[host] = rate
        wait_s = max(rate.wait_s(now_s), self._all.wait_s(now_s))
        return None if wait_s > WAIT_S_MAX else wait_s
