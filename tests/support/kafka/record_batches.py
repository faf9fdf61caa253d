"""Let real producers write to a fresh Apache Kafka, and keep some of their batches as golden data.

    KAFKA_PEER_RUN=/tmp/run kafka start 29392        # bench/peers/kafka
    (cd tests/support/kafka/franz && go build -o /tmp/franz .)
    python -m tests.support.kafka.record_batches 29392 /tmp/run/data /tmp/franz

Java's producer by ProducerPerformance (payloads from a file, and random ones), librdkafka, franz-go; every codec at
batch sizes from 1 000 bytes to 1 MB. Forms that clients may write but these do not (`FORMS`) are made by the codecs'
reference libraries and sent as they are; Kafka takes them. What the batches hold is what librdkafka's consumer reads of
them, but for `FORMS`, where it is what was put in. Takes five minutes.
"""

from __future__ import annotations

import asyncio
import json
import random
import string
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cramjam
import lz4.frame
import zstandard
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c

from broker.wire.apis import ApiKey
from broker.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from logformat.record_batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE, LENGTH_AT, Codec, walk
from logformat.records import Record, encode_batch
from tests.support.conversations.record_groups import RemoteBroker
from tests.support.kafka.golden_batches import Golden, Row, digest_of, end_of, rebased, write
from tests.support.kafka.kafka_tools import kafka_tool

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KEPT = {1000: 12, 16_384: 4, 65_536: 2, 1_000_000: 1}  # batches of each size: bytes that do not shrink are few
SEED = 2026


def lines(count: int) -> list[bytes]:
    """Events as applications write them: names that come again and again, numbers that do not."""
    rng = random.Random(SEED)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(4, 9))) for _ in range(400)]
    return [
        json.dumps(
            {
                "event": rng.choice(words),
                "user": rng.randrange(10**7),
                "session": f"{rng.getrandbits(64):016x}",
                "price": round(rng.random() * 1000, 2),
                "tags": rng.choices(words, k=rng.randint(2, 12)),
                "text": " ".join(rng.choices(words, k=rng.randint(5, 60))),
            }
        ).encode()
        for _ in range(count)
    ]


# ── producers ────────────────────────────────────────────────────────────────────────────────────────────────────────
class Site:
    """A running Kafka and its data directory."""

    def __init__(self, port: int, data: Path, franz: str) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._data = data
        self.franz = franz
        self._admin = AdminClient({"bootstrap.servers": self.address})

    def topic(self, name: str) -> str:
        made = self._admin.create_topics([NewTopic(name, 1, 1, config={"max.message.bytes": "2097152"})])
        made[name].result(30)
        return name

    def log(self, topic: str) -> bytes:
        """What Kafka stored."""
        return b"".join(path.read_bytes() for path in sorted((self._data / f"{topic}-0").glob("*.log")))

    def rows(self, topic: str, first: int, end: int) -> Iterator[Row]:
        """What librdkafka reads, from offset `first` on counted from 0."""
        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": "golden", "fetch.message.max.bytes": 4 << 20}
        )
        try:
            consumer.assign([TopicPartition(topic, 0, first)])
            at = first
            while at < end:
                message = consumer.poll(30)
                assert message is not None and message.error() is None, (topic, at)
                assert message.offset() == at
                headers = tuple((name, content) for name, content in message.headers() or ())
                yield at - first, message.timestamp()[1], message.key(), message.value(), headers
                at += 1
        finally:
            consumer.close()

    def golden(self, topic: str, producer: str, codec: str, batches: int) -> Golden:
        """The last `batches` batches but one, which the end of the data may have cut short."""
        log = self.log(topic)
        places = [(at, header) for at, header in walk(log)]
        kept = places[-batches - 1 : -1]
        assert kept, (topic, len(places))
        (start, first), (last, header) = kept[0], kept[-1]
        rows = list(self.rows(topic, first.base_offset, header.next_offset))
        kept_log = rebased(log[start : last + header.size])
        assert len(rows) == end_of(kept_log)
        return golden_of(topic, producer, codec, kept_log, rows)


def golden_of(name: str, producer: str, codec: str, log: bytes, rows: Sequence[Row]) -> Golden:
    size = sum(len(value or b"") for _, _, _, value, _ in rows)
    return Golden(name, producer, codec, len(rows), size, digest_of(rows), log)


def java(site: Site, topic: str, codec: str, size: int, *payload: str, count: int = 80_000) -> None:
    kafka_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", site.address, "--topic", topic, "--num-records", str(count), "--throughput", "-1"),
        *("--command-property", f"compression.type={codec}", f"batch.size={size}", "linger.ms=2000"),
        *payload,
    )


def librdkafka(site: Site, topic: str, codec: str, size: int, values: Sequence[bytes]) -> None:
    options = {"compression.codec": codec, "batch.size": size, "linger.ms": 500, "batch.num.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": site.address, **options})
    for number, value in enumerate(values):
        key = None if number % 7 == 0 else b"key-%d" % number
        producer.produce(topic, value if number % 11 else None, key, headers={"trace": b"%d" % number, "none": None})
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def franz(site: Site, topic: str, codec: str, size: int, file: str) -> None:
    subprocess.run([site.franz, site.address, topic, codec, str(size), file], check=True, timeout=120)


# ── forms ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _xerial(data: bytes, block_bytes: int) -> bytes:
    blocks = [
        bytes(cramjam.snappy.compress_raw(data[at : at + block_bytes])) for at in range(0, len(data), block_bytes)
    ]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


def _zstd(**options: bool) -> Callable[[bytes], bytes]:
    return lambda data: zstandard.ZstdCompressor(**options).compress(data)


def _zstd_streamed(data: bytes) -> bytes:
    """A block is ended where the writer flushes; no size in front, a checksum behind."""
    writer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    parts = []
    for at in range(0, len(data), 5000):
        parts += [writer.compress(data[at : at + 5000]), writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
    return b"".join([*parts, writer.flush()])


def _in_parts(compress: Callable[[bytes], bytes], size: int) -> Callable[[bytes], bytes]:
    return lambda data: b"".join(compress(data[at : at + size]) for at in range(0, len(data), size))


FORMS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "zstd-checksum": (Codec.ZSTD, _zstd(write_checksum=True, write_content_size=False)),
    "zstd-content-size": (Codec.ZSTD, _zstd(write_content_size=True)),
    "zstd-frames": (Codec.ZSTD, _in_parts(_zstd(write_content_size=False), 70_000)),
    "zstd-frames-checksum": (Codec.ZSTD, _in_parts(_zstd(write_checksum=True), 30_000)),
    "zstd-flushed": (Codec.ZSTD, _zstd_streamed),
    "lz4-block-checksum": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data, block_linked=False, block_checksum=True, store_size=False),
    ),
    "lz4-checksums-size": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(
            data, block_linked=False, block_checksum=True, content_checksum=True, store_size=True
        ),
    ),
    "snappy-raw": (Codec.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy-xerial-1k": (Codec.SNAPPY, lambda data: _xerial(data, 1024)),
    "snappy-xerial-1m": (Codec.SNAPPY, lambda data: _xerial(data, 1 << 20)),
    "gzip-members": (Codec.GZIP, _in_parts(lambda data: bytes(cramjam.gzip.compress(data)), 50_000)),
}


def formed(records: Sequence[Record], codec: Codec, compress: Callable[[bytes], bytes]) -> bytes:
    """A batch whose records are compressed by `compress`."""
    plain = encode_batch(records, base_offset=0)
    body = compress(plain[HEADER_SIZE:])
    batch = bytearray(plain[:HEADER_SIZE]) + body
    struct.pack_into(">i", batch, LENGTH_AT, len(batch) - LENGTH_AT - 4)
    struct.pack_into(">h", batch, ATTRIBUTES_AT, codec)
    struct.pack_into(">I", batch, CRC_AT, crc32c(memoryview(batch)[ATTRIBUTES_AT:]))
    return bytes(batch)


async def send(port: int, topic: str, batch: bytes) -> int:
    """Produce it as it is; the error code."""
    partition = ProduceRequestPartition(index=0, records=memoryview(batch))
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[ProduceRequestTopic(name=topic, partition_data=[partition])]
    )
    answer: Any = await RemoteBroker(port).ask(ApiKey.PRODUCE, 9, request)
    return int(answer.responses[0].partition_responses[0].error_code)


def forms(site: Site, values: Sequence[bytes]) -> Iterator[Golden]:
    records = [Record(n, 1_700_000_000_000 + n // 10, b"%d" % n, value) for n, value in enumerate(values)]
    rows: list[Row] = [(r.offset, r.timestamp, r.key, r.value, ()) for r in records]
    for name, (codec, compress) in FORMS.items():
        topic = site.topic(f"form-{name}")
        batch = formed(records, codec, compress)
        error = asyncio.run(send(site.port, topic, batch))
        assert error == 0, f"Kafka refuses {name}: error {error}"
        assert len(site.log(topic)) == len(batch), "stored as it was sent"
        yield golden_of(topic, "reference library", codec.name.lower(), rebased(site.log(topic)), rows)


# ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────────
def record(site: Site) -> Iterator[Golden]:
    many = lines(12_000)
    few = many[:40]  # so few that a batch shrinks to a tenth and less: Java's then hold several times batch.size
    again = random.Random(SEED).choices(few, k=12_000)
    noise = [random.Random(SEED + n).randbytes(700) for n in range(2000)]
    with tempfile.TemporaryDirectory() as place:
        few_file = Path(place) / "few.txt"
        few_file.write_bytes(b"\n".join(few) + b"\n")
        for codec in CODECS:
            for size, batches in KEPT.items():
                values = again if size == 1_000_000 else many
                values_file = Path(place) / "values.txt"
                values_file.write_bytes(b"\n".join(values) + b"\n")
                topic = site.topic(f"java-{codec}-{size}")
                java(site, topic, codec, size, "--payload-file", str(few_file))
                yield site.golden(topic, "kafka-clients 4.3.1", codec, batches)
                topic = site.topic(f"librdkafka-{codec}-{size}")
                librdkafka(site, topic, codec, size, values)
                yield site.golden(topic, "librdkafka 2.16", codec, batches)
                topic = site.topic(f"franz-{codec}-{size}")
                franz(site, topic, codec, size, str(values_file))
                yield site.golden(topic, "franz-go 1.17.1", codec, batches)
            topic = site.topic(f"java-random-{codec}")
            java(site, topic, codec, 16_384, "--record-size", "900", count=3000)
            yield site.golden(topic, "kafka-clients 4.3.1", codec, 2)
            topic = site.topic(f"librdkafka-noise-{codec}")
            librdkafka(site, topic, codec, 65_536, noise)
            yield site.golden(topic, "librdkafka 2.16", codec, 1)
    yield from forms(site, many[:400])


if __name__ == "__main__":
    found = []
    for one in record(Site(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])):
        print(f"{one.name:28} {one.records:6} records {len(one.log):9} bytes of {one.value_bytes:9}", flush=True)
        found.append(one)
    write(found)
