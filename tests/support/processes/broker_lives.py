"""Brokers for an application that outlives them: one, or three, at addresses that stay.

Owns the processes. Always true: `bootstrap` names all of them, whether they run or not; each is killed at the end.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.processes.broker_process import BrokerProcess, start_broker
from tests.support.processes.ports import quiet_port
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import DirectoryBucket

COMPACTING: Final[Mapping[str, object]] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "log.cleaner.backoff.ms": 200,
    "offsets.topic.num.partitions": 1,
    "log.cleaner.min.cleanable.ratio": 0.01,
}
"""A log is cleaned whenever it has sealed a segment."""
_PASS: Final = re.compile(r"(\S+): cleaned \[(\d+), (\d+)\): (\d+) bytes in \d+ segments became (\d+) bytes")


@dataclass(frozen=True, slots=True)
class CleanerPass:
    """A line of a broker's log."""

    partition: str
    end: int
    read_bytes: int
    written_bytes: int


def passes(log: str) -> list[CleanerPass]:
    """Of the cleaner, in all lives that wrote `log`."""
    found = _PASS.findall(log)
    return [CleanerPass(name, int(end), int(read), int(written)) for name, _, end, read, written in found]


class OneBroker:
    """On local disk."""

    replicas = 1

    def __init__(self, data_dir: Path, settings: Mapping[str, object]) -> None:
        self.data_dir = data_dir
        self._settings = settings
        self._port = quiet_port()
        self.broker = self._start()

    def _start(self) -> BrokerProcess:
        return start_broker(self.data_dir, settings=self._settings, listen=self.bootstrap)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def crash(self) -> None:
        """kill -9, and its next life."""
        self.broker.kill()
        self.broker = self._start()

    def log(self) -> str:
        return self.broker.log()


class ThreeBrokers:
    """On local disk and a bucket in a directory."""

    replicas = 3

    def __init__(self, cluster: Three) -> None:
        self._cluster = cluster
        self.bootstrap = cluster.everywhere

    def crash(self) -> None:
        """kill -9 the broker that decides, until another one does; then its next life."""
        node_id = self._cluster.controller()
        self._cluster.kill(node_id)
        alive = self._cluster.alive()
        self._cluster.wait(lambda: self._cluster.controller() in alive, "another broker decides")
        self._cluster.start(node_id)

    def log(self) -> str:
        return self._cluster.logs(1_000_000)


@contextlib.contextmanager
def brokers(
    folder: Path, count: int, settings: Mapping[str, object] | None = None, *, scheme: str = ""
) -> Iterator[OneBroker | ThreeBrokers]:
    """One or three, `COMPACTING` and with these settings. `scheme`: of the clients' listener of three, as `SSL://`."""
    wanted = {**COMPACTING, **(settings or {})}
    if count == 1:
        one = OneBroker(folder / "one", wanted)
        try:
            yield one
        finally:
            one.broker.kill()
    else:
        site = Site(folder, DirectoryBucket(folder / "bucket"))
        site.settings.update(wanted)
        with three(site, scheme=scheme) as cluster:
            yield ThreeBrokers(cluster)
