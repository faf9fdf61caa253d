"""Batches that stand for offsets which hold no record: a declared gap in a log (design 6, "A lost tail").

After a lost disk, offsets up to the reserved end may have been seen by somebody, so they are closed with control
batches instead of being given again. Each holds one control record of a type nobody has assigned, whose offset is the
batch's last: every client reads a record, finds a control type it does not know, and goes on behind it, from
wherever in the gap it asked. (Batches without any record have hung Sarama and KafkaJS.)
Always true: the batches of `gap_batches` cover [first, end) without hole or overlap; `gap_range` finds exactly those.
Must not know: why the gap exists, reservations, segments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from logformat.errors import Corrupt
from logformat.record_batch import (
    CODEC_MASK,
    INT32_MAX,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    read_header,
)
from logformat.records import Record, encode_batch, iter_records

GAP_OFFSETS_MAX: Final = INT32_MAX  # of one batch: its last offset delta is an int32
GAP_TYPE: Final = 0x7468  # "th"; Kafka has assigned 0 to 6
GAP_KEY: Final = struct.pack(">hh", 0, GAP_TYPE)  # as every control record's key: version, type
_VALUE: Final = struct.Struct(">hi")  # as an end-transaction marker's value, which old clients parse whatever the type
_BATCH_BYTES_MAX: Final = 128  # header and one record of 25 bytes, generously


def gap_batches(first: int, end: int, leader_epoch: int) -> Iterator[bytes]:
    """Whole batches for the offsets [first, end), in order, each of at most 2^31−1 offsets.

    A segment's indexes reach 2^31−1 offsets too: the caller rolls before a batch whose last offset does not fit.
    """
    assert 0 <= first <= end, (first, end)
    while first < end:
        after = min(end, first + GAP_OFFSETS_MAX)
        record = Record(after - 1, NO_TIMESTAMP, GAP_KEY, _VALUE.pack(0, leader_epoch))
        yield encode_batch([record], base_offset=first, leader_epoch=leader_epoch, control=True)
        first = after


def looks_like_gap(header: BatchHeader) -> bool:
    """Whether the batch may be a gap, by its header alone: cheap, and false for every batch a client can produce."""
    return (
        header.is_control
        and header.producer_id == NO_PRODUCER_ID
        and header.max_timestamp == NO_TIMESTAMP
        and header.record_count == 1
        and header.size <= _BATCH_BYTES_MAX
    )


def gap_range(buf: Buffer, pos: int = 0) -> tuple[int, int] | None:
    """(first, end) of the gap that the batch at `pos` declares, or None if it is another batch (or none at all).

    Its CRC is the caller's business (`check_stored`).
    """
    try:
        header = read_header(buf, pos)
        if not looks_like_gap(header) or header.attributes & CODEC_MASK:
            return None
        records = list(iter_records(buf, pos, bytes_max=_BATCH_BYTES_MAX))
    except Corrupt:
        return None
    if records[0].key != GAP_KEY or records[0].offset != header.last_offset:
        return None
    return header.base_offset, header.next_offset
