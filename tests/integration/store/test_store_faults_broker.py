"""A broker whose store fails in every way it can (faults O1–O5; G1, G6, G7, G12, G13).

moto here; versitygw and LocalStack, the longer mixture and every rate in the tests marked `peer` and `slow`. What the
operations that a broker seldom sends do under each fault is in test_store_faults_operations.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.clients.stock_clients import (
    Written,
    commit_offset,
    committed_offset,
    create_topic,
    end_offsets,
    read_confluent,
    write_confluent,
)
from tests.support.processes.broker_process import BrokerProcess, await_ready
from tests.support.processes.fault_proxy_trial import BODY_KINDS, DRAINS_S, KINDS, SETTINGS, STEADY, Trial, mixed, pairs
from tests.support.processes.site import QUICK, Site, wait_copied, wait_snapshot
from tests.support.store.buckets import S3Bucket, Stores
from tests.support.store.s3_servers import Fault
from tests.support.waiting import wait_until

REFUSED_PER_S = 60.0  # what the store still sees when it refuses everything; without faults it is some 180
STRUCK_AT_START = 8
ROUNDS = 12  # more than one segment
NEVER_S = 600
ROUNDS_WITHIN_S = 60.0
SERVERS = (
    "moto",
    pytest.param("versitygw", marks=pytest.mark.peer),
    pytest.param("localstack", marks=pytest.mark.peer),
)


@pytest.fixture(params=SERVERS)
def s3_site(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[Site]:
    with stores.bucket(request.param, tmp_path, delay_ms=0) as bucket:
        yield Site(tmp_path, bucket, {**QUICK, **SETTINGS})


def operations_of(site: Site) -> tuple[str, ...]:
    """A store that refuses a wrong checksum is asked by HEAD what it holds; moto takes anything, and is read back."""
    probed = site.cli("bucket", "probe", site.bucket.url)
    return (*STEADY, "head") if "HEAD (" in probed.stdout else STEADY


def test_every_fault_on_every_operation(s3_site: Site) -> None:
    """Nothing acknowledged is lost, doubled or changed; no produce is refused; no storm of retries; all drains."""
    trial = Trial(s3_site)
    operations = operations_of(s3_site)
    with s3_site.broker() as broker:
        trial.prepare(broker)
        with trial.load(broker) as load:
            trial.calm(load, 2.0)
            began = time.monotonic()
            trial.strike(pairs(operations), 0.5, 40.0)
            trial.refuse_everything(load, 3.0)
            healed = trial.heal(load, began)
        trial.await_drained(broker, healed)
        trial.check_records(broker, load)
        assert broker.stop() == 0
    trial.check_bucket()
    print(trial.figures.printed(s3_site.bucket.url))
    assert trial.figures.refused_per_s <= REFUSED_PER_S


def test_neither_produce_nor_a_hot_read_waits_for_the_store(s3_site: Site) -> None:
    """Every request to the store fails in one way, in every way there is, at last by no answer at all, for longer than
    this test: whoever waited for one of them would wait for good. Records go in and out all the same, one after the
    other, segments roll, and the store is asked meanwhile."""
    bucket, topic = s3_site.bucket, "events"
    assert isinstance(bucket, S3Bucket)
    never = NEVER_S * 1000
    s3_site.settings |= {"thermocline.store.timeout.ms": never, "thermocline.store.upload.timeout.ms": never}
    silence = Fault("stall", seconds=NEVER_S)
    others = [kind for kind in (*KINDS, *BODY_KINDS) if kind.kind != silence.kind]
    with s3_site.broker() as broker:
        create_topic(broker.kafka, topic, internal_segment_bytes=8192)
        with OneByOne(broker.kafka, topic) as records:
            records.through(ROUNDS)
            for kind in others:
                before = bucket.proxy.counts().hits
                bucket.proxy.faults(kind)
                records.through(ROUNDS)
                wait_until(lambda: (bucket.proxy.counts().hits - before).total(), f"{kind.name} struck")  # noqa: B023
                records.through(ROUNDS)
            bucket.proxy.faults()
            wait_copied(broker, topic)
            bucket.proxy.faults(silence)
            records.through(ROUNDS)
            wait_until(lambda: bucket.proxy.counts().hits["put", silence.name], "a copy that gets no answer")
            records.through(ROUNDS)


class OneByOne:
    """One record at a time through a partition, written and read; use as a context manager."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "tail", "log_level": 0})
        self._next = 0

    def __enter__(self) -> OneByOne:
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        return self

    def __exit__(self, *_: object) -> None:
        self._producer.purge()
        self._consumer.close()

    def through(self, count: int) -> None:
        """So many, each acknowledged and read before the next is sent."""
        deadline = time.monotonic() + ROUNDS_WITHIN_S
        for _ in range(count):
            self._producer.produce(self._topic, b"%d " % self._next + bytes(900), partition=0)
            left = self._producer.flush(max(deadline - time.monotonic(), 0.0))
            assert left == 0, f"record {self._next} is not acknowledged"
            message = self._consumer.poll(max(deadline - time.monotonic(), 0.0))
            assert message is not None, f"record {self._next} is not read"
            assert message.error() is None, message.error()
            assert message.offset() == self._next
            self._next += 1


@pytest.mark.slow
def test_bursts_from_1_to_100_percent(s3_site: Site) -> None:
    """500, 503 and 409 at 1, 10, 50 and 100 %: produce goes on at each, and what the store sees grows with none."""
    trial = Trial(s3_site)
    with s3_site.broker() as broker:
        trial.prepare(broker)
        with trial.load(broker) as load:
            trial.calm(load, 3.0)
            began = time.monotonic()
            for rate in (0.01, 0.1, 0.5, 1.0):
                for code in (500, 503, 409):
                    trial.burst(load, code, rate, 3.0)
            healed = trial.heal(load, began)
        trial.await_drained(broker, healed)
        trial.check_records(broker, load)
        assert broker.stop() == 0
    trial.check_bucket()
    print(trial.figures.printed(s3_site.bucket.url))


@pytest.mark.slow
def test_faults_from_the_first_request_on(s3_site: Site) -> None:
    """A store that fails a fifth of what it is asked refuses no broker: it waits, says so, and comes up; again when
    there is something to recover."""
    proxy, topic, count = s3_site.bucket.proxy, "events", 100
    assert proxy is not None
    written = [Written(b"%d" % n, bytes((n + i) % 251 for i in range(1000))) for n in range(count)]
    before = proxy.counts().hits
    for life in range(2):
        proxy.faults(*mixed(pairs((*STEADY, "head", "get_whole")), 0.2))
        with s3_site.broker(wait_ready=False) as broker:
            struck = proxy.counts().hits.total()

            def struck_or_ended(struck: int = struck, broker: BrokerProcess = broker) -> bool:
                assert broker.process.poll() is None, broker.log()[-4000:]
                return proxy.counts().hits.total() - struck >= STRUCK_AT_START

            wait_until(struck_or_ended, "faults at the start", 60)
            proxy.faults()
            await_ready(broker, DRAINS_S)
            if life == 0:
                create_topic(broker.kafka, topic, internal_segment_bytes=65_536, local_retention_ms=1)
                write_confluent(broker.kafka, topic, 0, written[: count // 2], "none", True)
                commit_offset(broker.kafka, "readers", topic, 0, 7)
                wait_snapshot(s3_site.bucket, end_offsets(broker.kafka, "__consumer_offsets", 1)[0])
                broker.kill()
                continue
            write_confluent(broker.kafka, topic, 0, written[count // 2 :], "none", True)
            found = read_confluent(broker.kafka, topic, {0: count})
            assert [record.value for record in found] == [record.value for record in written]
            assert committed_offset(broker.kafka, "readers", topic, 0) == 7
            assert broker.stop() == 0
    hits = proxy.counts().hits - before
    print("struck at start:", dict(Counter(operation for operation, _ in hits.elements())))
    assert hits.total() >= 2 * STRUCK_AT_START
