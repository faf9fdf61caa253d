"""Three real brokers, and how long nobody leads when one of them ends: a stock client's gap, and a whole node's share.

    bench/failover.py                      all rows; writes its section of bench/RESULTS.md
    bench/failover.py --only many-put      one row; its line is replaced (--dry: nothing is written)
    bench/failover.py --only leader --kills 3    a look; nothing is written below 20 kills

A gap is the longest time between two acknowledgements of one producer (confluent-kafka, acks=all, idempotent, back-off
100 ms, a record each 5 ms) around the kill: what clients wait. Default settings, directory bucket, RF 3, min 2;
`many-put` has versitygw behind a proxy that lets each PUT take 100 ms longer.
librdkafka asks once a second who leads what a broker led that is down, so kills are spread over that second. From 2.10
on it needs two answers: the first has the new leader and no dead broker, and with that broker it drops the leader too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.many import BENCH, Figures, Wire, replace_section
from broker.wire.apis import ApiKey
from broker.wire.messages import ListOffsetsRequest, ListOffsetsRequestPartition, ListOffsetsRequestTopic
from tests.support.processes.broker_process import BrokerProcess, start_broker
from tests.support.store.s3_servers import Fault, store_proxy, versitygw_server

SECTION: Final = "## Failover"
NODES: Final = (1, 2, 3)
READY_S: Final = 60.0
KILLS: Final = 20
PARTITIONS: Final = 1_000
PUT_S: Final = 0.1
TOPIC_PARTITIONS: Final = 200
STOPPED_S: Final = 25.0
"""Beyond every time-out; an ack after it comes of the stopped one."""
REQUEST_S: Final = 3
"""What the client waits for an answer while a leader is stopped: nobody can answer in its place, and its kernel keeps
the connection. By default librdkafka waits 60 s (`socket.timeout.ms`), Kafka's own clients 30 s; and once more where it
is the stopped broker that it asks next who leads (seen with 10 s: 11.2 s and 21.7 s)."""
_ENDED: Final = re.compile("session ended and others lead")


class Brokers:
    """Three of one cluster, by node id."""

    def __init__(self, root: Path, bucket: str | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._bucket = bucket or f"file://{root}/bucket"
        self._environment = environment
        self._ports: dict[int, str] = {}
        self.running: dict[int, BrokerProcess] = {}
        for node_id in NODES:
            self.start(node_id)
        self.settled()

    def start(self, node_id: int) -> None:
        """On its directory and, from the second time on, its port."""
        self.running[node_id] = broker = start_broker(
            self._root / str(node_id),
            self._bucket,
            "--node-id",
            str(node_id),
            environment=self._environment,
            listen=self._ports.get(node_id, "127.0.0.1:0"),
        )
        self._ports[node_id] = broker.kafka

    @property
    def address(self) -> str:
        return ",".join(self._ports.values())

    def admin(self) -> AdminClient:
        """A fresh one: one that met a dead broker backs off."""
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def controller(self) -> int:
        client = self.admin()  # its futures die with it
        return int(client.describe_cluster().result(10).controller.id)

    def settled(self) -> None:
        """Until every broker is there and every replica in sync."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                found = self.admin().list_topics(timeout=5)
                partitions = [one for topic in found.topics.values() for one in topic.partitions.values()]
                if len(found.brokers) == len(NODES) and all(len(one.isrs) == len(one.replicas) for one in partitions):
                    return
            except KafkaException:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError("the cluster did not settle")
            time.sleep(0.2)

    def topic(self, name: str, assignment: list[list[int]]) -> None:
        new = NewTopic(name, len(assignment), replica_assignment=assignment, config={"min.insync.replicas": "2"})
        client = self.admin()
        client.create_topics([new])[name].result(60)
        self.settled()

    def delete(self, *names: str) -> None:
        client = self.admin()
        for future in client.delete_topics(list(names)).values():
            future.result(60)

    def end(self) -> None:
        for broker in self.running.values():
            if broker.process.poll() is None:
                broker.kill()


class Acks:
    """When a producer's records were acknowledged; it runs for the length of the block."""

    def __init__(self, address: str, topic: str, settings: Mapping[str, int]) -> None:
        self._times: list[float] = []
        self._topic = topic
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "log_level": 0,
                "enable.idempotence": True,
                "retry.backoff.ms": 100,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 100,
                "reconnect.backoff.max.ms": 100,
                "linger.ms": 0,
                **settings,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def _acked(self, error: object, _: object) -> None:
        if error is None:
            self._times.append(time.monotonic())

    def _run(self) -> None:
        while not self._over.is_set():
            self._producer.produce(self._topic, b"x" * 100, on_delivery=self._acked)
            self._producer.poll(0.005)
        self._producer.flush(READY_S)

    def __enter__(self) -> Acks:
        self._thread.start()
        self.after(time.monotonic())
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def after(self, moment: float) -> None:
        """Until a record was acknowledged after `moment`, and half a second more of them."""
        deadline = time.monotonic() + READY_S
        while not (self._times and self._times[-1] > moment + 0.5):
            if time.monotonic() > deadline:
                raise RuntimeError("nothing is acknowledged any more")
            time.sleep(0.01)

    def gap_s(self, since: float) -> float:
        """The longest time without one, from the last one before `since` on."""
        times = [at for at in self._times if at >= since]
        before = [at for at in self._times if at < since][-1:]
        both = before + times
        return max((later - earlier for earlier, later in pairwise(both)), default=0.0)


def gaps(
    brokers: Brokers, kills: int, end: Callable[[Brokers, int], None], *, controller: bool, **settings: int
) -> list[float]:
    """Of so many ends of a leader that is, or is not, the controller; `settings` of the producer."""
    found = []
    for number in range(kills):
        decides = brokers.controller()
        leader = decides if controller else next(node_id for node_id in NODES if node_id != decides)
        others = [node_id for node_id in NODES if node_id != leader]
        topic = f"gap-{time.monotonic_ns()}"
        brokers.topic(topic, [[leader, *others]])
        with Acks(brokers.address, topic, settings) as acks:
            time.sleep((number + 0.5) / kills)
            began = time.monotonic()
            end(brokers, leader)
            # A gap is over when half a second of acks followed it: nothing in flight at the end counts as one.
            wait_s = time.monotonic() + READY_S
            while acks.gap_s(began) < 0.5 and time.monotonic() < wait_s:
                time.sleep(0.05)
            acks.after(time.monotonic())
        found.append(acks.gap_s(began))
        print(f"  {number + 1}: {found[-1]:.2f} s", flush=True)
        if brokers.running[leader].process.poll() is not None:
            brokers.start(leader)
        brokers.settled()
        brokers.delete(topic)
    return found


def killed(brokers: Brokers, node_id: int) -> None:
    brokers.running[node_id].kill()


def stopped(brokers: Brokers, node_id: int) -> None:
    """SIGSTOP; it goes on later."""
    pid = brokers.running[node_id].pid
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(STOPPED_S, os.kill, (pid, signal.SIGCONT)).start()


def all_served(addresses: list[str], topics: list[str]) -> None:
    """Until for each partition of these topics one of the brokers tells its end. Brokers are asked themselves: a client
    keeps what it was told of a topic that a broker did not know yet, and waits 5 s for a dead one."""
    deadline = time.monotonic() + READY_S
    left = {(topic, index) for topic in topics for index in range(TOPIC_PARTITIONS)}
    wires = [Wire(address) for address in addresses]
    while left:
        for wire in wires:
            left -= {
                (topic.name, one.partition_index)
                for topic in wire.call(ApiKey.LIST_OFFSETS, 7, _ends(left)).topics
                for one in topic.partitions
                if one.error_code == 0
            }
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(left)} partitions are not served")
        time.sleep(0.01)
    for wire in wires:
        wire.socket.close()


def _ends(left: set[tuple[str, int]]) -> ListOffsetsRequest:
    topics: dict[str, list[ListOffsetsRequestPartition]] = {}
    for topic, index in left:
        topics.setdefault(topic, []).append(ListOffsetsRequestPartition(partition_index=index, timestamp=-1))
    return ListOffsetsRequest(topics=[ListOffsetsRequestTopic(name=name, partitions=of) for name, of in topics.items()])


def served_s(brokers: Brokers) -> tuple[float, float]:
    """From the moment that the controller told that a dead broker's session ended (its commit stands), and from the
    kill, until every partition that it led is served by another one: its end is told."""
    decides = brokers.controller()
    dead = next(node_id for node_id in NODES if node_id != decides)
    others = [node_id for node_id in NODES if node_id != dead]
    topics = [f"many-{time.monotonic_ns()}-{number}" for number in range(PARTITIONS // TOPIC_PARTITIONS)]
    for topic in topics:
        brokers.topic(topic, [[dead, *others]] * TOPIC_PARTITIONS)
    all_served([brokers.running[dead].kafka], topics)  # its creation is over: roots and reservations are there
    time.sleep(2)  # and followers were told of them
    log = brokers.running[decides]
    had = len(_ENDED.findall(log.log()))
    brokers.running[dead].kill()
    killed_s = time.monotonic()
    deadline = killed_s + READY_S
    while len(_ENDED.findall(log.log())) == had:
        if time.monotonic() > deadline:
            raise RuntimeError("the session of the dead broker did not end")
        time.sleep(0.005)
    began = time.monotonic()
    all_served([brokers.running[node_id].kafka for node_id in others], topics)
    over = time.monotonic()
    brokers.start(dead)
    brokers.settled()
    brokers.delete(*topics)
    return over - began, over - killed_s


@contextmanager
def cluster(bucket: str | None = None, environment: Mapping[str, str] | None = None) -> Iterator[Brokers]:
    """Three brokers that are there; on a directory bucket of their own, where no other is named."""
    root = Path(tempfile.mkdtemp(prefix="thermocline-failover-"))
    brokers = None
    try:
        brokers = Brokers(root, bucket, environment)
        yield brokers
    finally:
        if brokers is not None:
            brokers.end()
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def slow_puts() -> Iterator[Brokers]:
    """Three brokers on S3 whose every PUT takes PUT_S longer; what they make first, topics too, takes that as well."""
    with versitygw_server() as server, store_proxy(server) as proxy:
        url = proxy.bucket_url("failover")
        proxy.faults(Fault("slow", method="PUT", seconds=PUT_S))
        with cluster(url, server.environment()) as brokers:
            yield brokers


def shown(found: Sequence[float]) -> str:
    return f"p50 {statistics.median(found):.2f} s, most {max(found):.2f} s of {len(found)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("leader", "controller", "stopped", "many", "many-put"))
    parser.add_argument(
        "--kills", type=int, default=KILLS, help="of leaders; half as many controllers, a fourth stopped"
    )
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    kills, figures = options.kills, Figures()

    def row(
        name: str,
        what: str,
        bound: str,
        measure: Callable[[Brokers], str],
        place: Callable[[], AbstractContextManager[Brokers]] = cluster,
    ) -> None:
        if options.only in (None, name):
            print(what, flush=True)
            with place() as brokers:
                figures.add(what, measure(brokers), bound)

    def many(brokers: Brokers) -> str:
        since_ended, since_killed = zip(*(served_s(brokers) for _ in range(3)), strict=True)
        return f"{shown(since_ended)}; since kill -9 most {max(since_killed):.2f} s"

    row(
        "leader",
        "kill -9 of a leader that is not the controller: last ack → first ack",
        "p50 ≤ 3 s, p99 ≤ 5 s",
        lambda brokers: shown(gaps(brokers, kills, killed, controller=False)),
    )
    row(
        "controller",
        "kill -9 of the leader that is the controller: last ack → first ack",
        "≤ 6 s",
        lambda brokers: shown(gaps(brokers, max(kills // 2, 1), killed, controller=True)),
    )
    row(
        "stopped",
        f"SIGSTOP of a leader, socket.timeout.ms={REQUEST_S * 1000}: last ack → first ack",
        "≤ 13 s",
        lambda brokers: shown(
            gaps(brokers, max(kills // 4, 1), stopped, controller=False, **{"socket.timeout.ms": REQUEST_S * 1000})
        ),
    )
    served = f"{PARTITIONS:,} partitions of a dead broker: session ended → all served"
    row("many", served, "≤ 1 s", many)
    row("many-put", f"{served}; S3, each PUT {PUT_S * 1000:.0f} ms longer", "≤ 1.5 s", many, slow_puts)
    if not options.dry and (kills >= KILLS or (options.only or "").startswith("many")):
        write(figures)


def write(figures: Figures) -> None:
    """Put these lines into our section of bench/RESULTS.md, each where one says the same, else at its end."""
    path, head = BENCH / "RESULTS.md", "| what | figure | bound |"
    before = path.read_text().partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    lines = [line for line in before.partition(f"{head}\n|---|---|---|\n")[2].splitlines() if line.startswith("| ")]
    kept = {line.split(" | ")[0]: line for line in lines}
    kept |= {f"| {what}": f"| {what} | {figure} | {bound} |" for what, figure, bound in figures.rows}
    text = [SECTION, "", f"`bench/failover.py`, {time.strftime('%Y-%m-%d')}; three brokers, default settings,"]
    text += ["directory bucket where a line does not say else.", "", head, "|---|---|---|", *kept.values()]
    replace_section(path, SECTION, "\n".join(text))


if __name__ == "__main__":
    main()
