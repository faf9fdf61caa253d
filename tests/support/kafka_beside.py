"""Apache Kafka beside a broker of ours: started for a test, asked the same by the same tool, and ended.

Owns the peer's process, the tool's runs, and how two outputs are made comparable. Always true: the peer has a run
folder and ports of its own, and is ended by its own pid. Must not know what a tool is asked.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.kafka_tools import SCRIPT
from tests.support.ports import free_port

_START_TIMEOUT_S = 180.0
_TOOL_TIMEOUT_S = 300.0
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_LOG_LINE = re.compile(r"^\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_TRACE_LINE = re.compile(r"^\s+at [\w.$/]+\(|^\s+\.\.\. \d+ more")


@contextlib.contextmanager
def kafka_peer(run: Path) -> Iterator[str]:
    """A fresh Apache Kafka; its address."""
    port = _port_pair()
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


def _port_pair() -> int:
    """A free port whose neighbour is free too: the peer's controller takes that."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError, OverflowError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port + 1))
            return port


def run_tool(bootstrap: str, name: str, *arguments: str) -> str:
    """What one of Kafka's command line tools says of a broker, and its exit code; comparable between brokers."""
    done = subprocess.run(
        [str(SCRIPT), "tool", name, "--bootstrap-server", bootstrap, *arguments],
        capture_output=True,
        text=True,
        timeout=_TOOL_TIMEOUT_S,
        check=False,
        env={**os.environ, "KAFKA_TOOL_HEAP": "-Xmx128m -XX:TieredStopAtLevel=1 -Xshare:auto"},
    )
    return "\n".join([f"exit {done.returncode}", *comparable(done.stdout + done.stderr, bootstrap)])


def beside(brokers: Sequence[str], name: str, *arguments: str) -> list[str]:
    """The same question to each broker, at the same time."""
    with ThreadPoolExecutor(len(brokers)) as pool:
        return list(pool.map(lambda broker: run_tool(broker, name, *arguments), brokers))


def comparable(text: str, bootstrap: str) -> list[str]:
    """Lines without what is each broker's own: addresses, ids that are made up, column widths, the order of rows (that
    of hash tables), log lines and the frames of stack traces."""
    lines = []
    for line in text.replace(bootstrap, "BROKER").splitlines():
        if not line.strip() or _LOG_LINE.match(line) or _TRACE_LINE.match(line):
            continue
        lines.append(" ".join(_UUID.sub("ID", line).split()))
    return sorted(lines)
