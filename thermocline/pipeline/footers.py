"""Segment footers for threaded readers, and an offset index rebuilt from batch headers when the footer is damaged.

A rebuilt index covers the batches whose headers continue one another from the segment's base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest_entries import RemoteSegment
from coldstore.segments.segment_object import SegmentFooter, footer_start, tail_bytes
from coldstore.segments.segment_scanner import INDEX_INTERVAL_BYTES
from logformat.errors import Corrupt
from logformat.indexes.offset_index import OffsetIndex
from logformat.record_batch import HEADER_SIZE, INT32_MAX, LENGTH_MIN, MAGIC, read_header
from logformat.values import NewerFormat
from thermocline.pipeline.arrow_store import ArrowStore

_BLOCK_BYTES: Final = 4 * 1024 * 1024


def read_footer(
    store: ArrowStore, key: SegmentKey, segment: RemoteSegment, whole: pa.Buffer | None = None
) -> SegmentFooter:
    """The footer of `segment`'s object. `whole`: its bytes if already read. The key is not checked.

    A damaged footer is fetched once more, because the damage may have happened in transit. Raises Corrupt (also when
    the size differs from the manifest entry), NewerFormat, ObjectMissing, StoreError.
    """
    try:
        return _read_footer(store, key, segment, whole)
    except NewerFormat:
        raise
    except Corrupt:
        store.forget(str(key))
        return _read_footer(store, key, segment, None)


def _read_footer(store: ArrowStore, key: SegmentKey, segment: RemoteSegment, whole: pa.Buffer | None) -> SegmentFooter:
    object_bytes, size = segment.object_bytes, store.size(str(key))
    if size != object_bytes:
        raise Corrupt(f"the object has {size} bytes, but {object_bytes} were committed")
    if whole is None:
        wanted = tail_bytes(object_bytes, segment.log_bytes)
        whole = store.read(str(key), object_bytes - wanted, wanted)
    have = memoryview(whole)
    start = footer_start(have, object_bytes)
    if start < object_bytes - len(have):
        have = memoryview(store.read(str(key), start, object_bytes - start))
    return SegmentFooter.parse(bytes(have[len(have) - (object_bytes - start) :]), object_bytes)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """An index over log bytes `[0, log_bytes)`. The batches in these bytes end at `end_offset`. `why`: the reason why
    the index ends before the log's end; empty if it covers the whole log.
    """

    index: OffsetIndex
    log_bytes: int
    end_offset: int
    why: str


def rebuild_index(store: ArrowStore, key: SegmentKey, segment: RemoteSegment) -> Rebuilt:
    """Walk the batch headers of the whole object; reads all its log bytes. Raises ObjectMissing, StoreError."""
    index = OffsetIndex(segment.base_offset)
    end = min(segment.log_bytes, store.size(str(key)))
    position, expected, since = 0, segment.base_offset, 0
    block, block_start = memoryview(b""), 0
    while position < segment.log_bytes:
        if position + HEADER_SIZE > end:
            return Rebuilt(index, position, expected, f"the object has {end} of {segment.log_bytes} log bytes")
        if position + HEADER_SIZE > block_start + len(block):
            block_start = position
            block = memoryview(store.read(str(key), position, min(_BLOCK_BYTES, end - position)))
        header = read_header(block, position - block_start)
        after, delta = position + header.size, header.last_offset_delta
        if header.magic != MAGIC or header.length < LENGTH_MIN or header.base_offset != expected or delta < 0:
            return Rebuilt(index, position, expected, f"no batch begins at offset {expected}, where one is expected")
        if after > end:
            return Rebuilt(
                index, position, expected, f"its last batch ends at byte {after}, but the log bytes end at {end}"
            )
        if since > INDEX_INTERVAL_BYTES and header.last_offset - segment.base_offset <= INT32_MAX:
            index.append(header.last_offset, position)
            since = 0
        since += header.size
        position, expected = after, header.next_offset
    why = "" if expected == segment.end_offset else f"its batches end at offset {expected}"
    return Rebuilt(index, position, expected, why)
