"""Reads a segment object: positions of chunks and batches, and checked footers and chunks.

`fetch_chunk` checks length and CRC32C of a chunk against the segment's footer. `fetch_footer` refuses a footer that
names another key. `fetch_committed_footer` also refuses a footer that differs from the manifest's entry (C13). The
broker's cold reads and readers without a broker use it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
from crc32c import crc32c

from coldstore.checked_get import get_range
from coldstore.keys import SegmentKey
from coldstore.manifest.manifest_entries import RemoteSegment
from coldstore.object_store import ReadStore
from coldstore.segments.segment_object import SegmentFooter, entry_from_footer, footer_start, tail_bytes
from logformat.errors import Corrupt, InvalidRequest
from logformat.record_batch import HEADER_SIZE, Buffer, read_header, walk

BLOCK_BYTES: Final = 64 * 1024  # headers are read in blocks of this size, at least an index interval
_FETCH_TRIES: Final = 3  # a retry helps if a bit was flipped in transit


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────────
class ChunkRef(msgspec.Struct, frozen=True):
    """One chunk of a segment's log bytes: bytes `[position, position + length)` of the object `key`."""

    key: str
    index: int
    position: int
    length: int
    crc32c: int


def chunk_ref(footer: SegmentFooter, key: SegmentKey, index: int) -> ChunkRef:
    """Chunk number `index`, from 0. Raises InvalidRequest beyond the last one."""
    if not 0 <= index < len(footer.chunk_crcs):
        raise InvalidRequest(f"{key} has chunks 0 to {len(footer.chunk_crcs) - 1}, not {index}")
    position = index * footer.chunk_bytes
    length = min(footer.chunk_bytes, footer.log_bytes - position)
    return ChunkRef(str(key), index, position, length, footer.chunk_crcs[index])


def index_position(footer: SegmentFooter, offset: int) -> int:
    """The position of a batch at or before the one that holds `offset`. It is at most an index interval and a batch
    before it."""
    said = footer.statistics
    if not said.base_offset <= offset < said.end_offset:
        raise InvalidRequest(f"offset {offset} is not in the segment [{said.base_offset}, {said.end_offset})")
    return footer.offset_index.lookup(offset).position


def scan_offset(footer: SegmentFooter, timestamp_ms: int) -> int | None:
    """The base offset of a batch below which every record is older than `timestamp_ms`. None if all records of the
    segment are older.

    The first batch that may have a record of that time or later begins at most an index interval and a batch after
    it."""
    said = footer.statistics
    if said.max_timestamp_ms < timestamp_ms:
        return None
    # A time entry names the last record of the first batch that has its timestamp. No index holds the first offset of
    # that batch. Two index entries have offsets that are certainly below the batch: the previous entry of the time
    # index, and the entry of the offset index below the batch. Time entries are made together with offset entries, so
    # every batch between these two is older than `timestamp_ms`. The higher of the two is used. It is the offset entry
    # if many batches share a timestamp, e.g. if timestamps are whole seconds or days.
    older = footer.time_index.lookup(timestamp_ms - 1)
    first = said.base_offset if older.timestamp < 0 else older.offset + 1
    younger = footer.time_index.first_at(timestamp_ms)
    if younger is not None:
        below = footer.offset_index.lookup(younger.offset - 1)
        if below.position > 0:
            first = max(first, below.offset + 1)
    return first


def find_in_block(block: Buffer, position: int, offset: int) -> tuple[int, bool]:
    """Search `block` for the batch that holds `offset`, or for the first batch after it. A batch begins at the block's
    first byte, which is at `position` of the segment. Returns a position and whether the batch is there; otherwise the
    search continues there. Raises CorruptBatch at bytes that cannot begin a batch."""
    after = 0
    for at, header in walk(block):
        if header.next_offset > offset:
            return position + at, True
        after = at + header.size
    if len(block) - after >= HEADER_SIZE:  # the block has only a part of the last batch; `walk` checked its header
        header = read_header(block, after)
        if header.next_offset > offset:
            return position + after, True
        after += header.size
    return position + after, False


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────
def chunk_is_whole(chunk: ChunkRef, data: Buffer) -> bool:
    """Whether `data` is the chunk. Takes 0.5 ms for 4 MiB."""
    return len(data) == chunk.length and crc32c(data) == chunk.crc32c


async def fetch_chunk(store: ReadStore, chunk: ChunkRef) -> bytes:
    """The chunk's checked bytes, by a ranged GET. A wrong answer is retried.

    Raises Corrupt if the object is damaged in this chunk, ObjectMissing, StoreError."""
    why = ""
    for _ in range(_FETCH_TRIES):
        try:
            got = await get_range(store, chunk.key, chunk.position, chunk.length)
        except Corrupt as short:
            why = str(short)
            continue
        if chunk_is_whole(chunk, got.data):
            return got.data
        why = "its CRC differs"
    raise Corrupt(
        f"chunk {chunk.index} of {chunk.key} (bytes {chunk.position} to {chunk.position + chunk.length}) is damaged: "
        f"{why}; run `thermocline bucket verify --deep`"
    )


async def fetch_footer(
    store: ReadStore, key: SegmentKey, object_bytes: int, log_bytes: int | None = None
) -> SegmentFooter:
    """The footer of an object whose size is known from the manifest or a listing. It takes one tail GET, rarely a
    second one.

    With `log_bytes` of the manifest's entry it reads exactly the footer. A wrong answer is retried. Raises Corrupt
    (also if the size differs), NewerFormat, ObjectMissing, StoreError."""
    for _ in range(_FETCH_TRIES - 1):
        with suppress(Corrupt):
            return await _footer(store, key, object_bytes, log_bytes)
    return await _footer(store, key, object_bytes, log_bytes)


async def _footer(store: ReadStore, key: SegmentKey, object_bytes: int, log_bytes: int | None) -> SegmentFooter:
    got = await store.get(str(key), -tail_bytes(object_bytes, log_bytes))
    if got.size != object_bytes:
        raise Corrupt(f"object {key} has {got.size} bytes, but {object_bytes} were committed")
    tail = got.data
    start = footer_start(tail, object_bytes)
    if start < object_bytes - len(tail):
        tail = (await get_range(store, str(key), start, object_bytes - start)).data
    footer = SegmentFooter.parse(tail, object_bytes)
    footer.check_key(key)
    return footer


async def fetch_committed_footer(store: ReadStore, key: SegmentKey, entry: RemoteSegment) -> SegmentFooter:
    """The footer of the segment that a manifest names by `entry`. Raises the errors of `fetch_footer`. Raises Corrupt
    also if the object is not the committed one (C13)."""
    footer = await fetch_footer(store, key, entry.object_bytes, entry.log_bytes)
    if entry_from_footer(footer, key) != entry:
        raise Corrupt(f"object {key} is whole, but not the one the manifest names; was it replaced?")
    return footer
