"""Three brokers of a kind, started fresh: Apache Kafka (each also a controller), and ours over one directory bucket.
Each can be lost with its directory, and replaced.

Always true: a side's data lies in a directory of its own; broker i, modulo the number of brokers, leads partition i of
a topic made here, so that a load generator that goes to broker i with partition i meets its leader. Knows no load.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from bench.sides import BENCH, KAFKA, READY_S, Side, admin, wait_answering
from tests.support.processes.broker_process import BrokerProcess, start_broker
from tests.support.processes.ports import free_port_run

HEAP: Final = "-Xms512m -Xmx512m"  # a third of what the single peer gets, and more than Kafka needs here


@dataclass
class ClusterSide(Side):
    """Running brokers, in the order of their node ids from 1; `pid` and `port` are the first one's."""

    all_ports: tuple[int, ...] = ()
    all_pids: tuple[int, ...] = ()
    all_http: tuple[str, ...] = ()
    """Of ours."""
    lose: Callable[[int], None] = lambda _: None
    """kill -9 a broker, by its place, and delete its directory; Kafka's is formatted anew."""
    begin_anew: Callable[[int], None] = lambda _: None
    """Start it again, on that empty one."""

    @property
    def ports(self) -> tuple[int, ...]:
        return self.all_ports

    @property
    def pids(self) -> tuple[int, ...]:
        return self.all_pids


@contextmanager
def kafka_cluster(count: int = 3) -> Iterator[ClusterSide]:
    """A fresh Kafka of `count` brokers for the length of the block."""
    subprocess.run([KAFKA, "get"], check=True, stdout=subprocess.DEVNULL)
    root = Path(tempfile.mkdtemp(prefix="thermocline-bench-kafkas-"))
    first = free_port_run(2 * count)
    environment = {**os.environ, "KAFKA_PEER_RUN": str(root), "KAFKA_PEER_HEAP": HEAP}
    words = [KAFKA, "start", str(first), str(count)]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            raise RuntimeError(f"Kafka did not start: {done.stderr[-2000:]}")
        pids = tuple(map(int, done.stdout.split()))
        ports = tuple(first + 2 * number for number in range(count))
        side = ClusterSide("Kafka", first, pids[0], root=root, all_ports=ports, all_pids=pids)

        def lose(at: int) -> None:
            os.kill(side.all_pids[at], signal.SIGKILL)
            _wait_gone(side.all_pids[at])
            shutil.rmtree(_kafkas_data(root, at))
            properties = (_kafkas_data(root, 2 if at == 0 else 0) / "meta.properties").read_text()
            cluster_id = properties.partition("cluster.id=")[2].split()[0]
            configured = ["-t", cluster_id, "-c", f"{root}/server-{at + 1}.properties"]
            words = [KAFKA, "tool", "kafka.tools.StorageTool", "format", *configured]
            subprocess.run(words, check=True, capture_output=True, env=environment)

        def begin_anew(at: int) -> None:
            words = [KAFKA, "restart", str(at + 1)]
            done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
            side.all_pids = (*side.all_pids[:at], int(done.stdout), *side.all_pids[at + 1 :])

        side.lose, side.begin_anew = lose, begin_anew
        wait_cluster(side)
        yield side
    finally:
        subprocess.run([KAFKA, "stop"], check=False, env=environment, capture_output=True)
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def our_cluster(
    root: Path, name: str, count: int = 3, settings: Mapping[str, object] | None = None, python: str = sys.executable
) -> Iterator[ClusterSide]:
    """`count` fresh brokers of ours over one directory bucket for the length of the block, below `root`/`name`."""
    home = root / name
    code = {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(BENCH.parent)}
    common = {"log.retention.ms": -1, "group.initial.rebalance.delay.ms": 0, **(settings or {})}
    brokers: list[BrokerProcess] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)

        def start(node_id: int, listen: str = "127.0.0.1:0") -> BrokerProcess:
            words = (home / str(node_id), f"file://{home}/bucket", "--node-id", str(node_id))
            broker = start_broker(*words, settings=common, environment=code, python=python, listen=listen)
            stack.callback(broker.kill)
            return broker

        brokers += [start(node_id) for node_id in range(1, count + 1)]
        ports = tuple(int(broker.kafka.rsplit(":", 1)[1]) for broker in brokers)
        side = ClusterSide("Thermocline", ports[0], brokers[0].pid, http=brokers[0].http, root=home, all_ports=ports)

        def note() -> None:
            side.all_pids = tuple(broker.pid for broker in brokers)
            side.all_http = tuple(broker.http for broker in brokers)

        def lose(at: int) -> None:
            brokers[at].kill()
            shutil.rmtree(home / str(at + 1))

        def begin_anew(at: int) -> None:
            brokers[at] = start(at + 1, f"127.0.0.1:{ports[at]}")
            note()

        note()
        side.lose, side.begin_anew = lose, begin_anew
        wait_cluster(side)
        yield side


def _wait_gone(pid: int) -> None:
    deadline = time.monotonic() + READY_S
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {pid} does not end")
        time.sleep(0.05)


def _kafkas_data(root: Path, at: int) -> Path:
    return root / ("data" if at == 0 else f"data-{at + 1}")


def wait_cluster(side: Side) -> None:
    """Until all its brokers are in its metadata."""
    deadline = time.monotonic() + READY_S
    wait_answering(side)
    while len(admin(side).list_topics(timeout=5).brokers) < len(side.ports):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{side.name}: not all of {len(side.ports)} brokers came up")
        time.sleep(0.1)


def create_replicated(
    side: Side,
    topic: str,
    partitions: int,
    replicas: int,
    *,
    leader: int | None = None,
    holder: int | None = None,
    **configs: object,
) -> str:
    """An untiered topic that keeps everything; broker i leads partition i, the next ones follow it.

    `leader`: this one leads them all. `holder`: this one has a replica of each.
    """
    wanted: dict[str, object] = {"retention.ms": -1, "remote.storage.enable": "false"}
    wanted |= {name.replace("_", "."): value for name, value in configs.items()}
    if side.name == "Kafka":
        wanted |= {"file.delete.delay.ms": 100}
    count = len(side.ports)
    firsts = [index if leader is None else leader - 1 for index in range(partitions)]
    assigned = [_assigned(index, first, count, holder)[:replicas] for index, first in enumerate(firsts)]
    new = NewTopic(
        topic, partitions, replica_assignment=assigned, config={name: str(value) for name, value in wanted.items()}
    )
    client = admin(side)
    client.create_topics([new])[topic].result(30)
    side.topics.add(topic)
    time.sleep(3)  # every follower is in sync
    return topic


def _assigned(index: int, first: int, count: int, holder: int | None) -> list[int]:
    """The broker after `first` leads; then `holder`, then the others. What `holder` leads is held by each in turn."""
    followers = [(first + step) % count + 1 for step in range(1, count)]
    if holder is not None:
        turn = index // count % len(followers)
        followers = sorted(followers[turn:] + followers[:turn], key=lambda node: node != holder)
    return [first % count + 1, *followers]


def add_property(side: ClusterSide, at: int, line: str) -> None:
    """For Kafka's next start of that broker."""
    with (side.root / f"server-{at + 1}.properties").open("a") as file:
        file.write(f"{line}\n")
