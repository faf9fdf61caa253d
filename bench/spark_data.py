"""The log that bench/spark.py reads on both sides: the same batches, byte for byte, in a bucket and in Apache Kafka.

Owns how they are made: templates of random values, stamped with their offset and time, so that a GB costs a few
seconds; they come around after 64 MiB, so that no dictionary (Parquet's) sees a value twice. Segments go through
coldstore's own writer, with the footers that a broker of ours makes; Kafka is sent the same batches in
Produce requests.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from coldstore.keys import SegmentKey
from coldstore.segments.footer_room import footer_room
from coldstore.segments.segment_object import SegmentFooter, build_footer, entry_from_footer
from coldstore.segments.segment_scanner import SegmentScanner
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.segment_index import SegmentIndexer
from logformat.indexes.time_index import TimeIndex
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.producer_snapshot import ProducerState
from logformat.record_batch import LOG_OVERHEAD, Buffer, read_header
from logformat.records import Record, encode_batch
from tests.support.pipeline.history_bucket import HistoryBucket

PARTITIONS = 2
BATCH_BYTES = 16_384  # a Java producer's default
SEGMENT_BYTES = 128 << 20  # our default
TEMPLATES_BYTES = 64 << 20
KEYS = 1000
MONTH_MS = 30 * 86_400_000
IN_FLIGHT = 8


@dataclass(frozen=True)
class Log:
    """A topic as it was made: `log_bytes` of batches with `records`, a month of them beginning at `start_ms`."""

    topic: str
    value_bytes: int
    log_bytes: int
    records: int
    start_ms: int


def make_log(bucket: HistoryBucket, port: int, topic: str, value_bytes: int, log_bytes: int) -> Log:
    """Write a log of about `log_bytes` over `PARTITIONS` into the bucket and the broker (whose topic is there)."""
    bucket.topic(topic, PARTITIONS)
    batch_records = max(1, BATCH_BYTES // (value_bytes + 16))
    templates = _templates(value_bytes, batch_records)
    batches = log_bytes // PARTITIONS // len(templates[0])
    records = batches * batch_records
    start_ms = time.time_ns() // 1_000_000 - MONTH_MS
    written = 0
    for partition in range(PARTITIONS):
        with Sender(port, topic, partition) as sender:
            for base, log in _segments(templates, batch_records, batches, start_ms, sender):
                written += len(log)
                _add_segment(bucket, topic, partition, base, log, base + _count(log, templates[0], batch_records))
    return Log(topic, value_bytes, written, records * PARTITIONS, start_ms)


def _count(log: bytearray, template: bytearray, batch_records: int) -> int:
    return len(log) // len(template) * batch_records


def _templates(value_bytes: int, batch_records: int) -> list[bytearray]:
    """Encoded batches of one length, of different random values."""
    made = []
    for number in range(TEMPLATES_BYTES // BATCH_BYTES):
        keys = [b"k%03d" % ((number * batch_records + n) % KEYS) for n in range(batch_records)]
        values = os.urandom(batch_records * value_bytes)
        records = [Record(n, n, keys[n], values[n * value_bytes : (n + 1) * value_bytes]) for n in range(batch_records)]
        made.append(bytearray(encode_batch(records, base_offset=0, leader_epoch=1)))
    assert len({len(one) for one in made}) == 1
    return made


def _segments(
    templates: list[bytearray], batch_records: int, batches: int, start_ms: int, sender: Sender
) -> Iterator[tuple[int, bytearray]]:
    """Base offset and bytes of each segment; each batch went to the broker too. Records of a batch are 1 ms apart."""
    step_ms = MONTH_MS / (batches * batch_records)
    base = first = 0
    log = bytearray()
    for number in range(batches):
        batch = templates[number % len(templates)]
        at = start_ms + int(base * step_ms)
        struct.pack_into(">q", batch, 0, base)
        struct.pack_into(">qq", batch, 27, at, at + batch_records - 1)
        struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
        sender.send(batch)
        log += batch
        base += batch_records
        if len(log) + len(batch) > SEGMENT_BYTES or number == batches - 1:
            yield first, log
            log, first = bytearray(), base


def _add_segment(bucket: HistoryBucket, topic: str, partition: int, base: int, log: bytearray, end: int) -> None:
    key = SegmentKey(bucket._ids[topic], partition, base, 1, bucket._rng.uuid())
    scanner = SegmentScanner(base, len(log))
    scanner.feed(log)
    lineage, producers = LeaderEpochs((EpochStart(1, 0),)), ProducerState(end, ())
    indexes = local_indexes(base, log)
    room = footer_room(key, topic, end, len(log), lineage=lineage, producers=producers, indexes=indexes)
    footer = build_footer(key, topic, scanner.finish(end), lineage=lineage, producers=producers, size=room)
    entry = entry_from_footer(SegmentFooter.parse(footer, len(log) + len(footer)), key)
    path: Path = bucket.object_path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        out.write(log)
        out.write(footer)
    bucket.edit(topic, partition, lambda manifest: manifest.add(entry))


class Sender:
    """Batches to one partition, one a request (as KIP-98 wants it), a few requests in flight; Produce version 7."""

    def __init__(self, port: int, topic: str, partition: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = topic.encode()
        self._prefix = (
            struct.pack(">hhih", 0, 7, 0, -1)  # Produce v7, correlation 0, no client id
            + struct.pack(">hhi", -1, 1, 30_000)  # no transaction, acks=1
            + struct.pack(">ih", 1, len(name))
            + name
            + struct.pack(">ii", 1, partition)
        )
        self._error_at = 4 + 4 + 2 + len(name) + 4 + 4  # correlation, topics, name, partitions, partition
        self._waiting = 0

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        while self._waiting:
            self._receive()
        self._socket.close()

    def send(self, batch: bytearray) -> None:
        if self._waiting >= IN_FLIGHT:
            self._receive()
        size = struct.pack(">i", len(self._prefix) + 4 + len(batch))
        numbered = (struct.pack(">iq", len(batch), 0), memoryview(batch)[8:])  # a producer counts from 0
        self._socket.sendall(b"".join((size, self._prefix, *numbered)))
        self._waiting += 1

    def _receive(self) -> None:
        (size,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_WAITALL))
        answer = self._socket.recv(size, socket.MSG_WAITALL)
        (error,) = struct.unpack_from(">h", answer, self._error_at)
        if error:
            raise RuntimeError(f"Produce: error code {error}")
        self._waiting -= 1


def local_indexes(base_offset: int, log: Buffer) -> tuple[OffsetIndex, TimeIndex]:
    """Of the batches in `log`, whose first offset is `base_offset`, in a segment that rolled."""
    indexer, view, position = SegmentIndexer(base_offset), memoryview(log), 0
    while position < len(view):
        header = read_header(view[position:])
        indexer.add_run((header,), header.base_offset, position)
        position += header.length + LOG_OVERHEAD
    indexer.seal()
    return indexer.offset_index, indexer.time_index
