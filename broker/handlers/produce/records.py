"""Produced batches whose records have to be looked into: why, by whom, and what was found.

Owns the choice which headers are believed. Kafka reads every record. Here a header is believed unless it shows that it
cannot be: a greatest timestamp below the first record's (Sarama before 2025 leaves −1), or the mark of KafkaJS, which
writes the last record's. Those batches are read, so that no such header carries records past the topic's
`message.timestamp.*.max.ms`; a header made up to look right is its producer's own damage, and `thermocline.validate.
records=true` reads every batch. Always true: the loop looks into a thousand uncompressed records at most; what takes
longer is done in a worker, by a way that costs 0.2 µs a record. Must not know requests, logs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from logformat.errors import Corrupt, InvalidRequest, Retryable
from logformat.record_batch import CODEC_MASK, BatchHeader, InvalidRecordBatch
from logformat.records import timestamp_range, validate_records

_RECORDS_ON_LOOP_MAX: Final = 1_000
_VALIDATED_ON_LOOP_MAX: Final = 100  # 5 µs each
RECORDS_BYTES_MAX: Final = 32 << 20  # decompressed, or the topic's max.message.bytes: a bomb is refused there


class Found(NamedTuple):
    """The least and the greatest timestamp of a batch's records (ms, −1: none)."""

    least: int
    greatest: int


Look = Found | InvalidRequest
"""What a look found, or why the batch is refused."""


class NeedsWorker(Retryable):
    """This batch is not looked into on the loop: have a worker do it, then append it with what was found."""


def must_look(header: BatchHeader, *, validates: bool, stamps: bool) -> bool:
    """`validates`: every record is to be checked; `stamps`: the broker's time replaces the producer's."""
    return validates or (header.lacks_max_timestamp and not stamps)


def is_cheap(header: BatchHeader, *, validates: bool) -> bool:
    """Whether the loop may look into it."""
    records_max = _VALIDATED_ON_LOOP_MAX if validates else _RECORDS_ON_LOOP_MAX
    return not header.attributes & CODEC_MASK and header.record_count <= records_max


def look(batch: memoryview, bytes_max: int, *, validates: bool) -> Look:
    """*Blocking* in proportion to the records. The batch's CRC is the caller's business."""
    try:
        if validates:
            validate_records(batch, bytes_max=bytes_max)
        return Found(*timestamp_range(batch, bytes_max=bytes_max))
    except InvalidRequest as refused:
        return refused
    except Corrupt as unreadable:
        # What cannot be read in records whose CRC is right is the client's, for good: not "corrupt", which it resends.
        return InvalidRecordBatch(str(unreadable))
