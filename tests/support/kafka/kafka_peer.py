"""Apache Kafka beside a broker of ours, started for a test and ended.

Owns the peer's process. Always true: it has a run folder and ports of its own, and is ended by its own pid. Must not
know what it is asked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.kafka.kafka_tools import SCRIPT
from tests.support.processes.ports import free_port_run

_START_TIMEOUT_S = 180.0


@contextlib.contextmanager
def kafka_peer(run: Path) -> Iterator[str]:
    """A fresh Apache Kafka (one node, tiered storage on a local directory), its logs in `run / "data"`; its address."""
    with kafka_peers(run, 1) as (address, _):
        yield address


@contextlib.contextmanager
def kafka_peers(run: Path, count: int) -> Iterator[tuple[str, list[int]]]:
    """As `kafka_peer`, of `count` nodes, each a controller too; their addresses, and their process ids by node."""
    port = free_port_run(2 * count)
    with kafka_with(run, port, count=count):
        pids = [int((run / f"pid-{node}").read_text()) for node in range(1, count + 1)]
        yield ",".join(f"127.0.0.1:{port + 2 * node}" for node in range(count)), pids


@contextlib.contextmanager
def kafka_with(run: Path, port: int, settings: str = "", count: int = 1) -> Iterator[None]:
    """Fresh brokers from `port` on, two ports each. `settings`: lines that their server.properties has besides."""
    environment = {**os.environ, "KAFKA_PEER_RUN": str(run), "KAFKA_PEER_HEAP": "-Xms256m -Xmx512m"}
    if settings:
        environment["KAFKA_PEER_SETTINGS"] = settings
    words = [str(SCRIPT), "start", str(port), str(count)]
    try:
        subprocess.run(words, stdout=subprocess.DEVNULL, timeout=_START_TIMEOUT_S, env=environment, check=True)
        yield
    finally:
        for found in run.glob("pid-*"):
            with contextlib.suppress(ProcessLookupError):  # a test killed it, or it did not start
                os.kill(int(found.read_text()), signal.SIGKILL)
