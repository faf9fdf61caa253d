"""Parses `-b`: `host:port[,[::1]:port]…`. Resolves no names."""

from __future__ import annotations

from broker.config.network.addresses import parse_address
from broker.config.values import InvalidConfig
from thermocline.cli.terminal.outcome import CommandFailed, Exit


def bootstrap_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """(host, port) each, IPv6 hosts without brackets. Raises CommandFailed for another syntax."""
    found = []
    for text in bootstrap.split(","):
        try:
            _, host, port = parse_address(text, "-b")
            host.encode("idna")  # as name resolution does: labels of 1 to 63 letters
        except (InvalidConfig, UnicodeError):
            host, port = "", 0
        if not host or not port:
            raise CommandFailed(f"-b {bootstrap}: write HOST:PORT, an IPv6 address as [::1]:9092", Exit.USAGE)
        found.append((host, port))
    return found
