"""State of a log's idempotent producers as bytes: Kafka's `.snapshot`, and our fuller file beside it.

Kafka stores one batch per producer, so after a restart it recognises only a resend of the last batch. With five batches
in flight, a resend of an earlier batch becomes a duplicate. Our file stores the last five batches with their offsets. A
resend of any of these batches thus gets its original answer, even after a roll, a kill or a recovery from the cold tier
(G4). Both files describe the state before the batch at the offset in their name (C8). Source: KIP-98, Kafka's
ProducerSnapshot.json (version 1); ours: docs/formats/producer-state.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from logformat.errors import Corrupt
from logformat.record_batch import INT32_MAX, NO_SEQUENCE, Buffer
from logformat.values import NewerFormat

BATCHES_MAX: Final = 5  # Kafka's idempotent clients have at most this many batches in flight

KAFKA_VERSION: Final = 1
_KAFKA_HEADER: Final = struct.Struct(">hI")
_KAFKA_COUNT: Final = struct.Struct(">i")
_KAFKA_ENTRY: Final = struct.Struct(">qhiqiqiq")

MAGIC: Final = b"TCPS"
VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sHHI")
_BODY: Final = struct.Struct(">qI")
_ENTRY: Final = struct.Struct(">qhiqqB")
_BATCH: Final = struct.Struct(">iiqqq")


class BatchRecord(NamedTuple):
    """One appended batch of a producer: its sequences, its offsets, its greatest timestamp in ms."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry(msgspec.Struct, frozen=True):
    """One producer id's state. `batches`: oldest first, at most five, all of `epoch`. −1: none."""

    producer_id: int
    epoch: int
    batches: tuple[BatchRecord, ...]
    last_timestamp: int
    current_txn_first_offset: int = -1
    coordinator_epoch: int = -1

    def __post_init__(self) -> None:
        assert len(self.batches) <= BATCHES_MAX, f"{len(self.batches)} batches of producer {self.producer_id}"


class ProducerState(msgspec.Struct, frozen=True):
    """Every producer of a log, as of `end_offset` (exclusive), sorted by producer id."""

    end_offset: int
    producers: tuple[ProducerEntry, ...]

    def as_of(self, offset: int, transactions: Iterable[tuple[int, int, int, int]]) -> tuple[ProducerEntry, ...]:
        """The state at the earlier `offset`: each producer's remembered batches below `offset`. A producer without such
        batches is left out, unless it has an open transaction. `transactions`: (producer id, epoch, first offset,
        marker's offset) of the decided transactions that are known. A transaction is open at `offset` if it spans
        `offset`, or if it began below `offset` and is still open at `end_offset` (TX26). Transactions that committed
        between these offsets may be unknown; the marker of such a transaction then finds no open transaction.
        """
        if offset >= self.end_offset:
            return self.producers
        spanning = {
            producer_id: (epoch, first)
            for producer_id, epoch, first, marker in transactions
            if first < offset <= marker
        }
        found = []
        for entry in self.producers:
            before = tuple(batch for batch in entry.batches if batch.last_offset < offset)
            epoch, first = spanning.pop(entry.producer_id, (entry.epoch, -1))
            if 0 <= entry.current_txn_first_offset < offset:
                epoch, first = entry.epoch, entry.current_txn_first_offset
            if before or first >= 0:
                found.append(
                    replace(
                        entry,
                        epoch=entry.epoch if before or epoch < 0 else epoch,
                        batches=before,
                        last_timestamp=before[-1].timestamp if before else entry.last_timestamp,
                        current_txn_first_offset=first,
                    )
                )
        found += [ProducerEntry(of, max(epoch, 0), (), -1, first) for of, (epoch, first) in spanning.items()]
        return tuple(sorted(found, key=_producer_id))


def encode_kafka_snapshot(producers: Iterable[ProducerEntry]) -> bytes:
    """Kafka's `.snapshot`: the last batch of each producer only."""
    entries: list[bytes] = []
    for entry in producers:
        last = entry.batches[-1] if entry.batches else None
        entries.append(
            _KAFKA_ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last.last_sequence if last else NO_SEQUENCE,
                last.last_offset if last else -1,
                last.last_offset - last.first_offset if last else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        )
    covered = _KAFKA_COUNT.pack(len(entries)) + b"".join(entries)
    return _KAFKA_HEADER.pack(KAFKA_VERSION, crc32c(covered)) + covered


def decode_kafka_snapshot(data: Buffer) -> tuple[ProducerEntry, ...]:
    """Entries with at most one batch each. Raises Corrupt, NewerFormat for a later version."""
    view = memoryview(data)
    if len(view) < _KAFKA_HEADER.size + _KAFKA_COUNT.size:
        raise Corrupt(f"producer snapshot: {len(view)} bytes are too few")
    version, crc = _KAFKA_HEADER.unpack_from(view)
    if version > KAFKA_VERSION:
        raise NewerFormat(f"producer snapshot: version {version}, but this program knows {KAFKA_VERSION}")
    covered = view[_KAFKA_HEADER.size :]
    if version != KAFKA_VERSION or crc32c(covered) != crc:
        raise Corrupt(f"producer snapshot: version {version}, CRC {crc:#010x} does not match")
    (count,) = _KAFKA_COUNT.unpack_from(covered)
    body = covered[_KAFKA_COUNT.size :]
    if count * _KAFKA_ENTRY.size != len(body):
        raise Corrupt(f"producer snapshot: claims {count} entries in {len(body)} bytes")
    return tuple(_kafka_entry(*fields) for fields in _KAFKA_ENTRY.iter_unpack(body))


def _kafka_entry(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerEntry:
    batches: tuple[BatchRecord, ...] = ()
    if last_offset >= 0:
        if offset_delta < 0 or offset_delta > last_offset or last_sequence < NO_SEQUENCE:
            raise Corrupt(f"producer snapshot: producer {producer_id} has an impossible last batch")
        # After a transaction marker there is no sequence. Otherwise a batch has as many sequences as offsets; sequences
        # wrap at 2^31.
        first_sequence = NO_SEQUENCE if last_sequence < 0 else (last_sequence - offset_delta) & INT32_MAX
        batches = (BatchRecord(first_sequence, last_sequence, last_offset - offset_delta, last_offset, timestamp),)
    return ProducerEntry(producer_id, epoch, batches, timestamp, max(txn_first_offset, -1), coordinator_epoch)


def encode_producer_state(state: ProducerState) -> bytes:
    """Our file: all of `state`, sorted by producer id, so that equal states are equal bytes."""
    parts = [_BODY.pack(state.end_offset, len(state.producers))]
    for entry in sorted(state.producers, key=_producer_id):
        parts.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
                entry.last_timestamp,
                len(entry.batches),
            )
        )
        parts.extend(_BATCH.pack(*batch) for batch in entry.batches)
    body = b"".join(parts)
    return _HEADER.pack(MAGIC, VERSION, 0, crc32c(body)) + body


def decode_producer_state(data: Buffer) -> ProducerState:
    """The inverse of `encode_producer_state`. Raises Corrupt, NewerFormat for a later version."""
    view = memoryview(data)
    if len(view) < _HEADER.size + _BODY.size:
        raise Corrupt(f"producer state: {len(view)} bytes are too few")
    magic, version, reserved, crc = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise Corrupt(f"producer state: begins with {magic!r}, not {MAGIC!r}")
    if version > VERSION:
        raise NewerFormat(f"producer state: version {version}, but this program knows {VERSION}")
    body = view[_HEADER.size :]
    if version != VERSION or reserved or crc32c(body) != crc:
        raise Corrupt(f"producer state: version {version}, CRC {crc:#010x} does not match")
    end_offset, count = _BODY.unpack_from(body)
    if end_offset < 0 or count > (len(body) - _BODY.size) // _ENTRY.size:
        raise Corrupt(f"producer state: claims {count} producers at offset {end_offset} in {len(body)} bytes")
    producers, end = _decode_entries(body, count, end_offset)
    if end != len(body):
        raise Corrupt(f"producer state: {len(body) - end} bytes after its {count} producers")
    return ProducerState(end_offset, producers)


def _decode_entries(body: memoryview, count: int, end_offset: int) -> tuple[tuple[ProducerEntry, ...], int]:
    producers: list[ProducerEntry] = []
    pos = _BODY.size
    id_before = -1
    for _ in range(count):
        if len(body) - pos < _ENTRY.size:
            raise Corrupt(f"producer state: entry {len(producers)} of {count} is cut short")
        producer_id, epoch, coordinator_epoch, txn_first, last_timestamp, batch_count = _ENTRY.unpack_from(body, pos)
        pos += _ENTRY.size
        if producer_id <= id_before or batch_count > BATCHES_MAX or len(body) - pos < batch_count * _BATCH.size:
            raise Corrupt(
                f"producer state: producer {producer_id} after {id_before} is out of order, or its {batch_count} "
                "batches are too many"
            )
        after = pos + batch_count * _BATCH.size
        batches = tuple(BatchRecord(*fields) for fields in _BATCH.iter_unpack(body[pos:after]))
        if any(not _possible(batch, end_offset) for batch in batches):
            raise Corrupt(f"producer state: producer {producer_id} has an impossible batch")
        producers.append(ProducerEntry(producer_id, epoch, batches, last_timestamp, txn_first, coordinator_epoch))
        pos, id_before = after, producer_id
    return tuple(producers), pos


def _possible(batch: BatchRecord, end_offset: int) -> bool:
    sequences = batch.first_sequence >= NO_SEQUENCE and batch.last_sequence >= NO_SEQUENCE
    return sequences and 0 <= batch.first_offset <= batch.last_offset < end_offset


def _producer_id(entry: ProducerEntry) -> int:
    return entry.producer_id
