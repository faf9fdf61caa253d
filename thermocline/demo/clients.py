"""The demo's producer and consumer: stock clients that write and check every byte.

Owns what is asked of them: every record acknowledged by all, every byte compared with what was computed. Always true: a
replay that stalls, or that sees another byte, raises `Failed`. Must not know the broker's code.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from thermocline.demo.broker import SETTINGS, DemoBroker
from thermocline.demo.payload import PARTITIONS, TOPIC, Failed, Payload
from thermocline.demo.picture import TICK_S, Picture

STALL_S = 30.0


def produce(broker: DemoBroker, payload: Payload, first: int, end: int, watch: Callable[[], None]) -> float:
    """Produce records [first, end) with a stock idempotent client; every one acknowledged by all. Seconds taken."""
    producer = Producer(
        {
            "bootstrap.servers": broker.kafka,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    began = time.monotonic()
    for sequence in range(first, end):
        while True:
            try:
                producer.produce(TOPIC, payload.value(sequence), partition=sequence % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if sequence % 4096 == 0:
            producer.poll(0)
            watch()
    if producer.flush(STALL_S) or failures:
        raise Failed(f"not acknowledged: {failures[:1] or 'some records'}")
    return time.monotonic() - began


def replay(broker: DemoBroker, payload: Payload, count: int, watch: Callable[[], None]) -> float:
    """Read every partition from offset 0 and check every byte of `count` records. Seconds taken."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.message.max.bytes": 8 << 20,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    expected = list(range(PARTITIONS))  # the next sequence number of each partition
    began = last = time.monotonic()
    left = count
    while left:
        for message in consumer.consume(2000, timeout=1.0):
            if message.error():
                raise KafkaException(message.error())
            partition = message.partition()
            assert partition is not None
            sequence = expected[partition]
            if message.value() != payload.value(sequence) or message.offset() != sequence // PARTITIONS:
                raise Failed(f"partition {partition} offset {message.offset()}: not what was produced")
            expected[partition] += PARTITIONS
            left -= 1
            last = time.monotonic()
        if time.monotonic() - last > STALL_S:
            raise Failed(f"the replay stalled {left} records before the end")
        watch()
    consumer.close()
    return time.monotonic() - began


def wait_sunk(broker: DemoBroker, picture: Picture) -> None:
    """Until every sealed segment is in the bucket and only active segments are left on disk."""
    deadline = time.monotonic() + STALL_S
    limit = PARTITIONS * SETTINGS["log.segment.bytes"]
    while any(p["copy_lag_bytes"] for p in broker.status()) or broker.local_bytes > limit:
        if time.monotonic() > deadline:
            raise Failed("segments did not sink into the bucket")
        picture.draw(broker, "sinking   ")
        time.sleep(TICK_S)
