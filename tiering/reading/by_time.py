"""Finds the first cold record at or after a timestamp, by manifest, footer's time index, and the records of a batch.

As in Kafka's ListOffsets, that is the first record, in offset order, at or above the log start whose timestamp is not
smaller. Segments and batches are skipped by their greatest timestamp. Worker threads read and decompress records.
"""

from __future__ import annotations

from coldstore.segments.segment_reader import scan_offset
from logformat.indexes.time_index import TimestampOffset
from logformat.record_batch import HEADER_SIZE, BatchHeader, Buffer, read_header, walk
from logformat.records import offset_for_timestamp
from seams.loop.workers import Lane, Workers
from tiering.reading.batch_slices import OpenSegment
from tiering.reading.loader import Loader, ManifestView

_BLOCK_BYTES = 256 << 10


async def find_by_timestamp(
    loader: Loader,
    manifests: ManifestView,
    workers: Workers,
    timestamp_ms: int,
    log_start_offset: int,
    before_offset: int,
) -> TimestampOffset | None:
    """The first record in [log_start_offset, before_offset) not older than `timestamp_ms`. Raises as cold reads do."""
    start = log_start_offset
    while True:
        entry = await manifests.find_by_timestamp(timestamp_ms, start)
        if entry is None or entry.base_offset >= before_offset:
            return None
        opened = await loader.open(manifests, entry)
        found = await _in_segment(loader, manifests, workers, opened, timestamp_ms, log_start_offset)
        if found is not None:
            return found if found.offset < before_offset else None
        start = entry.end_offset


async def _in_segment(
    loader: Loader,
    manifests: ManifestView,
    workers: Workers,
    opened: OpenSegment,
    timestamp_ms: int,
    offset_min: int,
) -> TimestampOffset | None:
    footer = opened.footer
    begin = scan_offset(footer, timestamp_ms)
    if begin is None:
        return None
    position = footer.offset_index.lookup(max(begin, offset_min)).position
    while position + HEADER_SIZE <= footer.log_bytes:
        length = min(_BLOCK_BYTES, footer.log_bytes - position)
        block = await loader.read(manifests, opened, position, length)
        headers = await workers.run(_headers, block, lane=Lane.COLD_READ)
        if not headers:  # one batch larger than a block
            size = read_header(block).size
            block = await loader.read(manifests, opened, position, min(size, footer.log_bytes - position))
            headers = await workers.run(_headers, block, lane=Lane.COLD_READ)
        for at, header in headers:
            if header.max_timestamp < timestamp_ms or header.next_offset <= offset_min:
                continue
            found = await workers.run(_in_batch, block, at, timestamp_ms, offset_min, lane=Lane.COLD_READ)
            if found is not None:
                return found
        if not headers:
            return None
        last_at, last = headers[-1]
        position += last_at + last.size
    return None


def _headers(block: Buffer) -> list[tuple[int, BatchHeader]]:
    return list(walk(block))


def _in_batch(block: Buffer, at: int, timestamp_ms: int, offset_min: int) -> TimestampOffset | None:
    return offset_for_timestamp(block, timestamp_ms, at, offset_min=offset_min)
