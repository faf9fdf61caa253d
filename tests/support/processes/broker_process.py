"""A real broker in a process of its own: `thermocline serve`, its ready line, and ways to end it.

Owns the child process. Always true: it is ended by its own pid when the `with` block ends, and what it wrote to
stderr is in the failure message of whoever waited in vain.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


@dataclass
class BrokerProcess:
    """A running `thermocline serve`. `kafka` and `http` are host:port; `ready` the parsed ready line."""

    process: subprocess.Popen[str]
    ready: dict[str, str] = field(default_factory=dict)
    log_path: Path | None = None

    @property
    def kafka(self) -> str:
        return self.ready["kafka"]

    @property
    def http(self) -> str:
        return self.ready["http"]

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        """What it wrote to stderr so far."""
        return self.log_path.read_text(errors="replace") if self.log_path else ""

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Its exit code, once it ends by itself."""
        return self.process.wait(timeout_s)

    def await_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return when it serves; AssertionError with its log when it ends before, or takes longer."""
        await_ready(self, timeout_s)


def start_broker(
    data_dir: Path,
    bucket: str | None = None,
    *flags: str,
    settings: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    wait_ready: bool = True,
    listen: str | None = "127.0.0.1:0",
    python: str = sys.executable,
) -> BrokerProcess:
    """Start a broker on free ports; with `wait_ready` returns after its ready line, else at once.

    `listen` None: the settings say where.
    """
    command = [python, "-m", "thermocline", "serve", "--data-dir", str(data_dir)]
    command += ["--http", "127.0.0.1:0"]
    if listen is not None:
        command += ["--listen", listen]
    if bucket is not None:
        command += ["--bucket", bucket]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    data_dir.parent.mkdir(parents=True, exist_ok=True)
    log_path = data_dir.parent / f"{data_dir.name}.log"
    with log_path.open("a") as log:
        process = subprocess.Popen(
            [*command, *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    broker = BrokerProcess(process, log_path=log_path)
    if wait_ready:
        await_ready(broker)
    return broker


def await_ready(broker: BrokerProcess, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Read stdout up to the ready line; AssertionError with the log when it does not come."""
    lines: queue.Queue[str] = queue.Queue()

    def pump() -> None:
        assert broker.process.stdout is not None
        for line in broker.process.stdout:
            lines.put(line)
        lines.put("")

    threading.Thread(target=pump, daemon=True).start()
    try:
        line = lines.get(timeout=timeout_s)
    except queue.Empty:
        broker.kill()
        raise AssertionError(f"no ready line within {timeout_s} s:\n{broker.log()[-8000:]}") from None
    if not line.startswith("ready "):
        code = broker.process.wait(STOP_TIMEOUT_S)
        raise AssertionError(f"broker ended with {code} before it was ready:\n{broker.log()[-8000:]}")
    broker.ready = dict(part.split("=", 1) for part in line.split()[1:])


@contextlib.contextmanager
def running_broker(data_dir: Path, bucket: str | None = None, *flags: str, **more: object) -> Iterator[BrokerProcess]:
    """`start_broker`, killed at the end unless it ended already."""
    broker = start_broker(data_dir, bucket, *flags, **more)  # type: ignore[arg-type]
    try:
        yield broker
    finally:
        if broker.process.poll() is None:
            broker.kill()
