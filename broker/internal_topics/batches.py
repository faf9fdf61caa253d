"""Encodes records of an internal topic as batches, and decodes them. Pure.

A batch without a correct CRC is refused. Control batches have no records: a marker ends a transaction, a gap declares
that records may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

from logformat.errors import Corrupt
from logformat.gap import gap_range
from logformat.record_batch import BatchHeader, check_stored, walk
from logformat.records import Header, Record, encode_batch, iter_records
from logformat.transaction_marker import TransactionMarker, marker_of

BATCH_BYTES_MAX: Final = 16 << 20  # largest append; the topic's max.message.bytes must not be smaller
_REWRITE: Final[Header] = ("thermocline.rewrite", None)
_REWRITE_GOES_ON: Final[Header] = ("thermocline.rewrite", b"goes on")


class Rewrite(Enum):
    """The place of a batch in a rewrite. The log has all live records from the first batch of the rewrite on."""

    BEGINS = _REWRITE
    GOES_ON = _REWRITE_GOES_ON


class Producer(NamedTuple):
    """A producer, to whose transaction a record belongs."""

    producer_id: int
    producer_epoch: int


class KeyValue(NamedTuple):
    """A record that has no offset yet. Without a value it is a tombstone. `producer`: the record takes effect when this
    producer's transaction commits; None: at once."""

    key: bytes
    value: bytes | None
    producer: Producer | None = None

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value or b"")


def batch_of(
    records: Sequence[KeyValue], now_ms: int, base_offset: int = 0, *, rewrite: Rewrite | None = None
) -> bytes:
    """One uncompressed batch (in Kafka, offsets.topic.compression.codec is also none). All records have the same
    producer. With a producer the batch is transactional and has no sequence, as in Kafka's coordinator. `rewrite`
    becomes a header of the first record, which other readers ignore."""
    stamped = [Record(base_offset + i, now_ms, record.key, record.value) for i, record in enumerate(records)]
    if rewrite is not None:
        stamped[0] = stamped[0]._replace(headers=(rewrite.value,))
    producer = records[0].producer
    assert all(record.producer == producer for record in records), "records of different producers in one batch"
    if producer is None:
        return encode_batch(stamped)
    return encode_batch(
        stamped, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, transactional=True
    )


def is_begin_of_rewrite(batch: bytes) -> bool:
    """Whether a whole batch was made with `Rewrite.BEGINS`. Raises Corrupt."""
    check_stored(batch, 0, len(batch))
    first = next(iter_records(batch), None)
    return first is not None and _REWRITE in first.headers


class ReplayedBatch(NamedTuple):
    """A batch of a replay. `next_offset`: the offset after the batch. `records`: its records with a key. `marker`: set
    if the batch is the marker of a transaction. `is_gap`: records at its offsets are lost. `rewrite`: its part of a
    rewrite; earlier versions marked only the beginning."""

    next_offset: int
    records: Iterator[KeyValue] = iter(())
    marker: TransactionMarker | None = None
    is_gap: bool = False
    rewrite: Rewrite | None = None


def batches_in(data: bytes) -> Iterator[ReplayedBatch]:
    """The batches in these bytes. Raises Corrupt, also for a wrong CRC or a truncated end."""
    end = 0
    for position, header in walk(data):
        end = position + header.size
        check_stored(data, position, len(data))
        if header.is_control:
            marker = marker_of(data, position, header)
            is_gap = marker is None and gap_range(data, position) is not None
            yield ReplayedBatch(header.next_offset, marker=marker, is_gap=is_gap)
        else:
            records = iter_records(data, position)
            first = next(records, None)
            rewrite = None if first is None else _rewrite_of(first)
            yield ReplayedBatch(header.next_offset, _records(first, records, _producer_of(header)), rewrite=rewrite)
    if end < len(data):
        raise Corrupt(f"an internal topic has {len(data) - end} bytes after its last whole batch")


def _producer_of(header: BatchHeader) -> Producer | None:
    return Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None


def _rewrite_of(first: Record) -> Rewrite | None:
    return next((part for part in Rewrite if part.value in first.headers), None) if first.headers else None


def _records(first: Record | None, others: Iterator[Record], producer: Producer | None) -> Iterator[KeyValue]:
    records = others if first is None else chain((first,), others)
    return (KeyValue(r.key, r.value, producer) for r in records if r.key is not None)


def chunks(records: Iterable[KeyValue], count_max: int, bytes_max: int) -> Iterator[list[KeyValue]]:
    """`records` in groups for batches of bounded size and one producer each; a record that is larger has its own
    batch."""
    chunk: list[KeyValue] = []
    size = 0
    for record in records:
        is_full = len(chunk) >= count_max or size + record.size > bytes_max
        if chunk and (is_full or record.producer != chunk[0].producer):
            yield chunk
            chunk, size = [], 0
        chunk.append(record)
        size += record.size
    if chunk:
        yield chunk
