"""The indexes that a local log would have of some batches, as Kafka makes them: what a footer's room is told from."""

from __future__ import annotations

from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.segment_index import SegmentIndexer
from logformat.indexes.time_index import TimeIndex
from logformat.record_batch import LOG_OVERHEAD, Buffer, read_header


def local_indexes(base_offset: int, log: Buffer) -> tuple[OffsetIndex, TimeIndex]:
    """Of the batches in `log`, whose first offset is `base_offset`, in a segment that rolled."""
    indexer, view, position = SegmentIndexer(base_offset), memoryview(log), 0
    while position < len(view):
        header = read_header(view[position:])
        indexer.add_run((header,), header.base_offset, position)
        position += header.length + LOG_OVERHEAD
    indexer.seal()
    return indexer.offset_index, indexer.time_index
