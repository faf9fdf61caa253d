"""`test/service.py` of kafka-python's tests, which its package lacks: brokers of ours in place of Apache Kafka's.

Copied into their folder of tests and run by the Python they are installed in: imports the standard library only.
`BROKER_PYTHON` and `BROKER_ROOT` say what runs `thermocline serve`.
"""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_END_S = 30.0


class ExternalService:
    """A broker that runs already."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass


class SpawnedService:
    """A broker on the properties file that their tests wrote: the last of `args`, which are of Kafka's program."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str]) -> None:
        self._properties = Path(args[-1])
        self._log = self._properties.with_suffix(".log")
        self._is_ready = False
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [os.environ["BROKER_PYTHON"], "-m", "thermocline", "serve", "--http", "127.0.0.1:0"]
        command += ["--config", str(self._properties), "--data-dir", str(self._properties.parent / "data")]
        environment = {**os.environ, "PYTHONPATH": os.environ["BROKER_ROOT"]}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

    def wait_for(self, pattern: str, timeout: float) -> bool:
        """Whether the broker is ready within `timeout` seconds; their pattern is a line of Kafka's log."""
        if not self._is_ready:
            assert self._process is not None and self._process.stdout is not None
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ)
                self._is_ready = bool(selector.select(timeout)) and self._process.stdout.readline().startswith("ready ")
        return self._is_ready

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_END_S)

    def dump_logs(self) -> None:
        print(self._log.read_text(errors="replace")[-8000:])
