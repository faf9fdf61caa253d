"""One history, cleaned by Apache Kafka 4.3.1's cleaner and by ours: consumers read the same records afterwards.

The history is bytes of Java's client, librdkafka, franz-go and reference libraries, in every codec and batch size, with
null values and null keys, each batch twice and in two orders. Offsets, timestamps, keys, values and headers are
compared, and Kafka's DumpLogSegments reads our cleaned files.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from broker.wire.apis import ApiKey
from logformat.record_batch import (
    HEADER,
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    read_header,
    walk,
)
from tests.integration.kafka.test_kafka_tools_beside import CONFIGS, LOCAL, Beside, both_brokers, topics
from tests.support.brokers.broker_kit import produce_request
from tests.support.conversations.record_groups import RemoteBroker
from tests.support.kafka.golden_batches import Row, goldens
from tests.support.kafka.kafka_tools import kafka_tool
from tests.support.pipeline.decode_logs import with_right_crc
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

TOPIC = "history"
SEGMENT_BYTES = 1_100_000
SEED = 33
UNREAD = ("form-gzip-members",)  # by librdkafka, which is the reader here


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    with both_brokers(tmp_path_factory.mktemp("cleaned")) as found:
        yield found


def as_sent(batch: bytes) -> bytes:
    """A stored batch as a client without idempotence sends it, so that the second one is no resend."""
    header = read_header(batch)._replace(base_offset=0, leader_epoch=-1)
    plain = header._replace(producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH, base_sequence=NO_SEQUENCE)
    return with_right_crc(HEADER.pack(*plain) + batch[HEADER_SIZE:])


def history() -> list[bytes]:
    """Batches: all in one order, all in another, and one more to fill the active segment, which is not cleaned."""
    batches = [
        as_sent(golden.log[at : at + header.size])
        for golden in goldens().values()
        if golden.name not in UNREAD
        for at, header in walk(golden.log)
    ]
    again = random.Random(SEED).sample(batches, len(batches))
    return [*batches, *again, max(batches, key=len)]


def write(address: str, batches: list[bytes]) -> None:
    remote = RemoteBroker(int(address.rpartition(":")[2]))

    async def all_of_them() -> None:
        for batch in batches:
            response: Any = await remote.ask(ApiKey.PRODUCE, 9, produce_request(TOPIC, bytearray(batch)))  # type: ignore[arg-type]
            part = response.responses[0].partition_responses[0]
            assert part.error_code == 0, (address, part)

    asyncio.run(all_of_them())


def read(address: str) -> list[Row]:
    settings = {"bootstrap.servers": address, "group.id": "reader", "log_level": 0, "fetch.message.max.bytes": 4 << 20}
    consumer = Consumer(settings)
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=30)
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        rows: list[Row] = []
        while not rows or rows[-1][0] < end - 1:
            message = consumer.poll(30)
            assert message is not None, f"{len(rows)} records, of offsets below {end}"
            assert message.error() is None, message.error()
            headers = tuple(message.headers() or ())
            rows.append((message.offset(), message.timestamp()[1], message.key(), message.value(), headers))
        return rows
    finally:
        consumer.close()


def cleaned_offset(data_dir: Path) -> int:
    checkpoint = data_dir / "cleaner-offset-checkpoint"
    found = re.search(rf"^{TOPIC} 0 (\d+)$", checkpoint.read_text(), re.MULTILINE) if checkpoint.exists() else None
    return int(found[1]) if found else 0


def survivors(rows: list[Row], end: int) -> list[Row]:
    """Of the history: below `end` the newest record of each key, judged by what lies below it; the rest as it is."""
    newest = {row[2]: row[0] for row in rows if row[0] < end}
    return [row for row in rows if row[0] >= end or (row[2] is not None and newest[row[2]] == row[0])]


def test_consumers_read_the_same_after_both_cleaners(beside: Beside) -> None:
    kafka_dir, our_dir = (Path(place) for place, called in beside.places.items() if called == "DIRECTORY")
    same = topics(beside)
    configs = {"segment.bytes": SEGMENT_BYTES, "max.message.bytes": 1048588, "retention.ms": -1}  # the bytes are old
    given = [word for name, value in configs.items() for word in ("--config", f"{name}={value}")]
    same("--create", "--topic", TOPIC, *LOCAL, *given)  # without cleaning: null keys are accepted
    batches = history()
    for address in (beside.kafka, beside.ours):
        write(address, batches)
    before = read(beside.ours)
    assert before == read(beside.kafka)
    soon = ("--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config", "log.cleaner.backoff.ms=100")
    assert beside.same(CONFIGS, *soon).code == 0
    alter = ("--alter", "--entity-type", "topics", "--entity-name", TOPIC, "--add-config")
    assert beside.same(CONFIGS, *alter, "cleanup.policy=compact,min.cleanable.dirty.ratio=0.01").code == 0
    for data_dir in (kafka_dir, our_dir):
        newest = max(int(path.stem) for path in (data_dir / f"{TOPIC}-0").glob("*.log"))
        wait_until(lambda: cleaned_offset(data_dir) == newest, f"{data_dir} is clean below {newest}", timeout_s=120)  # noqa: B023
    end = cleaned_offset(our_dir)
    assert end == cleaned_offset(kafka_dir)
    kafka, ours = read(beside.kafka), read(beside.ours)
    assert ours == kafka
    assert ours == survivors(before, end)
    assert 0 < len(ours) < len(before) / 2
    files = sorted(str(path) for path in (our_dir / f"{TOPIC}-0").glob("*.log"))
    dumped = kafka_tool("org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(files), "--deep-iteration")
    assert "isvalid: true" in dumped and "isvalid: false" not in dumped
