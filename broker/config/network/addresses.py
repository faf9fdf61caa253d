"""Parses addresses in configs: `host:port`, `[::1]:port`, Kafka's `NAME://host:port`. Pure: names are not resolved."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from broker.config.values import InvalidConfig

_ADDRESS = re.compile(
    r"(?:(?P<name>[A-Za-z][A-Za-z0-9_.-]*)://)?(?P<host>\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\[\]:/\s]*):(?P<port>\d{1,5})"
)
_WILDCARDS = ("", "0.0.0.0", "::")  # Kafka's names for every interface


class Address(NamedTuple):
    """An address: its name (`PLAINTEXT` when none is written), host (empty: every interface) and port."""

    name: str
    host: str
    port: int

    @property
    def every_interface(self) -> bool:
        return self.host in _WILDCARDS

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address. A name other than localhost counts as public."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str, config: str) -> Address:
    """Parse one address. Raises InvalidConfig, which names `config`."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65535:
        raise InvalidConfig(
            f"Invalid value {text} for configuration {config}: write host:port or PLAINTEXT://host:port, "
            "an IPv6 address as [::1]:9092"
        )
    return Address((found["name"] or "PLAINTEXT").upper(), found["host"].strip("[]"), int(found["port"]))


def show_address(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
