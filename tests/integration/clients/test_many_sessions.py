"""Stock clients over fetch sessions: they use them where they know them, and lose nothing.

Sixty partitions, a few records each and then a few more while the consumer waits: with one incremental fetch for every
answer, whatever an answer leaves out must be what the client knows already. `/metrics` says who used a session.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PyTopicPartition

from tests.support.clients.stock_clients import create_topic
from tests.support.kafka.kafka_tools import kafka_tool, require_kafka
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.operations_kit import metrics_of
from tests.support.processes.site import Site
from tests.support.waiting import wait_until

PARTITIONS = 60
ROUNDS = 3
PER_ROUND = 20
COUNT = PARTITIONS * ROUNDS * PER_ROUND
READ_S = 60.0

Seen = list[tuple[int, int]]


def write(kafka: str, round_: int) -> None:
    producer = Producer({"bootstrap.servers": kafka, "acks": "all", "linger.ms": 1})
    for at in range(PER_ROUND):
        for partition in range(PARTITIONS):
            producer.produce("many", b"%d-%d" % (round_, at), partition=partition)
    assert producer.flush(60) == 0


def expected() -> Seen:
    return [(partition, offset) for partition in range(PARTITIONS) for offset in range(ROUNDS * PER_ROUND)]


def read_kafka_python(kafka: str, arrived: Callable[[int], None]) -> Seen:
    consumer = KafkaConsumer(bootstrap_servers=kafka, enable_auto_commit=False, auto_offset_reset="earliest")
    consumer.assign([PyTopicPartition("many", partition) for partition in range(PARTITIONS)])
    seen: Seen = []
    try:
        while len(seen) < COUNT:
            for messages in consumer.poll(timeout_ms=500, max_records=700).values():
                seen += [(message.partition, message.offset) for message in messages]
            arrived(len(seen))
    finally:
        consumer.close()
    return seen


def read_confluent(kafka: str, arrived: Callable[[int], None]) -> Seen:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition("many", partition, 0) for partition in range(PARTITIONS)])
    seen: Seen = []
    try:
        while len(seen) < COUNT:
            for message in consumer.consume(700, timeout=0.5):
                assert message.error() is None
                seen.append((message.partition(), message.offset()))
            arrived(len(seen))
    finally:
        consumer.close()
    return seen


def read_aiokafka(kafka: str, arrived: Callable[[int], None]) -> Seen:
    async def run() -> Seen:
        consumer = AIOKafkaConsumer(bootstrap_servers=kafka, enable_auto_commit=False, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([AioTopicPartition("many", partition) for partition in range(PARTITIONS)])
        seen: Seen = []
        try:
            while len(seen) < COUNT:
                for messages in (await consumer.getmany(timeout_ms=500, max_records=700)).values():
                    seen += [(message.partition, message.offset) for message in messages]
                arrived(len(seen))
        finally:
            await consumer.stop()
        return seen

    return asyncio.run(asyncio.wait_for(run(), READ_S))


def read_in_rounds(broker: BrokerProcess, read: Callable[[str, Callable[[int], None]], Seen]) -> Seen:
    """The next round is written when the reader has the one before, so that it waits in long polls in between."""
    rounds = iter(range(1, ROUNDS))
    wanted = COUNT // ROUNDS

    def arrived(count: int) -> None:
        nonlocal wanted
        if count >= wanted and wanted < COUNT:
            wanted += COUNT // ROUNDS
            writer = threading.Thread(target=write, args=(broker.kafka, next(rounds)))
            writer.start()

    write(broker.kafka, 0)
    return read(broker.kafka, arrived)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("read", "uses_sessions"),
    [(read_kafka_python, True), (read_confluent, False), (read_aiokafka, False)],
    ids=["kafka-python", "librdkafka", "aiokafka"],
)
def test_a_stock_client_reads_everything_once(
    directory_site: Site, read: Callable[[str, Callable[[int], None]], Seen], uses_sessions: bool
) -> None:
    """In order within each partition. librdkafka and aiokafka ask without sessions (id 0, epoch −1)."""
    with directory_site.broker() as broker:
        create_topic(broker.kafka, "many", PARTITIONS)
        seen = read_in_rounds(broker, read)
        assert sorted(seen) == expected()
        assert all(
            [offset for at, offset in seen if at == partition] == list(range(ROUNDS * PER_ROUND))
            for partition in range(0, PARTITIONS, 7)
        )
        metrics = metrics_of(broker)
        assert (metrics["thermocline_fetch_sessions_created_total"] > 0) == uses_sessions
        assert (metrics["thermocline_incremental_fetches_total"] > 3) == uses_sessions
        if uses_sessions:  # it closes its session with its last fetch, or leaves one behind
            assert metrics["thermocline_fetch_sessions"] <= 1


@pytest.mark.peer
@pytest.mark.timeout(300)
def test_the_java_consumer_reads_everything_once(directory_site: Site) -> None:
    """Its sessions are by topic id (Fetch 18); it closes them when it goes."""
    require_kafka()
    with directory_site.broker() as broker:
        create_topic(broker.kafka, "many", PARTITIONS)
        for round_ in range(ROUNDS):
            write(broker.kafka, round_)
        text = kafka_tool(
            "org.apache.kafka.tools.VerifiableConsumer",
            *("--bootstrap-server", broker.kafka, "--topic", "many", "--group-id", "java", "--verbose"),
            *("--max-messages", str(COUNT), "--reset-policy", "earliest"),
        )
        assert text.count('"name":"record_data"') == COUNT
        metrics = metrics_of(broker)
        assert metrics["thermocline_fetch_sessions_created_total"] >= 1
        assert metrics["thermocline_incremental_fetches_total"] >= 1
        wait_until(lambda: metrics_of(broker)["thermocline_fetch_sessions"] == 0, "closed", 10)
