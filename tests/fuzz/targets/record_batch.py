"""Batch headers: what a producer may send, what may lie in a log, and walking over many of them.

Always true: a batch that `check_batch` takes `check_stored` takes too; `walk`, `whole_batches_end` and the walk over a
file stop at the same byte. Input: log bytes; run as they are, and with every batch's CRC made right.
"""

from __future__ import annotations

import contextlib
import struct

from crc32c import crc32c

from hotstore.errors import DamagedLog
from hotstore.log.batch_walk import find_batch, walk_headers, whole_batches
from logformat.errors import InvalidRequest
from logformat.gap import gap_batches, gap_range
from logformat.record_batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD,
    Codec,
    CorruptBatch,
    UnsupportedCodec,
    check_batch,
    check_stored,
    walk,
    whole_batches_end,
)
from logformat.records import Record, encode_batch
from logformat.transaction_marker import marker_of
from tests.support.repository import golden


class BytesFile:
    """As much of `seams.files.disk.File` as a walk needs."""

    path = "fuzzed.log"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_at(self, position: int, length: int) -> bytes:
        assert position >= 0 and length >= 0, (position, length)
        return self._data[position : position + length]


def seeds() -> list[bytes]:
    records = [Record(n, 1_700_000_000_000 + n, b"k%d" % n, bytes(n * 5), (("h", b"v"), ("g", None))) for n in range(6)]
    made = [encode_batch(records, codec=codec, base_sequence=3, producer_id=9, producer_epoch=0) for codec in Codec]
    made.append(encode_batch(records[:2]) + encode_batch([Record(2, 5, None, None)]))
    made.append(encode_batch(records[2:4], base_offset=0, last_offset=9, transactional=True, producer_id=4))
    made.append(b"".join(gap_batches(3, 90, 1)))
    made.append(encode_batch(records[:1])[:-3])
    made.append(golden("consumer_offsets_kafka_4_3_1.log")[:700])
    return made


def run(data: bytes) -> None:
    _run(data)
    _run(resealed(data))


def resealed(data: bytes) -> bytes:
    """`data` with the right CRC in every batch that a plain walk finds."""
    out = bytearray(data)
    at = 0
    while len(out) - at >= HEADER_SIZE:
        (length,) = struct.unpack_from(">i", out, at + LENGTH_AT)
        after = at + LOG_OVERHEAD + length
        if length < HEADER_SIZE - LOG_OVERHEAD or after > len(out):
            break
        out[at + CRC_AT : at + ATTRIBUTES_AT] = crc32c(memoryview(out)[at + ATTRIBUTES_AT : after]).to_bytes(4, "big")
        at = after
    return bytes(out)


def _run(data: bytes) -> None:
    _produced(data)
    ends: list[int] = []
    broken = False
    try:
        ends = [position + header.size for position, header in walk(data)]
    except CorruptBatch:
        broken = True
    if not broken:
        end = ends[-1] if ends else 0
        assert whole_batches_end(data) == end, (whole_batches_end(data), end)
        _from_file(data, end)
    at = 0
    for end in ends:
        with contextlib.suppress(CorruptBatch):
            header = check_stored(data, at, len(data))
            assert at + header.size == end
            assert header.next_offset > header.last_offset >= header.base_offset >= 0
            gap = gap_range(data, at)
            assert gap is None or gap == (header.base_offset, header.next_offset)
            marker = marker_of(data, at, header)
            assert marker is None or (marker.producer_id, gap) == (header.producer_id, None)
        at = end


def _produced(data: bytes) -> None:
    try:
        header = check_batch(data, 0, len(data), bytes_max=1 << 20, timestamp_max=2**50, allow_transactional=True)
    except (CorruptBatch, InvalidRequest):
        return
    assert check_stored(data, 0, len(data)) == header
    assert header.codec in Codec and header.size <= len(data) and header.record_count == header.next_offset
    with contextlib.suppress(UnsupportedCodec):
        _ = (header.codec, header.timestamp_type, header.lacks_max_timestamp)


def _from_file(data: bytes, end: int) -> None:
    file = BytesFile(data)
    try:
        found = [(position, header) for position, header in walk_headers(file, 0, end, 4096)]  # type: ignore[arg-type]
    except DamagedLog:
        return
    assert found == list(walk(data, 0, end))
    assert whole_batches(file, 0, end, 1 << 20) == end  # type: ignore[arg-type]
    for position, header in found[:3]:
        if header.last_offset_delta < 0:
            continue
        with contextlib.suppress(DamagedLog):
            place = find_batch(file, 0, end, header.last_offset, 4096)  # type: ignore[arg-type]
            assert place is not None and place.position <= position
