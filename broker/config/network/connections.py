"""Bounds on the connections of single addresses (`max.connections.per.ip.overrides`) and of single listeners
(`listener.name.NAME.max.connections`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.config.values import InvalidConfig
from logformat.record_batch import INT32_MAX

if TYPE_CHECKING:
    from broker.config.sources import Explicit

NAME = "max.connections.per.ip.overrides"
MOST: Final = "max.connections"
PER_S: Final = "max.connection.creation.rate"


class ConnectionBounds(NamedTuple):
    """Bounds of one listener: open connections, and new connections a second. None: only the bound of the whole broker
    applies."""

    most: int | None
    per_s: int | None


def of_listeners(values: Explicit, listeners: Iterable[str]) -> Mapping[str, ConnectionBounds]:
    """The bounds of the listeners for which bounds are configured. Raises InvalidConfig."""
    found = {}
    for listener in listeners:
        own = values.own_of_listener(listener)
        bounds = ConnectionBounds(*(own.number(name) if name in own.configured else None for name in (MOST, PER_S)))
        if bounds != (None, None):
            found[listener] = bounds
    return found


def check_of_listeners(bounds: Mapping[str, ConnectionBounds]) -> None:
    """Check the bounds of listeners for a change at run time, as Kafka does. Raises InvalidConfig."""
    for most, per_s in bounds.values():
        for name, number in ((MOST, most), (PER_S, per_s)):
            if number is not None and number <= 0:
                raise InvalidConfig(f"Invalid {name} {number}")


def per_ip_overrides(text: str | None) -> Mapping[str, int]:
    """Connection limits by address, from `address:count,…`. Kafka also accepts host names and resolves them once, at
    its start. This broker refuses host names. Raises InvalidConfig.
    """
    found: dict[str, int] = {}
    for entry in (text or "").split(","):
        if not entry.strip():
            continue
        address, _, count = entry.strip().rpartition(":")
        try:
            key = str(ip_address(address.strip("[]")))
        except ValueError:
            raise InvalidConfig(f"{NAME}: {address!r} is not an address; write entries like 127.0.0.1:200") from None
        if not count.isascii() or not count.isdecimal() or int(count) > INT32_MAX:
            raise InvalidConfig(f"{NAME}: {count!r} is not a number of connections for {address}")
        found[key] = int(count)
    return found
