"""Scanner of segments: reads batch by batch with every check, through one shared buffer.

`scan` stops at the first byte that does not belong to a whole, valid batch with the expected offset, and returns the
place and the reason. All batches before it were passed to the indexer and to `on_batch`.

Hot path: it reads 8 MiB at once and takes about 5 µs per batch besides the CRC (1.9 GB/s with 16 KB batches in the page
cache).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from errno import EIO
from typing import Final, NamedTuple

from hotstore.log.segment import Segment
from logformat.indexes.segment_index import SegmentIndexer
from logformat.record_batch import HEADER_SIZE, LENGTH_AT, LOG_OVERHEAD, BatchHeader, CorruptBatch, check_stored
from logformat.transaction_marker import TransactionMarker, marker_of, may_be_marker

SCAN_BUFFER_BYTES: Final = 8 << 20
BATCH_BYTES_MAX: Final = 1 << 28  # a request holds less, so a longer batch is damaged
_LENGTH: Final = struct.Struct(">i")


class Damage(NamedTuple):
    """The first invalid place of a segment: position, expected offset, and the fault."""

    position: int
    offset: int
    what: str


class Scanned(NamedTuple):
    """Result of a scan: the first `size` bytes are valid batches, which end at `end_offset`. `rewrite_from` is the
    position of the first batch at or above the durable offset; `size` if there is no such batch."""

    indexer: SegmentIndexer
    size: int
    end_offset: int
    first_timestamp_ms: int
    rewrite_from: int
    damage: Damage | None


class BatchScanner:
    """Scans segments one after the other. `on_batch` gets every valid header; it raises CorruptBatch to refuse the
    batch. If the batch is a transaction marker, `on_marker` gets it afterwards."""

    def __init__(
        self,
        on_batch: Callable[[BatchHeader], None],
        on_marker: Callable[[BatchHeader, TransactionMarker], None] = lambda _, __: None,
    ) -> None:
        self._on_batch = on_batch
        self._on_marker = on_marker
        self._buffer = bytearray()

    def scan(self, segment: Segment, file_size: int, durable_offset: int) -> Scanned:
        """Read the first `file_size` bytes. Damage is part of the result, so only OSError is raised."""
        self._reserve(file_size)
        indexer = SegmentIndexer(segment.base_offset, segment.interval_bytes)
        on_batch = self._on_batch
        expected = segment.base_offset
        first_timestamp_ms = -1
        rewrite_from: int | None = None
        damage: Damage | None = None
        start = 0  # position in the file of the buffer's first byte
        at = filled = 0  # positions in the buffer
        while start + at < file_size:
            if not self._holds_batch(at, filled) and start + filled < file_size:
                start, at = start + at, 0
                filled = self._fill(segment, start, file_size)
            try:
                header = check_stored(self._buffer, at, filled, offset_min=expected)
                if header.base_offset != expected:
                    raise CorruptBatch(f"batch has base offset {header.base_offset}, expected {expected}")
                on_batch(header)
                if may_be_marker(header) and (marker := marker_of(self._buffer, at, header)) is not None:
                    self._on_marker(header, marker)
            except CorruptBatch as error:
                damage = Damage(start + at, expected, str(error))
                break
            if rewrite_from is None and expected >= durable_offset:
                rewrite_from = start + at
            if start + at == 0:
                first_timestamp_ms = header.max_timestamp
            indexer.add_run((header,), expected, start + at)
            at += header.length + LOG_OVERHEAD
            expected += header.last_offset_delta + 1
        end = start + at
        rewrite_from = end if rewrite_from is None else rewrite_from
        return Scanned(indexer, end, expected, first_timestamp_ms, rewrite_from, damage)

    def rewrite(self, segment: Segment, start: int, end: int) -> None:
        """Write the bytes [start, end) over themselves, so that the next sync writes them. Raises OSError."""
        self._reserve(end - start)
        view = memoryview(self._buffer)
        while start < end:
            count = segment.file.read_into(start, view[: min(len(view), end - start)])
            if count == 0:
                raise OSError(EIO, "file became shorter", segment.file.path)
            segment.file.write_at(start, [view[:count]])
            start += count

    def _reserve(self, file_size: int) -> None:
        """Allocate the buffer, no larger than the file: a broker opens hundreds of small logs."""
        wanted = min(file_size, SCAN_BUFFER_BYTES)
        if len(self._buffer) < wanted:
            self._buffer = bytearray(wanted)

    def _holds_batch(self, at: int, filled: int) -> bool:
        """Whether the buffer has enough bytes at `at` to judge them: a whole batch, or a length that no batch can
        have."""
        if filled - at < HEADER_SIZE:
            return False
        (length,) = _LENGTH.unpack_from(self._buffer, at + LENGTH_AT)
        return bool(length + LOG_OVERHEAD <= filled - at)

    def _fill(self, segment: Segment, start: int, file_size: int) -> int:
        """Read from `start` into the buffer, which grows if a batch is larger."""
        wanted = min(len(self._buffer), file_size - start)
        filled = segment.file.read_into(start, memoryview(self._buffer)[:wanted])
        if self._holds_batch(0, filled) or filled < HEADER_SIZE:
            return filled
        (length,) = _LENGTH.unpack_from(self._buffer, LENGTH_AT)
        size = length + LOG_OVERHEAD
        if len(self._buffer) < size <= min(file_size - start, BATCH_BYTES_MAX):
            self._buffer = bytearray(size)
            filled = segment.file.read_into(start, memoryview(self._buffer))
        return filled
