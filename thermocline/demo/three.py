"""Three demo brokers on one bucket, as processes, and their common state by their HTTP ports.

A broker keeps its node id and port over restarts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from thermocline.cli.clients.http_client import HttpRefused, get
from thermocline.demo.broker import DemoBroker, free_address
from thermocline.demo.keys import Keys
from thermocline.demo.payload import Failed

NODES: Final = (1, 2, 3)
_WAIT_S: Final = 60.0
_POLL_S: Final = 0.2


@dataclass
class DemoCluster:
    """`root`/broker-<node> are data directories, `root`/bucket is the common bucket."""

    root: Path
    keys: Keys
    settings: Sequence[str] = ()  # KEY=VALUE
    brokers: dict[int, DemoBroker] = field(default_factory=dict)

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.kafka for broker in self.brokers.values())

    def directory(self, node: int) -> Path:
        return self.root / f"broker-{node}"

    def start(self, node: int) -> DemoBroker:
        """Start a broker on its directory, and wait until it is ready."""
        kafka = self.brokers[node].kafka if node in self.brokers else free_address()
        settings = (word for setting in self.settings for word in ("--set", setting))
        flags = ("--node-id", str(node), *settings)
        self.brokers[node] = DemoBroker.start(self.directory(node), self.bucket, self.keys, kafka, *flags)
        return self.brokers[node]

    def start_all(self) -> None:
        """The first broker creates or finds the cluster; the others then join in parallel."""
        first, *others = NODES
        self.start(first)
        with ThreadPoolExecutor(len(others)) as starting:
            list(starting.map(self.start, others))

    def kill(self, *nodes: int) -> None:
        for node in nodes:
            self.brokers[node].kill()

    def delete(self, *nodes: int) -> None:
        for node in nodes:
            shutil.rmtree(self.directory(node))

    def close(self) -> None:
        for broker in self.brokers.values():
            if broker.process.poll() is None:
                broker.kill()

    def command(self, *words: str) -> str:
        """The stdout of `thermocline …`. Raises Failed on a non-zero exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "thermocline", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **self.keys.environment},
        )
        if done.returncode != 0:
            raise Failed(f"thermocline {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def controller(self) -> int:
        return int(self._status()["controller"])

    def leaders_of(self, topic: str) -> list[dict[str, int]]:
        found = [one for broker in self.brokers.values() for one in broker.partitions() if one["topic"] == topic]
        return [one for one in found if one["leader"] >= 0]

    def is_whole(self, node: int = NODES[0]) -> bool:
        """Whether three brokers are active and each partition has a leader and all replicas in sync, by this
        broker's image.
        """
        status = self._status(node)
        return sum(broker["active"] for broker in status["brokers"]) == len(NODES) and all(
            one["leader"] is not None and set(one["in_sync"]) == set(one["replicas"]) and not one["starting"]
            for one in status["partitions"]
        )

    def wait(self, happened: Callable[[], bool], what: str, watch: Callable[[], None] = lambda: None) -> None:
        """Raises Failed after a minute."""
        deadline = time.monotonic() + _WAIT_S
        while not happened():
            if time.monotonic() > deadline:
                raise Failed(f"{what}: not within {_WAIT_S:.0f} s")
            watch()
            time.sleep(_POLL_S)

    def _status(self, first: int = NODES[0]) -> Any:
        for node in sorted(NODES, key=lambda node: node != first):
            try:
                return json.loads(get(self.brokers[node].http, "/cluster"))
            except HttpRefused:  # dead, or not serving yet
                continue
        raise Failed("no broker answered a request for the state of the cluster")
