"""Fillers: control batches for offsets whose records compaction removed (ADR 30).

One filler covers a run of emptied batches of one leader epoch, so that a compacted log has no hole. Like a gap batch
(`logformat.gap`), a filler holds one control record of an unassigned type at its last offset. Every client skips this
record and continues after it."""

from __future__ import annotations

import struct
from typing import Final

from logformat.gap import looks_like_gap
from logformat.record_batch import (
    CODEC_MASK,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_stored,
    read_header,
)
from logformat.records import Record, encode_batch, iter_records

FILLER_TYPE: Final = 0x7469  # "ti"; Kafka has assigned 0 to 6
FILLER_KEY: Final = struct.pack(">hh", 0, FILLER_TYPE)  # as in every control record's key: version, type
FILLER_BYTES_MAX: Final = 128
_VALUE: Final = struct.Struct(">hi")  # as in a gap batch


def filler_batch(first: int, end: int, leader_epoch: int) -> bytes:
    """The filler of the offsets [first, end), at most 2^31 − 1 of them."""
    record = Record(end - 1, NO_TIMESTAMP, FILLER_KEY, _VALUE.pack(0, leader_epoch))
    return encode_batch([record], base_offset=first, leader_epoch=leader_epoch, control=True)


def looks_like_filler(header: BatchHeader) -> bool:
    """Whether the batch may be a filler, by its header alone. A gap batch looks the same."""
    return looks_like_gap(header)


def is_filler(batch: Buffer) -> bool:
    """Whether the whole, valid batch is a filler."""
    header = read_header(batch)
    if not looks_like_filler(header) or header.attributes & CODEC_MASK:
        return False
    record = next(iter_records(batch, bytes_max=FILLER_BYTES_MAX))
    return record.key == FILLER_KEY and record.offset == header.last_offset


def filler_from(batches: memoryview, offset: int) -> memoryview:
    """Returns the batches. If the first batch is a valid filler that contains `offset`, it is cut to begin at `offset`.
    A log that ends within the leader's filler thus continues with the rest of the filler."""
    if len(batches) < HEADER_SIZE:
        return batches
    header = read_header(batches)
    if not header.base_offset < offset < header.next_offset or header.size > len(batches):
        return batches
    try:
        check_stored(batches, 0, len(batches))
        if not is_filler(batches):
            return batches
    except CorruptBatch:
        return batches  # the caller's checks report the damage
    return memoryview(filler_batch(offset, header.next_offset, header.leader_epoch) + batches[header.size :])
