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

from tests.support.kafka_tools import SCRIPT
from tests.support.ports import free_port_pair

_START_TIMEOUT_S = 180.0


@contextlib.contextmanager
def kafka_peer(run: Path) -> Iterator[str]:
    """A fresh Apache Kafka (one node, tiered storage on a local directory), its logs in `run / "data"`; its address."""
    port = free_port_pair()
    started = subprocess.run(
        [str(SCRIPT), "start", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=_START_TIMEOUT_S,
        env={**os.environ, "KAFKA_PEER_RUN": str(run), "KAFKA_PEER_HEAP": "-Xms256m -Xmx512m"},
        check=True,
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        os.kill(int(started.stdout), signal.SIGKILL)
