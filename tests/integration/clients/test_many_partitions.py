"""A stock producer spreads records over the partitions of one connection: no request breaks it, none is doubled."""

from __future__ import annotations

from confluent_kafka import KafkaError, Producer

from tests.support.clients.stock_clients import create_topic, end_offsets
from tests.support.processes.site import Site
from tests.support.waiting import wait_until

RECORDS = 40_000
PARTITIONS = 4


def test_one_connection_writes_many_partitions_without_a_retry(directory_site: Site) -> None:
    """Not idempotent, so that a resend after a broken connection would show as a doubled record."""
    problems: list[KafkaError] = []
    with directory_site.broker() as broker:
        create_topic(broker.kafka, "spread", PARTITIONS)
        producer = Producer(
            {
                "bootstrap.servers": broker.kafka,
                "acks": "1",
                "linger.ms": 1,
                "batch.size": 2_000,
                "queue.buffering.max.messages": RECORDS,
                "error_cb": problems.append,
            }
        )
        for at in range(RECORDS):
            producer.produce("spread", b"%0100d" % at, partition=at % PARTITIONS)
        assert producer.flush(60) == 0
        assert problems == []
        # An end counts what a sync made durable. ListOffsets waits a second for that, and a busy disk takes longer.
        wait_until(
            lambda: sum(end_offsets(broker.kafka, "spread", PARTITIONS).values()) >= RECORDS,
            "what was acknowledged is durable",
        )
        assert end_offsets(broker.kafka, "spread", PARTITIONS) == dict.fromkeys(
            range(PARTITIONS), RECORDS // PARTITIONS
        )
