"""One file of batches with its two indexes: where in it an offset lies.

Always true: [base_offset, end_offset) are the offsets of the file's first `size` bytes, whole batches all. While a
segment is active, and until its index files are written, its indexes live in `indexer`; afterwards they are loaded when
needed through an `IndexCache`. An index is only a hint: every entry is compared with the batch it points to, and an
index that lies is built again from the log, silently (reliability D7). Must not know: other segments, who reads.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hotstore.batch_walk import Found, find_batch, walk_headers
from hotstore.errors import DamagedLog
from hotstore.file_names import LOG, OFFSET_INDEX, TIME_INDEX, offset_file
from logformat.errors import Corrupt
from logformat.offset_index import OffsetIndex
from logformat.record_batch import NO_TIMESTAMP
from logformat.segment_index import SegmentIndexer
from logformat.time_index import TimeIndex, TimestampOffset
from seams.disk import Disk, File, read_file

INDEX_CACHE_BYTES: Final = 64 << 20


class SegmentIndexes(NamedTuple):
    offsets: OffsetIndex
    times: TimeIndex


class SegmentInfo(NamedTuple):
    """What others may know of a segment. Bytes; ms since 1970; offsets [base, end). −1: no record has a timestamp."""

    base_offset: int
    end_offset: int
    bytes: int
    max_timestamp_ms: int
    first_append_ms: int
    """When its first batch came, by the broker's clock; after a restart its first batch's timestamp stands in."""


class Segment:
    """State of one segment. Compared by identity."""

    __slots__ = (
        "_max_timestamp",
        "base_offset",
        "directory",
        "disk",
        "end_offset",
        "file",
        "first_append_ms",
        "indexer",
        "interval_bytes",
        "size",
    )

    def __init__(self, disk: Disk, directory: str, base_offset: int, file: File, interval_bytes: int) -> None:
        """An empty segment over an open, empty file; recovery sets the other fields of one that is not."""
        self.disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.file = file
        self.size = 0
        self.end_offset = base_offset
        self.first_append_ms: int | None = None
        self.interval_bytes = interval_bytes
        self.indexer: SegmentIndexer | None = SegmentIndexer(base_offset, interval_bytes)
        self._max_timestamp = TimestampOffset(NO_TIMESTAMP, base_offset)

    def __repr__(self) -> str:
        return f"Segment({self.file.path}, [{self.base_offset}, {self.end_offset}), {self.size} bytes)"

    @property
    def max_timestamp(self) -> TimestampOffset:
        """The greatest timestamp (ms, −1 none) and the last offset of the first batch that has it."""
        indexer = self.indexer  # read once: the loop may release it while a worker is here
        if indexer is not None:
            return TimestampOffset(indexer.max_timestamp, indexer.max_timestamp_offset)
        return self._max_timestamp

    @property
    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.base_offset, self.end_offset, self.size, self.max_timestamp.timestamp, self.first_append_ms or 0
        )

    def path_of(self, suffix: str) -> str:
        return f"{self.directory}/{offset_file(self.base_offset, suffix)}"

    def release_indexes(self, max_timestamp: TimestampOffset | None = None) -> None:
        """The index files are on disk: from now on the cache answers."""
        self._max_timestamp = self.max_timestamp if max_timestamp is None else max_timestamp
        self.indexer = None

    def locate(self, offset: int, cache: IndexCache) -> Found:
        """The batch that holds `offset`, base_offset ≤ offset < end_offset. Raises DamagedLog."""
        found = self._find(self.indexes(cache).offsets, offset)
        if found is None:
            found = self._find(self.rebuild_indexes(cache).offsets, offset)
        if found is None:
            raise DamagedLog(
                self.file.path, self.size, offset, "no batch holds this offset", "run `thermocline log dump` on it"
            )
        return found

    def rebuild_indexes(self, cache: IndexCache) -> SegmentIndexes:
        """Blocking: the index does not agree with the log, so the log makes a new one. Raises DamagedLog."""
        if self.indexer is None:
            return cache.rebuild(self)
        self.indexer = build_indexer(self, seal=False)
        return SegmentIndexes(self.indexer.offset_index, self.indexer.time_index)

    def indexes(self, cache: IndexCache) -> SegmentIndexes:
        indexer = self.indexer  # read once: the loop may release it while a worker is here
        if indexer is not None:
            return SegmentIndexes(indexer.offset_index, indexer.time_index)
        return cache.get(self)

    def _find(self, index: OffsetIndex, offset: int) -> Found | None:
        """None: the index is wrong, or there is no such batch."""
        try:
            entry = index.lookup(offset)
        except IndexError:
            # A worker looks while the loop appends: the index's two columns grow one after the other, and the entry
            # before the unfinished one is near enough.
            entry = index.lookup_position(self.size)
        try:
            found = find_batch(self.file, entry.position, self.size, entry.offset)
            if found is None or (entry.position > 0 and found.end_offset != entry.offset + 1):
                return None
            if found.end_offset <= offset:
                found = find_batch(self.file, found.position + found.size, self.size, offset)
        except DamagedLog:
            if entry.position == 0:
                raise  # nothing but the log itself can be wrong
            return None
        if found is None or not found.base_offset <= offset:
            return None
        return found


class IndexCache:
    """Indexes of sealed segments, least recently used out first. One for a whole data directory; bounded in bytes.

    Workers use it beside the loop: every step is one operation of a dict, so that a race costs a second load at worst.
    """

    def __init__(self, bytes_max: int = INDEX_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._loaded: dict[Segment, SegmentIndexes] = {}

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._loaded

    def get(self, segment: Segment) -> SegmentIndexes:
        """Blocking on a miss: reads both files, or builds the indexes again when they are missing or broken."""
        found = self._loaded.pop(segment, None)
        if found is not None:
            self._loaded[segment] = found
            return found
        try:
            return self._keep(segment, load_indexes(segment))
        except (Corrupt, FileNotFoundError):
            return self.rebuild(segment)

    def rebuild(self, segment: Segment) -> SegmentIndexes:
        """Blocking: from the log. Raises DamagedLog where the log itself cannot be walked."""
        self.drop(segment)
        indexer = build_indexer(segment)
        return self._keep(segment, SegmentIndexes(indexer.offset_index, indexer.time_index))

    def drop(self, segment: Segment) -> None:
        self._loaded.pop(segment, None)

    def _keep(self, segment: Segment, indexes: SegmentIndexes) -> SegmentIndexes:
        self._loaded[segment] = indexes
        entries = list(self._loaded.items())
        excess = sum(_weight(kept) for _, kept in entries) - self._bytes_max
        for oldest, kept in entries[:-1]:
            if excess <= 0:
                break
            self._loaded.pop(oldest, None)
            excess -= _weight(kept)
        return indexes


def load_indexes(segment: Segment) -> SegmentIndexes:
    """From the two files; raises Corrupt when they cannot be right, FileNotFoundError."""
    offsets = OffsetIndex(segment.base_offset, read_file(segment.disk, segment.path_of(OFFSET_INDEX)))
    times = TimeIndex(segment.base_offset, read_file(segment.disk, segment.path_of(TIME_INDEX)))
    last = max(offsets.last.offset, times.last.offset)
    if offsets.last.position > max(segment.size - 1, 0) or last > max(segment.end_offset - 1, segment.base_offset):
        raise Corrupt(f"indexes of {segment.file.path} point beyond its end")
    return SegmentIndexes(offsets, times)


def build_indexer(segment: Segment, *, seal: bool = True) -> SegmentIndexer:
    """Both indexes from the batch headers, as if they had just been appended (and the segment sealed)."""
    indexer = SegmentIndexer(segment.base_offset, segment.interval_bytes)
    for position, header in walk_headers(segment.file, 0, segment.size):
        indexer.add(header, position)
    if seal:
        indexer.seal()
    return indexer


def create_segment(disk: Disk, directory: str, base_offset: int, interval_bytes: int) -> Segment:
    """A new, empty segment file. Its name is durable after the directory is synced. Raises OSError.

    An empty file of that name is what an earlier attempt left, and is used; one with content raises DamagedLog.
    """
    path = f"{directory}/{offset_file(base_offset, LOG)}"
    file = disk.open(path, write=True, create=True)
    if file.size():
        raise DamagedLog(path, 0, base_offset, "a new segment's file has content already", "move it away")
    return Segment(disk, directory, base_offset, file, interval_bytes)


def _weight(indexes: SegmentIndexes) -> int:
    return 8 * len(indexes.offsets) + 12 * len(indexes.times) + 512
