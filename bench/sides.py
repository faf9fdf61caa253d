"""The brokers under test: Apache Kafka and ours, each started fresh, measured idle and ended by its own pid.

Always true: a side's data lies in a directory of its own, so that several runs on one machine do not meet. Knows no
load and no row of the table.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.support.processes.broker_process import BrokerProcess, start_broker
from tests.support.processes.ports import free_port_run

BENCH = Path(__file__).parent
KAFKA: Final = str(BENCH / "peers" / "kafka")
TICKS: Final = os.sysconf("SC_CLK_TCK")
READY_S: Final = 120.0


@dataclass
class Side:
    """One running broker. `started_s`: from its start (Kafka's format included) to its first answer."""

    name: str
    port: int
    pid: int
    tls_port: int = 0  # of a listener with TLS beside the plaintext one: loads go there
    started_s: float = 0.0
    http: str = ""
    root: Path = Path()  # its data lies below
    topics: set[str] = field(default_factory=set)

    @property
    def directories(self) -> list[Path]:
        """Where its log lies, both tiers; a bucket on S3 not."""
        return [self.root, Path(f"{self.root}-bucket")]

    @property
    def ports(self) -> tuple[int, ...]:
        """Of all its brokers."""
        return (self.port,)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of all its brokers."""
        return (self.pid,)

    @property
    def address(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def cpu_seconds(self) -> float:
        """User and system time of its processes so far."""
        return sum(map(cpu_seconds, self.pids))

    def rss_mb(self) -> float:
        """Resident memory now."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise RuntimeError("no VmRSS")

    def store_requests(self) -> dict[str, int]:
        """Billed requests of ours by operation, from /metrics."""
        prefix = 'thermocline_store_requests_total{operation="'
        return {
            line[len(prefix) :].split('"')[0]: int(float(line.rsplit(" ", 1)[1]))
            for line in metrics(self.http)
            if line.startswith(prefix)
        }


class KafkaPeer:
    """Apache Kafka with tiered storage on a local directory; its data under `root`."""

    def __init__(self, root: Path, settings: Mapping[str, object] | None = None, *, tls: bool = False) -> None:
        self.side = Side("Kafka", port := free_port_run(3), 0, root=root)
        told = dict(settings or {})
        if tls:
            self.side.tls_port = port + 2
            local = (f"PLAINTEXT://127.0.0.1:{port}", f"SSL://127.0.0.1:{port + 2}")
            told |= {
                "listeners": f"{local[0]},CONTROLLER://127.0.0.1:{port + 1},{local[1]}",
                "advertised.listeners": f"{local[1]},{local[0]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL",
                "inter.broker.listener.name": "PLAINTEXT",
            }
        lines = "\n".join(f"{name}={value}" for name, value in told.items())
        self._environment = {**os.environ, "KAFKA_PEER_RUN": str(root), "KAFKA_PEER_SETTINGS": lines}

    def start(self, command: str = "start") -> Side:
        """`start` afresh or `restart` over the same data; returns once it answers."""
        began = time.monotonic()
        words = [KAFKA, command, *([str(self.side.port)] if command == "start" else [])]
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=self._environment)
        self.side.pid = int(done.stdout)
        wait_answering(self.side)
        self.side.started_s = time.monotonic() - began
        return self.side

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        pid, self.side.pid = self.side.pid, 0  # the number may be somebody else's soon
        if not pid:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
            time.sleep(0.01)


class Thermocline:
    """A broker of ours; its data under `root`/`name`. `checkout`: whose code it runs, by default this one's."""

    def __init__(
        self,
        root: Path,
        name: str,
        bucket: str | None = None,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, object] | None = None,
        checkout: Path | None = None,
        python: str = sys.executable,
        listen: str | None = "127.0.0.1:0",
    ) -> None:
        self._listen = listen  # None: the settings say where
        self.data_dir = root / name
        self.side = Side(
            "Thermocline" if checkout is None else f"Thermocline of {checkout.name}", 0, 0, root=self.data_dir
        )
        self._bucket = bucket
        # Without the safe path Python would find the package in the current directory first.
        code = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str((checkout or BENCH.parent).resolve())}
        self._environment = {**(environment or {}), **code}
        self._python = python
        self._settings = {
            "log.retention.ms": -1,
            "log.retention.check.interval.ms": 1000,
            "group.initial.rebalance.delay.ms": 0,
            **(settings or {}),
        }
        self._broker: BrokerProcess | None = None

    def start(self) -> Side:
        """Start, or start again over the same data; returns once it answers."""
        began = time.monotonic()
        self._broker = start_broker(
            self.data_dir,
            self._bucket,
            settings=self._settings,
            environment=self._environment,
            python=self._python,
            listen=self._listen,
        )
        self.side.port = int(self._broker.kafka.rsplit(":", 1)[1])
        _, has_tls, tls = self._broker.ready.get("listeners", "").partition("SSL://")
        self.side.tls_port = int(tls.partition(",")[0].rsplit(":", 1)[1]) if has_tls else 0
        self.side.pid, self.side.http = self._broker.pid, self._broker.http
        wait_answering(self.side)
        self.side.started_s = time.monotonic() - began
        return self.side

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        if self._broker is not None:
            self._broker.kill()

    @contextmanager
    def running(self) -> Iterator[Side]:
        """The fresh broker for the length of the block; its data goes with it."""
        try:
            yield self.start()
        finally:
            self.kill()
            shutil.rmtree(self.data_dir, ignore_errors=True)


@contextmanager
def kafka_peer(settings: Mapping[str, object] | None = None, *, tls: bool = False) -> Iterator[Side]:
    """A fresh Kafka for the length of the block; `tls`: with a listener for it, too."""
    subprocess.run([KAFKA, "get"], check=True, stdout=subprocess.DEVNULL)
    root = Path(tempfile.mkdtemp(prefix="thermocline-bench-kafka-"))
    peer = KafkaPeer(root, settings, tls=tls)
    try:
        yield peer.start()
    finally:
        peer.kill()
        shutil.rmtree(root, ignore_errors=True)


def metrics(http: str) -> list[str]:
    """The lines that a broker of ours has at host:port `http`."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as answer:
        return answer.read().decode().splitlines()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_answering(side: Side) -> None:
    """Until the broker answers a metadata request; a fresh client a try, because a client backs off."""
    deadline = time.monotonic() + READY_S
    while True:
        try:
            admin(side).list_topics(timeout=0.3)
            return
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def admin(side: Side) -> AdminClient:
    return AdminClient({"bootstrap.servers": side.address, "log_level": 0})


def create(side: Side, topic: str, partitions: int, **configs: object) -> str:
    """Create a topic that keeps everything, untiered unless `configs` say else; returns once it can be written."""
    wanted: dict[str, object] = {"retention.ms": -1, "remote.storage.enable": "false"}
    wanted |= {name.replace("_", "."): value for name, value in configs.items()}
    if side.name == "Kafka":
        wanted |= {"file.delete.delay.ms": 100}  # its files go with the topic, not a minute later
    new = NewTopic(topic, partitions, 1, config={name: str(value) for name, value in wanted.items()})
    client = admin(side)  # its futures die with it
    client.create_topics([new])[topic].result(30)
    side.topics.add(topic)
    time.sleep(2)
    return topic


def delete(side: Side, topic: str) -> None:
    """Delete a topic, so that what it wrote does not fill the disk and the page cache."""
    client = admin(side)
    client.delete_topics([topic])[topic].result(30)
    side.topics.discard(topic)


def local_starts(side: Side, topic: str) -> list[int]:
    """First offset on local disk of each partition."""
    command = [sys.executable, "-m", "thermocline", "tier", "status", "-b", side.address, "--topic", topic, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(json.loads(line)["local_log_start_offset"]) for line in done.stdout.splitlines()]


def wait_cold(side: Side, topic: str, offset: int, timeout_s: float = 180.0) -> list[int]:
    """Until the local log of each partition starts at `offset` or above; where they start."""
    deadline = time.monotonic() + timeout_s
    while min(starts := local_starts(side, topic)) < offset:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.name}: {topic} did not sink to {offset}; local starts {starts}")
        time.sleep(0.5)
    return starts


class CalmMachine:
    """Before a measured run: what others left dirty goes to disk, and free memory is memory the machine really has.

    A disk that took much may be slow for a minute after, since the host writes on. A virtual machine whose host takes
    back free memory charges the first touch of each page to whoever writes next (measured here: 2.3 ms of CPU per MB of
    page cache instead of 0.25). That alone would be measured, on both sides. What was touched is safe for two seconds,
    and mostly for some more: so a turn begins its load at once after it settled.
    """

    BYTES: Final = 4 << 30  # more than most turns write
    CALM_S: Final = 0.003  # for one small fdatasync; a host that throttles a disk lets it wait for 4 or 8 ms
    CALM_SYNCS: Final = 100  # so many in a row
    CALM_WAIT_S: Final = 90.0
    MADV_HUGEPAGE: Final = 14
    MADV_POPULATE_WRITE: Final = 23

    def settle(self, nbytes: int = BYTES) -> None:
        """`nbytes`: what the run may write."""
        os.sync()
        self._wait_for_disk()
        count = min(nbytes, _available_bytes() // 2)  # the logs that a row reads stay in the page cache
        with mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(self.MADV_HUGEPAGE)
            memory.madvise(self.MADV_POPULATE_WRITE)

    def _wait_for_disk(self) -> None:
        """At most CALM_WAIT_S; then says so, for whoever reads the rows."""
        deadline, calm = time.monotonic() + self.CALM_WAIT_S, 0
        with tempfile.TemporaryFile() as file:
            while calm < self.CALM_SYNCS and time.monotonic() < deadline:
                began = time.monotonic()
                os.write(file.fileno(), bytes(4096))
                os.fdatasync(file.fileno())
                calm = calm + 1 if time.monotonic() - began < self.CALM_S else 0
        if calm < self.CALM_SYNCS:
            print(f"the disk did not calm down within {self.CALM_WAIT_S:.0f} s; what follows is measured all the same")


def _available_bytes() -> int:
    found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def read_through(directory: Path) -> None:
    """Read all files below it, so that the page cache has them whoever's turn it is."""
    for parent, _, names in os.walk(directory):  # it passes over a directory that is deleted meanwhile
        for name in names:
            with suppress(FileNotFoundError), open(f"{parent}/{name}", "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
