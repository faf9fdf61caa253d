"""A broker of the demos in a separate process, with segments small enough to be copied within seconds.

The demos see a command, a Kafka port and an HTTP port, as a user does.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thermocline.cli.clients.bootstrap import bootstrap_addresses
from thermocline.cli.clients.http_client import HttpAddress, get, post_json
from thermocline.demo.keys import Keys
from thermocline.demo.payload import PARTITIONS, TOPIC, Failed

SETTINGS = {
    "log.segment.bytes": 16 << 20,
    "log.local.retention.ms": 1000,
    "log.retention.check.interval.ms": 500,
    "log.retention.ms": -1,
    "num.partitions": PARTITIONS,
    "group.initial.rebalance.delay.ms": 0,
}


_QUIET_PORTS = range(20_000, 30_000)
"""Below the kernel's ephemeral ports: no client's socket takes one between two processes of a broker."""


def free_address() -> str:
    """An address on which nothing listens."""
    for port in random.sample(_QUIET_PORTS, 50):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{port}"
    raise Failed(f"no port from {_QUIET_PORTS.start} to {_QUIET_PORTS.stop - 1} is free on 127.0.0.1")


@dataclass
class DemoBroker:
    """A `thermocline serve` process."""

    process: subprocess.Popen[str]
    kafka: str
    http: HttpAddress

    @classmethod
    def start(cls, data_dir: Path, bucket: Path, keys: Keys, kafka: str, *flags: str) -> DemoBroker:
        """Start the broker and wait for its ready line. Its log is beside its directory; a later process appends to
        it."""
        command = [sys.executable, "-m", "thermocline", "serve", "--data-dir", str(data_dir)]
        command += ["--bucket", f"file://{bucket}", "--listen", kafka, "--http", "127.0.0.1:0"]
        for name, value in SETTINGS.items():
            command += ["--set", f"{name}={value}"]
        command += (*keys.flags, *flags)  # later flags win
        path = data_dir.parent / f"{data_dir.name}.log"
        with path.open("a") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise Failed(f"the broker did not come up; see {path}")
        ready = dict(part.split("=", 1) for part in line.split()[1:])
        keys.keep(data_dir)
        ((host, port),) = bootstrap_addresses(ready["http"])
        return cls(process, ready["kafka"], HttpAddress(host, port, uses_tls=keys.folder is not None))

    def partitions(self) -> list[dict[str, Any]]:
        """Every partition, as in `tier status`."""
        return list(json.loads(get(self.http, "/status")))

    def status(self) -> list[dict[str, Any]]:
        """The partitions of the demo's topic."""
        return [partition for partition in self.partitions() if partition["topic"] == TOPIC]

    @property
    def local_bytes(self) -> int:
        return sum(partition["local_bytes"] for partition in self.status())

    @property
    def cold_bytes(self) -> int:
        return sum(partition["cold_bytes"] for partition in self.status())

    def metric(self, name: str) -> float:
        """The sum of one metric over all labels."""
        lines = get(self.http, "/metrics").decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def seal(self) -> None:
        post_json(self.http, "/tier/seal", json.dumps({"wait": True}))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(60) != 0:
            raise Failed("the broker did not stop cleanly")
