"""`serve --read-only` as a process beside the cluster whose bucket it reads: stock clients, their groups, what they may
not do, and what it does to the bucket: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError as PyKafkaError

from tests.support.clients.committing import POLL_MS
from tests.support.clients.stock_clients import (
    Written,
    create_topic,
    digest,
    read_aiokafka,
    read_confluent,
    read_kafka_python,
    write_confluent,
)
from tests.support.kafka.kafka_console import kafka_console
from tests.support.kafka.kafka_tools import require_kafka
from tests.support.processes.broker_process import BrokerProcess, running_broker
from tests.support.processes.site import Site, json_lines, seal
from tests.support.store.buckets import DirectoryBucket
from tests.support.store.s3_servers import find_versitygw, moto_server, store_proxy, versitygw_reader, versitygw_server
from tests.support.waiting import wait_until

TOPIC = "events"
COUNT = 600
FAST_S = 20.0  # clients that try again give up after 60 s or more
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def some(mark: str, count: int = COUNT) -> list[Written]:
    return [Written(f"k{n % 7}".encode(), f"{mark} {n} ".encode() + bytes(200)) for n in range(count)]


def begin(owner: BrokerProcess) -> None:
    """Two partitions in several segments, all of them in the bucket."""
    create_topic(owner.kafka, TOPIC, partitions=2, internal_segment_bytes=40_000, local_retention_bytes=1)
    for partition in (0, 1):
        write_confluent(owner.kafka, TOPIC, partition, some(f"p{partition}"), "zstd", True)
    seal(owner)


@contextlib.contextmanager
def reading(site: Site, bucket_url: str | None = None) -> Iterator[BrokerProcess]:
    with site.broker("reader", "--read-only", bucket_url=bucket_url) as reader:
        assert reader.ready["mode"] == "read-only"
        yield reader


def tree(path: Path) -> dict[str, tuple[int, int]]:
    """Every file and directory, with size and time of the last change."""
    return {str(found): ((at := found.stat()).st_size, at.st_mtime_ns) for found in path.rglob("*")}


def about(reader: BrokerProcess) -> dict:
    with urllib.request.urlopen(f"http://{reader.http}/broker", timeout=10) as answer:
        return json.load(answer)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_clients_read_what_the_owner_wrote(directory_site: Site) -> None:
    """Three libraries, every byte, while the owner lives, and after kill -9; new segments are followed; the bucket is
    as it was."""
    ends = {0: COUNT, 1: COUNT}
    with directory_site.broker("owner") as owner:
        begin(owner)
        expected = digest(read_confluent(owner.kafka, TOPIC, ends))
        with reading(directory_site) as reader:
            for read in (read_confluent, read_kafka_python, read_aiokafka):
                assert digest(read(reader.kafka, TOPIC, ends)) == expected, read.__name__
            write_confluent(owner.kafka, TOPIC, 0, some("later", 50), "none", True)
            seal(owner)
            more = {0: COUNT + 50, 1: COUNT}
            later = digest(read_confluent(owner.kafka, TOPIC, more))
            assert digest(read_kafka_python(reader.kafka, TOPIC, more)) == later
            owner.kill()
            before = tree(directory_site.bucket.path)  # type: ignore[attr-defined]
            assert digest(read_aiokafka(reader.kafka, TOPIC, more)) == later
            assert reader.stop() == 0
            assert tree(directory_site.bucket.path) == before  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, str]:
    """A bucket whose owner was killed, and the digest of what it wrote."""
    path = tmp_path_factory.mktemp("left")
    site = Site(path, DirectoryBucket(path / "bucket"))
    with site.broker("owner") as owner:
        begin(owner)
        expected = digest(read_confluent(owner.kafka, TOPIC, {0: COUNT, 1: COUNT}))
        owner.kill()
    return site, expected


@needs_root
def test_a_bucket_that_nobody_may_write_to_is_enough(left: tuple[Site, str], tmp_path: Path) -> None:
    """A directory mounted read-only: the kernel refuses what no check of ours would have seen."""
    site, expected = left
    place = tmp_path / "mounted"
    place.mkdir()
    path = str(site.bucket.path)  # type: ignore[attr-defined]
    subprocess.run(["mount", "--bind", path, str(place)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        with pytest.raises(OSError):
            (place / "x").write_text("no")
        with reading(site, f"file://{place}") as reader:
            assert digest(read_confluent(reader.kafka, TOPIC, {0: COUNT, 1: COUNT})) == expected
            assert about(reader)["conditions"] == []
            assert reader.stop() == 0
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_groups_go_on_in_memory(left: tuple[Site, str]) -> None:
    """A consumer of a group commits, those of two other libraries go on behind that; a restart forgets it, and says so
    at its start."""
    site, _ = left
    with reading(site) as reader:
        first = _group_of_confluent(reader.kafka, 100)
        second = _group_of_kafka_python(reader.kafka, 100)
        third = _group_of_aiokafka(reader.kafka, 100)
        assert len(first & second) == len(first & third) == len(second & third) == 0
        assert len(first | second | third) >= 300
        reader.stop()
    assert "positions of groups are kept in memory, and lost when this process ends" in reader.log()
    with reading(site) as reader:
        assert 0 in {offset for _, offset in _group_of_confluent(reader.kafka, 100)}, "it begins again"


def _group_of_confluent(bootstrap: str, count: int) -> set[tuple[int, int]]:
    """The next records of the group, of partition 0, committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
                         "enable.auto.commit": False, "session.timeout.ms": 6000})  # fmt: skip
    consumer.subscribe([TOPIC])
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(found), timeout=1.0):
            assert message.error() is None, message.error()
            found.append((message.partition(), message.offset()))
        if found:
            consumer.commit(asynchronous=False)
    consumer.close()
    return set(found)


def _group_of_kafka_python(bootstrap: str, count: int) -> set[tuple[int, int]]:
    consumer = KafkaConsumer(TOPIC, bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest",
                             enable_auto_commit=False, max_poll_records=count)  # fmt: skip
    found: set[tuple[int, int]] = set()
    deadline = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline:
        for messages in consumer.poll(timeout_ms=POLL_MS).values():
            found |= {(message.partition, message.offset) for message in messages}
        consumer.commit()
    consumer.close()
    return found


def _group_of_aiokafka(bootstrap: str, count: int) -> set[tuple[int, int]]:
    async def run() -> set[tuple[int, int]]:
        consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=bootstrap, group_id="g", auto_offset_reset="earliest",
                                    enable_auto_commit=False)  # fmt: skip
        await consumer.start()
        found: set[tuple[int, int]] = set()
        async with asyncio.timeout(30):
            while len(found) < count:
                messages = await consumer.getmany(timeout_ms=500, max_records=count)
                found |= {(one.partition, one.offset) for some in messages.values() for one in some}
                await consumer.commit()
        await consumer.stop()
        return found

    return asyncio.run(run())


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _confluent(bootstrap: str, idempotent: bool) -> str:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": idempotent})
    told: list[KafkaError] = []
    try:
        producer.produce(TOPIC, b"no", on_delivery=lambda error, _: None if idempotent else told.append(error))
        producer.flush(30)
    except KafkaException as fatal:
        return str(fatal.args[0].name())
    return str(told[0].name())


def _kafka_python(bootstrap: str, idempotent: bool) -> str:
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=idempotent)
    try:
        with pytest.raises(PyKafkaError) as refused:
            producer.send(TOPIC, b"no").get(30)
    finally:
        producer.close(1)
    return str(refused.value)


def _aiokafka(bootstrap: str, idempotent: bool) -> str:
    async def run() -> str:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=idempotent)
        try:
            async with asyncio.timeout(30):
                await producer.start()
                await producer.send_and_wait(TOPIC, b"no")
        except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError) as refused:
            return type(refused).__name__
        finally:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(producer.stop(), 5)
        return "written"

    return asyncio.run(run())


def test_what_writes_is_refused_at_once_and_in_words(left: tuple[Site, str]) -> None:
    """Producers of three libraries, with and without idempotence, fail within seconds by an error of authorization; so
    do topics, with a sentence; status commands say what it is."""
    site, _ = left
    with reading(site) as reader:
        clients: tuple[Callable[[str, bool], str], ...] = (_confluent, _kafka_python, _aiokafka)
        for write in clients:
            for idempotent in (False, True):
                began_s = time.monotonic()
                told = write(reader.kafka, idempotent).replace("_", "").lower()
                what = "cluster" if idempotent else "topic"
                assert f"{what}authorizationfailed" in told, (write.__name__, idempotent, told)
                assert time.monotonic() - began_s < FAST_S, write.__name__
        admin = AdminClient({"bootstrap.servers": reader.kafka})
        (made,) = admin.create_topics([NewTopic("new", 1, 1)]).values()
        with pytest.raises(KafkaException, match="serve --read-only"):
            made.result(10)
        tier = site.cli("tier", "status", "-b", reader.kafka)
        assert tier.returncode == 0 and "read-only for" in tier.stdout, tier
        cluster = site.cli("cluster", "status", "-b", reader.kafka)
        assert cluster.returncode == 0 and "read only" in cluster.stdout, cluster
        assert "positions of groups are in memory only" in cluster.stdout
        rows = json_lines(site.cli("tier", "status", "--json", "-b", reader.kafka).stdout)
        assert [(row["remote_end_offset"], row["high_watermark"]) for row in rows] == [(COUNT, COUNT)] * 2
        assert reader.stop() == 0


# ── an object store ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.peer
@pytest.mark.skipif(find_versitygw() is None, reason="versitygw is missing; run tests/support/store/get_versitygw.sh")
def test_a_user_who_may_only_read_is_enough(tmp_path: Path) -> None:
    """versitygw refuses the user every write: a broker of the cluster cannot start as that user, a read-only one
    serves."""
    users = tmp_path / "users"
    users.mkdir()
    with versitygw_server(users=str(users)) as server:
        url = server.bucket_url("theirs", "log")
        theirs, mine = server.environment(), versitygw_reader(server, "theirs")
        with running_broker(tmp_path / "owner", url, environment=theirs) as owner:
            begin(owner)
            expected = digest(read_confluent(owner.kafka, TOPIC, {0: COUNT, 1: COUNT}))
        with running_broker(tmp_path / "other", url, environment=mine, wait_ready=False) as other:
            assert other.wait() == 3, "who may only read cannot be a broker of the cluster"
            assert "AccessDenied" in other.log()
        with running_broker(tmp_path / "reader", url, "--read-only", environment=mine) as reader:
            for read in (read_confluent, read_kafka_python, read_aiokafka):
                assert digest(read(reader.kafka, TOPIC, {0: COUNT, 1: COUNT})) == expected, read.__name__
            assert about(reader)["conditions"] == []
            assert reader.stop() == 0
        assert "AccessDenied" not in reader.log()


@pytest.mark.peer
def test_javas_clients_read_and_are_refused(left: tuple[Site, str], tmp_path: Path) -> None:
    """Kafka 4.3.1's console consumer, alone and as a group; a producer of each kind ends in seconds, and says why."""
    require_kafka()
    site, _ = left
    with reading(site) as reader, kafka_console(tmp_path) as java:
        for more in ((), ("--group", "g")):
            at = ("--bootstrap-server", reader.kafka, "--topic", TOPIC, "--from-beginning", *more)
            limits = ("--max-messages", str(2 * COUNT), "--timeout-ms", "60000")
            said = java.run("org.apache.kafka.tools.consumer.ConsoleConsumer", *at, *limits)
            assert said.code == 0 and len(said.out.splitlines()) == 2 * COUNT, said
        described = ("--bootstrap-server", reader.kafka, "--describe", "--group", "g")
        groups = java.run("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *described)
        found = [line.split()[3:6] for line in groups.out.splitlines() if TOPIC in line]
        assert found == [[str(COUNT), str(COUNT), "0"]] * 2, groups
        for idempotent, what in (("true", "ClusterAuthorization"), ("false", "TopicAuthorization")):
            began_s = time.monotonic()
            said = java.run(
                *("org.apache.kafka.tools.ProducerPerformance", "--topic", TOPIC, "--num-records", "1"),
                *("--record-size", "10", "--throughput", "-1", "--bootstrap-server", reader.kafka),
                *("--command-property", f"enable.idempotence={idempotent}"),
            )
            assert f"{what}Exception" in said.out + said.err, said
            assert time.monotonic() - began_s < FAST_S
        assert reader.stop() == 0


@pytest.mark.slow
def test_an_object_store_is_asked_for_nothing_but_reads(tmp_path: Path) -> None:
    """Every request of a read-only broker as a proxy saw it, refused writes among its clients'."""
    with moto_server() as server:
        url = server.bucket_url("theirs", "log")
        site_settings = {"thermocline.lease.ms": 1500, "thermocline.lease.interval.ms": 300}
        environment = server.environment()
        with running_broker(tmp_path / "owner", url, settings=site_settings, environment=environment) as owner:
            begin(owner)
            expected = digest(read_confluent(owner.kafka, TOPIC, {0: COUNT, 1: COUNT}))
            with store_proxy(server) as proxy:
                through = proxy.bucket_url("theirs", "log")
                with running_broker(tmp_path / "reader", through, "--read-only", environment=environment) as reader:
                    assert digest(read_confluent(reader.kafka, TOPIC, {0: COUNT, 1: COUNT})) == expected
                    assert "authorization" in _kafka_python(reader.kafka, False).lower()
                    wait_until(lambda: about(reader)["read_only"]["for_ms"] > 6000, "polled", 30)
                    assert reader.stop() == 0
                asked = [request for request in proxy.requests() if request.bucket == "theirs" and request.key]
                assert {request.method for request in asked} <= {"GET", "HEAD"}
                assert sum(request.status == 304 for request in asked) > 1, "polls are conditional"
                assert len(asked) >= 8
