"""Reads `max.connections.per.ip.overrides`."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

from broker.config.values import InvalidConfig
from logformat.record_batch import INT32_MAX

NAME = "max.connections.per.ip.overrides"


def per_ip_overrides(text: str | None) -> Mapping[str, int]:
    """Connection limits by address, from `address:count,…`. Kafka also takes host names, which it resolves once, at its
    start. Raises InvalidConfig."""
    found: dict[str, int] = {}
    for entry in (text or "").split(","):
        if not entry.strip():
            continue
        address, _, count = entry.strip().rpartition(":")
        try:
            key = str(ip_address(address.strip("[]")))
        except ValueError:
            raise InvalidConfig(f"{NAME}: {address!r} is no address; write entries like 127.0.0.1:200") from None
        if not count.isascii() or not count.isdecimal() or int(count) > INT32_MAX:
            raise InvalidConfig(f"{NAME}: {count!r} of {address} is no number of connections")
        found[key] = int(count)
    return found
