"""Gap batches: control batches for offsets without records (design 6, "A lost tail").

After a lost disk a client may have seen offsets up to the reserved end. These offsets are filled with control batches,
and are not assigned again. Each holds one control record of an unassigned type at the batch's last offset. A client
that starts anywhere in the gap reads this record, finds an unknown control type, and continues after the record.
(Batches without records have hung Sarama and KafkaJS.) The batches of `gap_batches` cover [first, end) without hole or
overlap; `gap_range` finds exactly those.
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

GAP_OFFSETS_MAX: Final = INT32_MAX  # of one batch, because its last offset delta is an int32
GAP_TYPE: Final = 0x7468  # "th"; Kafka has assigned 0 to 6
GAP_KEY: Final = struct.pack(">hh", 0, GAP_TYPE)  # as in every control record's key: version, type
_VALUE: Final = struct.Struct(">hi")  # as in a transaction marker, because old clients parse it for any type
_BATCH_BYTES_MAX: Final = 128  # bound for the header and one record of 25 bytes


def gap_batches(first: int, end: int, leader_epoch: int) -> Iterator[bytes]:
    """Whole batches for the offsets [first, end), in order, each of at most 2^31−1 offsets.

    A segment's indexes also reach only 2^31−1 offsets, so the caller rolls the segment before a batch whose last offset
    does not fit."""
    assert 0 <= first <= end, (first, end)
    while first < end:
        after = min(end, first + GAP_OFFSETS_MAX)
        record = Record(after - 1, NO_TIMESTAMP, GAP_KEY, _VALUE.pack(0, leader_epoch))
        yield encode_batch([record], base_offset=first, leader_epoch=leader_epoch, control=True)
        first = after


def looks_like_gap(header: BatchHeader) -> bool:
    """Whether the batch may be a gap, by its header alone: false for every batch a client can produce."""
    return (
        header.is_control
        and header.producer_id == NO_PRODUCER_ID
        and header.max_timestamp == NO_TIMESTAMP
        and header.record_count == 1
        and header.size <= _BATCH_BYTES_MAX
    )


def gap_range(buf: Buffer, pos: int = 0) -> tuple[int, int] | None:
    """(first, end) of the gap that the batch at `pos` declares; None for any other bytes. The caller checks the CRC
    (`check_stored`)."""
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
