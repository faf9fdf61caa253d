"""Quotas on the connections that one address may open a second (KIP-612).

A connection above the quota is not served and not counted. It is closed after the throttle time, at most one window.
Addresses without a quota are not measured.

Source: Kafka's ConnectionQuotas. Host names are resolved by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.quotas.rates import Rate, Windows
from broker.quotas.sensors import Sensors


class ConnectionRates:
    """The connection rates of one broker. `default`: the limit of addresses without a limit of their own; None if they
    have no limit."""

    __slots__ = ("_by_address", "_default", "_sensors", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._default: float | None = None
        self._by_address: Mapping[str, float] = {}
        self._sensors: Sensors[Rate] = Sensors()

    def set(self, default: float | None, by_address: Mapping[str, float]) -> None:
        """Replace the quotas. Connections that were counted before the change still count."""
        self._default, self._by_address = default, dict(by_address)
        if default is None and not by_address:
            self._sensors.clear()

    def arrived(self, address: str, now_s: float) -> float:
        """Count a connection from `address`. An unknown address ("") is not limited. Returns the seconds after which
        the connection is to be closed; 0 if it may be served."""
        bound = self._by_address.get(address, self._default)
        if bound is None or not address:
            return 0.0
        now_ms = int(now_s * 1000)
        rate = self._sensors.get(("", address), now_ms, self._new_rate)
        rate.record(1, now_ms)
        throttle_ms = min(rate.throttle_ms(bound, now_ms), self._windows.size_ms)
        if throttle_ms:
            rate.record(-1, now_ms)
        return throttle_ms / 1000

    def _new_rate(self) -> Rate:
        return Rate(self._windows)
