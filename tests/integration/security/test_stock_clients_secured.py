"""Every stock client on three brokers of `serve --secure`: over SASL_SSL, as a user who may do what its ACLs allow.

It writes, reads in a group and copies in transactions, while a broker is killed with -9 and started again: first the
leader of a partition under the writer, then the group's coordinator under the copy. What was acknowledged is there
once, and each record is once in a committed copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.support.clients.access import Access, Login
from tests.support.clients.lives.life_programs import PROGRAMS, LifeProcess, life
from tests.support.processes.site import Site
from tests.support.processes.three_brokers import Three, three
from tests.support.store.buckets import DirectoryBucket
from tests.support.waiting import wait_until

RECORDS = 400
PARTITIONS = 3
PASSWORD = "correct horse battery staple"
WITHOUT_TRANSACTIONS = {"kcat"}
OF_PYTHON = {"confluent-kafka", "kafka-python", "aiokafka", "kcat"}
_STEP_S = 120.0

pytestmark = [pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    directory = tmp_path_factory.mktemp("secured")
    site = Site(directory, DirectoryBucket(directory / "bucket"))
    site.settings |= {"default.replication.factor": 3, "min.insync.replicas": 2, "auto.create.topics.enable": "false"}
    with three(site, is_secured=True) as found:
        yield found


def user_of(cluster: Three, name: str, folder: Path) -> Access:
    """A user with what a life needs: its topics, its group, its transactional id."""
    admin = cluster.access.write_java(folder / "admin.properties")
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    allow = ("acl", "add", "--allow-principal", f"User:{name}")
    for words in (
        ("user", "add", name, "--password-file", str(password)),
        (*allow, "--producer", "--topic", name, "--topic", f"{name}-copy", "--transactional-id", name),
        (*allow, "--consumer", "--topic", name, "--group", f"{name}-group"),
    ):
        done = cluster.site.cli(*words, "-b", cluster.everywhere, "--command-config", str(admin))
        assert done.returncode == 0, done.stderr
    login = cluster.access.login
    assert login is not None
    return Access(cluster.everywhere, Login(name, PASSWORD, login.ca_file))


def values(cluster: Three, topic: str) -> list[int]:
    """All that read_committed shows up to the ends, as the first user reads them."""
    consumer = Consumer(
        {
            **cluster.access.confluent(),
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(PARTITIONS)])
    found: list[int] = []
    ends: set[int | None] = set()

    def read() -> bool:
        for message in consumer.consume(500, 0.5):
            error = message.error()
            if error is None:
                found.append(int(message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                ends.add(message.partition())
        return len(ends) == PARTITIONS

    with contextlib.closing(consumer):
        wait_until(read, f"the ends of {topic}", _STEP_S)
    return sorted(found)


def kill_and_start(cluster: Three, topic: str, partition: int) -> None:
    leader = cluster.rows(topic)[partition].leader
    cluster.kill(leader)
    cluster.wait(lambda: cluster.rows(topic)[partition].leader not in (-1, leader), "another leader", _STEP_S)
    cluster.start(leader)


def reach(cluster: Three, alive: LifeProcess, happened: Callable[[], bool], what: str) -> None:
    def checked() -> bool:
        alive.check()
        return happened()

    try:
        cluster.wait(checked, what, _STEP_S)
    except AssertionError as never:
        raise AssertionError(f"{never}\n--- client\n{alive.said()}") from None


@pytest.mark.parametrize(
    "client", [name if name in OF_PYTHON else pytest.param(name, marks=pytest.mark.peer) for name in sorted(PROGRAMS)]
)
def test_a_stock_client_loses_and_doubles_nothing(cluster: Three, tmp_path: Path, client: str) -> None:
    topic, copy = client, f"{client}-copy"
    for name in (topic, copy):
        cluster.create(name, PARTITIONS)
    cluster.wait(cluster.is_whole, "all replicas in sync", _STEP_S)
    access = user_of(cluster, client, tmp_path)
    work = tmp_path / "life"
    work.mkdir()
    second = "read" if client in WITHOUT_TRANSACTIONS else "copied"
    with life(client, work, access, topic, copy, f"{client}-group", client, RECORDS) as alive:
        first = "sent" if client in WITHOUT_TRANSACTIONS else "acked"
        reach(cluster, alive, lambda: len(alive.lines(first)) > RECORDS // 4, "a quarter is acknowledged")
        kill_and_start(cluster, topic, 0)
        reach(cluster, alive, lambda: alive.last(second) > RECORDS // 4, f"a quarter is {second}")
        cluster.wait(cluster.is_whole, "all replicas in sync", _STEP_S)
        kill_and_start(cluster, "__consumer_offsets", 0)
        reach(cluster, alive, lambda: alive.has_ended, "the end of the life")
        acknowledged = sorted(map(int, alive.lines("acked")))
    assert acknowledged == list(range(RECORDS))
    assert values(cluster, topic) == acknowledged, "none lost, none doubled"
    if client not in WITHOUT_TRANSACTIONS:
        # Markers follow the answer of a commit.
        cluster.wait(lambda: len(values(cluster, copy)) >= RECORDS, "the last commit is seen", _STEP_S)
        assert values(cluster, copy) == acknowledged, "each is once in a committed copy"
