"""Ports nobody listens on, for servers that must be told theirs beforehand."""

from __future__ import annotations

import contextlib
import random
import socket

_GIVEN: set[int] = set()
"""By `quiet_port`: six drawn for three brokers, before any of them listens, are to be six."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago; ports are not given twice in a row by the kernel."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def free_port_run(count: int) -> int:
    """The first of so many quiet ports in a row: Kafka's controllers take every other one."""
    while True:
        first = quiet_port()
        with contextlib.suppress(OSError, OverflowError), contextlib.ExitStack() as probes:
            for port in range(first + 1, first + count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def quiet_port() -> int:
    """A free port below the kernel's ephemeral range, so that no client's socket takes it between a broker's lives;
    none twice."""
    for _ in range(50):
        port = random.SystemRandom().randrange(20_000, 30_000)
        if port in _GIVEN and len(_GIVEN) < 5000:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _GIVEN.add(port)
            return port
    raise AssertionError("no free port between 20000 and 30000")
