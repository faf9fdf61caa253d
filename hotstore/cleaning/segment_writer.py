"""Writes a cleaned segment: its batches, and both indexes with the entries that an append would make.

Batches are contiguous from the segment's base. They are written and synced in parts (`PartWriter`). So the last sync is
short, and the sync of a produce does not wait until a complete segment is synced.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from logformat.indexes.segment_index import SegmentIndexer
from logformat.record_batch import BASE_OFFSET, HEADER, INT32_MAX, LAST_OFFSET_DELTA, LENGTH, LOG_OVERHEAD, Fields
from seams.files.disk import Buffer, File
from seams.files.page_cache import drop
from seams.files.part_writer import PartWriter


class SegmentWriter:
    """The writer of one segment. It uses three open files of the caller, and never closes them."""

    def __init__(self, base_offset: int, interval_bytes: int, log: File, offset_index: File, time_index: File) -> None:
        """Truncates the files to 0 bytes. Raises OSError."""
        self._log = log
        self._offset_index = offset_index
        self._time_index = time_index
        self.indexer = SegmentIndexer(base_offset, interval_bytes)
        self.end_offset = base_offset
        self._parts = PartWriter(log)
        for file in (log, offset_index, time_index):
            file.truncate(0)

    @property
    def size(self) -> int:
        """Bytes of the segment so far."""
        return self._parts.size

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append complete batches. Raises OSError, with EFBIG if positions would not fit an index."""
        headers = [header for buffer in buffers for header in _headers_of(buffer)]
        if not headers:
            return
        first_offset = end_offset = self.end_offset
        for header in headers:
            assert header[BASE_OFFSET] == end_offset, (header, end_offset)
            end_offset += header[LAST_OFFSET_DELTA] + 1
        assert self.indexer.offset_index.fits(end_offset - 1), (self.indexer.offset_index.base_offset, end_offset)
        total = sum(map(len, buffers))
        if self.size + total > INT32_MAX:
            raise OSError(errno.EFBIG, "a cleaned segment exceeds 2 GiB", self._log.path)
        position = self.size
        self._parts.write(buffers)
        self.indexer.add_run(headers, first_offset, position)
        self.end_offset = end_offset

    def finish(self) -> None:
        """Write both indexes and sync the three files. Raises OSError."""
        self.indexer.seal()
        self._offset_index.write_at(0, [self.indexer.offset_index.to_bytes()])
        self._time_index.write_at(0, [self.indexer.time_index.to_bytes()])
        for file in (self._log, self._offset_index, self._time_index):
            file.sync()

    def drop_cached(self) -> None:
        """Drop the finished segment from the page cache."""
        if (descriptor := self._log.descriptor()) is not None:
            drop(descriptor, 0, 0)


def _headers_of(buffer: Buffer) -> list[Fields]:
    unpack = HEADER.unpack_from
    headers: list[Fields] = []
    at, end = 0, len(buffer)
    while at < end:
        fields: Fields = unpack(buffer, at)
        headers.append(fields)
        at += fields[LENGTH] + LOG_OVERHEAD
    assert at == end, (at, end)
    return headers
