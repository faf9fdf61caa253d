"""Downloads one object into the scratch file, and makes a new object of the cleaned bytes.

A download must match the object's CRC32C and the manifest's entry. Before an upload the cleaned bytes are scanned: CRC
of every batch, contiguous offsets, lineage. The footer describes the new content, with the producers at the range's end
and all decided transactions of the replaced objects. Memory: a piece of `READ_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from crc32c import crc32c

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import RemoteSegment
from coldstore.object_store import ObjectStore, Upload, answered_within
from coldstore.segments.segment_object import (
    Compacted,
    DecidedTransaction,
    SegmentFooter,
    build_footer,
    entry_from_footer,
)
from coldstore.segments.segment_scanner import SegmentScanner
from logformat.errors import Corrupt
from seams.files.disk import Buffer, File
from tiering.cleaning.cold_plan import READ_BYTES_MAX
from tiering.cleaning.scratch import ColdCleaning
from tiering.copying.segment_body import PIECE_BYTES, Body, entry_of

_TRIES: Final = 2  # a second read recovers from a bit flipped in transit


async def fetch_object(
    cleaning: ColdCleaning, store: ObjectStore, key: SegmentKey, entry: RemoteSegment, file: File, deadline_s: float
) -> SegmentFooter:
    """The whole object into `file` from position 0; its footer. Raises Corrupt, ObjectMissing, Retryable, OSError."""
    for _ in range(_TRIES - 1):
        try:
            return await _fetch(cleaning, store, key, entry, file, deadline_s)
        except Corrupt:
            continue
    return await _fetch(cleaning, store, key, entry, file, deadline_s)


async def _fetch(
    cleaning: ColdCleaning, store: ObjectStore, key: SegmentKey, entry: RemoteSegment, file: File, deadline_s: float
) -> SegmentFooter:
    size = entry.object_bytes
    count = -(-size // READ_BYTES_MAX)
    crc = position = 0
    await cleaning.step(file.truncate, 0)
    for number in range(count):
        length = size * (number + 1) // count - position
        async with answered_within(deadline_s, f"GET {key}"):
            got = await store.get(str(key), position, length)
        if got.size != size or len(got.data) != length:
            raise Corrupt(f"object {key} has {got.size} bytes, but {size} were committed")
        crc = await cleaning.step(_put, file, position, got.data, crc)
        position += length
        cleaning.counters.read_bytes += length
        del got
    if crc != entry.crc32c:
        raise Corrupt(f"object {key} has CRC32C {crc:#010x}, but {entry.crc32c:#010x} was committed")
    footer: SegmentFooter = await cleaning.step(_footer, file, entry)
    if entry_from_footer(footer, key) != entry:
        raise Corrupt(f"object {key} is whole, but not the one the manifest names; was it replaced?")
    return footer


def _put(file: File, position: int, data: bytes, crc: int) -> int:
    file.write_at(position, [data])
    return crc32c(data, crc)


def _footer(file: File, entry: RemoteSegment) -> SegmentFooter:
    tail = file.read_at(entry.log_bytes, entry.object_bytes - entry.log_bytes)
    return SegmentFooter.parse(tail, entry.object_bytes)


def is_unchanged(file: File, size: int, footer: SegmentFooter) -> bool:
    """*Blocking*: whether the cleaned bytes equal the object's, so that no record was removed."""
    return size == footer.log_bytes and _log_crc(file, size) == footer.statistics.log_crc32c


def _log_crc(file: File, size: int) -> int:
    crc = 0
    for piece in _pieces(file, size):
        crc = crc32c(piece, crc)
    return crc


def cleaned_body(
    key: SegmentKey,
    topic: str,
    file: File,
    size: int,
    end_offset: int,
    sources: Sequence[SegmentFooter],
    clean_end: int,
) -> Body:
    """*Blocking*: scan the cleaned bytes and make footer and entry. `sources`: footers of the replaced objects, in
    order; `clean_end`: the map knew all keys of the bucket below it. Raises Corrupt, OSError."""
    last = sources[-1]
    scanner = SegmentScanner(key.base_offset, size, lineage=last.lineage)
    for piece in _pieces(file, size):
        scanner.feed(piece)
    scan = scanner.finish(end_offset)
    transactions = decided_of(sources)
    footer = build_footer(
        key,
        topic,
        scan,
        lineage=last.lineage,
        producers=last.producer_state(),
        transactions=transactions,
        compacted=Compacted(clean_end, tuple(_uuids(sources))),
    )
    entry = entry_of(key, scan, footer, len(transactions))

    def again() -> Iterator[Buffer]:
        yield from _pieces(file, size)
        yield footer

    return Body(Upload(entry.object_bytes, entry.crc32c, again), entry)


def _uuids(sources: Sequence[SegmentFooter]) -> Iterator[UUID]:
    return (footer.statistics.uuid for footer in sources)


def decided_of(sources: Sequence[SegmentFooter]) -> list[DecidedTransaction]:
    """Each transaction once, although both objects list a transaction that crosses their border. An aborted transaction
    is listed as long as its marker exists, even without records, because a client that reads the marker looks for it.

    A leader that had lost its producer state may have recorded a later first offset for the same marker. A footer may
    list a transaction only once; the earlier first offset is right."""
    found = {(each.producer_id, each.first_offset): each for footer in sources for each in footer.transactions}
    latest_first = sorted(found.values(), key=lambda each: each.first_offset, reverse=True)
    return list({each.marker_offset: each for each in latest_first}.values())


def _pieces(file: File, size: int) -> Iterator[memoryview]:
    """The file's bytes in order, in one buffer: a piece is valid until the next one is requested."""
    buffer = memoryview(bytearray(min(PIECE_BYTES, size)))
    at = 0
    while at < size:
        piece = buffer[: min(len(buffer), size - at)]
        if file.read_into(at, piece) != len(piece):
            raise Corrupt(f"{file.path} ends before position {size}")
        yield piece
        at += len(piece)
