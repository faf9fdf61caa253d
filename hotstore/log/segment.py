"""One segment file with its two indexes.

Offsets [base_offset, end_offset) are in the file's first `size` bytes, in complete batches. Indexes are in `indexer`
until the index files are written. After that an `IndexCache` loads them. An index may be wrong: each entry is compared
with its batch, and a wrong index is rebuilt from the log (fault D7).

A rebuild reads the headers of the whole segment, so only workers load and rebuild. On the loop, `LoadedIndexes` raises
IndexNeeded instead. A rebuilt index is kept in the cache. It never replaces the `indexer` of an active segment, because
the loop may append to that during the rebuild.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from hotstore.errors import DamagedLog
from hotstore.file_names import LOG, OFFSET_INDEX, TIME_INDEX, offset_file
from hotstore.log.batch_walk import RESTORE_HINT, BatchPlace, find_batch, walk_headers
from logformat.errors import Corrupt, Retryable
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.segment_index import SegmentIndexer
from logformat.indexes.time_index import TimeIndex, TimestampOffset
from logformat.indexes.transaction_index import AbortedIndex, AbortedTransaction
from logformat.record_batch import HEADER_SIZE, NO_TIMESTAMP, read_header
from seams.files.disk import ClosedFile, Directory, File, read_in

INDEX_CACHE_BYTES: Final = 64 << 20
REACH_BYTES: Final = 1 << 20
"""Bytes read beyond `interval_bytes` to find a batch after an index entry: an older Kafka adds at most one entry for
each append. This is enough for 17 000 of the smallest batches, and takes 10 ms."""


class SegmentIndexes(NamedTuple):
    offsets: OffsetIndex
    times: TimeIndex
    rebuilt_end: int = 0
    """The indexes were rebuilt from the batches below this offset; 0: they were not rebuilt, and may be wrong."""


class IndexSource(Protocol):
    """Indexes of segments without an `indexer`, and rebuilt indexes of any segment."""

    def get(self, segment: Segment) -> SegmentIndexes: ...
    def rebuilt(self, segment: Segment, offset: int) -> SegmentIndexes: ...


class IndexNeeded(Retryable):
    """An index is not in memory, or the one in memory is wrong. A worker calls `load`, then the read is repeated."""

    def __init__(self, segment: Segment, cache: IndexCache, wrong_at: int | None = None) -> None:
        """`wrong_at`: an offset for which the index in memory is wrong."""
        super().__init__(
            f"{segment.file.path}: its index is {'not loaded' if wrong_at is None else 'wrong'}; read again"
        )
        self.segment = segment
        self._cache, self._wrong_at = cache, wrong_at

    def load(self) -> None:
        """Load or rebuild the index. Blocking. Raises OSError, and DamagedLog, which `LoadedIndexes` raises from then
        on: another rebuild would read the segment up to the same place."""
        segment = self.segment
        try:
            if self._wrong_at is None:
                self._cache.get(segment)
            else:
                self._cache.rebuilt(segment, self._wrong_at)
        except DamagedLog as damage:
            if self._wrong_at is None:
                segment.index_damage = damage
            else:
                segment.rebuild_damage = damage
            raise


class SegmentInfo(NamedTuple):
    """Public data of a segment with offsets [base, end). Times are in ms since 1970. The timestamp is −1 if no record
    has one."""

    base_offset: int
    end_offset: int
    bytes: int
    max_timestamp_ms: int
    first_append_ms: int
    """Arrival of its first batch by the broker's clock; after a restart its first batch's timestamp."""


class _Checked(NamedTuple):
    """Bytes [start, end) of a segment, whose batches have contiguous offsets. `offset`: the offset at `end`."""

    start: int
    end: int
    offset: int


@dataclass(slots=True, eq=False, repr=False)
class Segment:
    """State of one segment. A new segment is empty. Recovery sets the fields of an existing one. Segments are compared
    by identity."""

    directory: Directory
    base_offset: int
    file: File
    interval_bytes: int
    size: int = 0
    end_offset: int = field(init=False)
    first_append_ms: int | None = None
    indexer: SegmentIndexer | None = field(init=False)
    trusted_bytes: int = 0
    """End of the bytes whose batches this process has not read: a clean stop or an earlier sync covers them."""
    damage: DamagedLog | None = None
    index_damage: DamagedLog | None = None
    """The reason why its index could neither be loaded nor rebuilt."""
    rebuild_damage: DamagedLog | None = None
    """The reason why its index, which is wrong for some offsets, could not be rebuilt."""
    preallocate_at: int = 0
    """End at which an append preallocates again (host.preallocation); 0 before the first append."""
    preallocated_bytes: int = 0
    """Preallocated bytes that count against the budget: 0 after the roll."""
    has_preallocated: bool = False
    """Whether blocks may be allocated beyond its end, until `trim`."""
    aborted: AbortedIndex | None = None
    """Aborted transactions with a marker in this segment; None: none."""
    _max_timestamp: TimestampOffset = field(init=False)
    _checked: _Checked = field(init=False)

    def __post_init__(self) -> None:
        self.end_offset = self.base_offset
        self.indexer = SegmentIndexer(self.base_offset, self.interval_bytes)
        self._max_timestamp = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._checked = _Checked(0, 0, self.base_offset)

    def __repr__(self) -> str:
        return f"Segment({self.file.path}, [{self.base_offset}, {self.end_offset}), {self.size} bytes)"

    @property
    def max_timestamp(self) -> TimestampOffset:
        """The greatest timestamp in ms (−1 if there is none), and the last offset of the first batch that has it."""
        indexer = self.indexer  # read once, because the loop may set it to None meanwhile
        if indexer is not None:
            return TimestampOffset(indexer.max_timestamp, indexer.max_timestamp_offset)
        return self._max_timestamp

    @property
    def info(self) -> SegmentInfo:
        return SegmentInfo(
            self.base_offset, self.end_offset, self.size, self.max_timestamp.timestamp, self.first_append_ms or 0
        )

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Add an aborted transaction. Its marker has a higher offset than the markers of all earlier ones."""
        if self.aborted is None:
            self.aborted = AbortedIndex()
        self.aborted.add(transaction)

    def release_file(self) -> None:
        """Drop the reference to the file, because the log is closed. The last holder closes the file: the descriptor of
        a half-sent response must not be reused for another file."""
        self.file = ClosedFile(self.file.path)

    def trim(self) -> None:
        """*Blocking* (a few ms): free the blocks beyond the end, after the last append. Raises OSError."""
        if self.has_preallocated:
            self.file.truncate(self.size)
            self.has_preallocated = False

    def name_of(self, suffix: str) -> str:
        return offset_file(self.base_offset, suffix)

    def release_indexes(self, max_timestamp: TimestampOffset | None = None) -> None:
        """Use the cache from now on, because the index files are on disk."""
        self._max_timestamp = self.max_timestamp if max_timestamp is None else max_timestamp
        self.indexer = None

    def locate(self, offset: int, source: IndexSource) -> BatchPlace:
        """The batch that holds `offset` (base_offset ≤ offset < end_offset). Blocking, unless the source is
        `LoadedIndexes`. Raises DamagedLog, IndexNeeded."""
        indexes = self.indexes(source)
        while (found := self._find(indexes, offset)) is None:
            if offset < indexes.rebuilt_end:
                what, hint = "no batch holds this offset", "run `thermocline log dump` on it"
                raise DamagedLog(self.file.path, self.size, offset, what, hint)
            indexes = source.rebuilt(self, offset)
        return found

    def indexes(self, source: IndexSource) -> SegmentIndexes:
        indexer = self.indexer  # read once, because the loop may set it to None meanwhile
        if indexer is not None:
            return SegmentIndexes(indexer.offset_index, indexer.time_index)
        return source.get(self)

    def is_checked(self, position: int, length: int) -> bool:
        """Whether the base offsets of the batches in this range need no check any more."""
        if position >= self.trusted_bytes:
            return True
        return self._checked.start <= position and min(position + length, self.trusted_bytes) <= self._checked.end

    def sound_bytes(self, position: int, length: int) -> int:
        """Number of the `length` bytes from `position` that are before a known damage. Raises its DamagedLog if there
        are none."""
        damage = self.damage
        if damage is None or not position <= damage.position < position + length:
            return length
        if damage.position == position:
            raise _without_frames(damage)
        return damage.position - position

    def check(self, position: int, length: int, cache: IndexCache) -> None:
        """Verify the base offsets of the complete batches in [position, position + length). Blocking.

        Kafka's format has no CRC over a batch's base offset, so readers could get an offset that the disk changed. But
        each batch begins at the offset where the one before it ends. The first offset is known from an index entry or
        the segment's base. If this raises DamagedLog, `sound_bytes` raises it from then on."""
        end = min(position + length, self.trusted_bytes, self.size)  # the segment may have been truncated meanwhile
        begin = checked = self._checked
        if not checked.start <= position <= checked.end:
            begin = self._indexed_start(position, cache)
        offset = begin.offset
        try:
            for at, header in walk_headers(self.file, begin.end, end) if begin.end < end else ():
                if header.base_offset != offset:
                    what = f"batch says offset {header.base_offset}, but the one before it ends at {offset}"
                    raise DamagedLog(self.file.path, at, offset, what, RESTORE_HINT)
                offset = header.next_offset
        except DamagedLog as damage:
            self.damage = damage
            raise
        self._checked = _Checked(begin.start, max(begin.end, end), offset)

    def _indexed_start(self, position: int, cache: IndexCache) -> _Checked:
        """The start of a batch at or before `position` whose base offset is certain."""
        entry = self.indexes(cache).offsets.lookup_position(position)
        if 0 < entry.position < self.size:
            first = read_header(self.file.read_at(entry.position, HEADER_SIZE))
            if first.last_offset == entry.offset:
                return _Checked(entry.position, entry.position, first.base_offset)
        return _Checked(0, 0, self.base_offset)

    def _find(self, indexes: SegmentIndexes, offset: int) -> BatchPlace | None:
        """The batch that holds `offset`. None if the index is wrong, or there is no such batch."""
        index = indexes.offsets
        reach = self.size if indexes.rebuilt_end else self.interval_bytes + REACH_BYTES
        try:
            entry = index.lookup(offset)
        except IndexError:
            # A worker reads while the loop appends, and the index's two columns grow one after the other. The last
            # complete entry is near enough.
            entry = index.lookup_position(self.size)
        try:
            found = find_batch(self.file, entry.position, self.size, entry.offset)
            if found is None or (entry.position > 0 and found.end_offset != entry.offset + 1):
                return None
            if found.end_offset <= offset:
                found = find_batch(self.file, found.position + found.size, self.size, offset, reach_bytes=reach)
        except DamagedLog:
            if entry.position == 0:
                raise  # no index entry was used: the log itself is damaged
            return None
        if found is None or not found.base_offset <= offset:
            return None
        return found


class IndexCache:
    """LRU cache of the indexes of sealed segments, and of rebuilt indexes, for one data directory. It is bounded in
    bytes.

    Workers and the loop use it at the same time. Each step is one operation of a dict, so a race only causes a second
    load."""

    def __init__(self, bytes_max: int = INDEX_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._loaded: dict[Segment, SegmentIndexes] = {}

    def loaded(self, segment: Segment) -> SegmentIndexes | None:
        """The indexes of the whole segment, if they are in memory."""
        found = self._loaded.pop(segment, None)
        if found is None or found.rebuilt_end not in (0, segment.end_offset):  # rebuilt while the segment was active
            return None
        self._loaded[segment] = found
        return found

    def loaded_rebuilt(self, segment: Segment, offset: int) -> SegmentIndexes | None:
        """The indexes rebuilt from batches up to `offset` at least, if they are in memory. Those of an active segment
        lack the entries of appends since the rebuild. The `indexer` has these, and they are correct."""
        found = self._loaded.get(segment)
        return found if found is not None and offset < found.rebuilt_end else None

    def get(self, segment: Segment) -> SegmentIndexes:
        """The indexes of a segment. If they are not cached, this blocks: it reads both files, or rebuilds missing or
        broken indexes."""
        found = self.loaded(segment)
        if found is not None:
            return found
        try:
            return self._keep(segment, load_indexes(segment))
        except (Corrupt, FileNotFoundError):
            return self.rebuilt(segment, segment.base_offset)

    def rebuilt(self, segment: Segment, offset: int) -> SegmentIndexes:
        """The indexes, rebuilt from the headers of the batches up to `offset` at least. If they are not cached, this
        blocks. Raises DamagedLog if the headers cannot be read."""
        found = self.loaded_rebuilt(segment, offset)
        if found is None:
            end_offset = segment.end_offset  # read before the rebuild, because the loop may append meanwhile
            indexer = build_indexer(segment)
            found = self._keep(segment, SegmentIndexes(indexer.offset_index, indexer.time_index, end_offset))
        return found

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


class LoadedIndexes:
    """The indexes of a cache that are in memory, for the loop. It never reads a file."""

    __slots__ = ("_cache",)

    def __init__(self, cache: IndexCache) -> None:
        self._cache = cache

    def get(self, segment: Segment) -> SegmentIndexes:
        """The indexes of a segment. Raises IndexNeeded, and the damage that a load met."""
        found = self._cache.loaded(segment)
        if found is None:
            if segment.index_damage is not None:
                raise _without_frames(segment.index_damage)
            raise IndexNeeded(segment, self._cache)
        return found

    def rebuilt(self, segment: Segment, offset: int) -> SegmentIndexes:
        """The rebuilt indexes of a segment. Raises IndexNeeded, and the damage that a rebuild met."""
        found = self._cache.loaded_rebuilt(segment, offset)
        if found is None:
            if segment.rebuild_damage is not None:
                raise _without_frames(segment.rebuild_damage)
            raise IndexNeeded(segment, self._cache, offset)
        return found


def _without_frames(damage: DamagedLog) -> DamagedLog:
    """For another raise. Otherwise the error would keep the frames of every read that met it."""
    return damage.with_traceback(None)


def load_indexes(segment: Segment) -> SegmentIndexes:
    """Read the indexes from their two files. Raises Corrupt if they cannot be correct, FileNotFoundError."""
    offsets = OffsetIndex(segment.base_offset, read_in(segment.directory, segment.name_of(OFFSET_INDEX)))
    times = TimeIndex(segment.base_offset, read_in(segment.directory, segment.name_of(TIME_INDEX)))
    last = max(offsets.last.offset, times.last.offset)
    if offsets.last.position > max(segment.size - 1, 0) or last > max(segment.end_offset - 1, segment.base_offset):
        raise Corrupt(f"indexes of {segment.file.path} point beyond its end")
    return SegmentIndexes(offsets, times)


def build_indexer(segment: Segment) -> SegmentIndexer:
    """Both indexes from the batch headers, as appends and the seal would make them. Raises DamagedLog if offsets go
    back, or are too far from the segment's base: no checksum covers a batch's base offset."""
    indexer = SegmentIndexer(segment.base_offset, segment.interval_bytes)
    end_offset = segment.base_offset
    for position, header in walk_headers(segment.file, 0, segment.size):
        if header.base_offset < end_offset:
            what = f"batch says offset {header.base_offset}, but the one before it ends at {end_offset}"
            raise DamagedLog(segment.file.path, position, end_offset, what, RESTORE_HINT)
        if not indexer.offset_index.fits(header.next_offset - 1):
            what = f"batch says offset {header.base_offset}, but the segment begins at {segment.base_offset}"
            raise DamagedLog(segment.file.path, position, end_offset, what, RESTORE_HINT)
        indexer.add_run((header,), header.base_offset, position)
        end_offset = header.next_offset
    indexer.seal()
    return indexer


def create_segment(directory: Directory, base_offset: int, interval_bytes: int) -> Segment:
    """Create a new, empty segment file. Its name is durable after the directory is synced. Raises OSError.

    An empty file of that name is left from an earlier attempt, and is used. If the file has content, this raises
    DamagedLog."""
    file = directory.open(offset_file(base_offset, LOG), write=True, create=True)
    if file.size():
        raise DamagedLog(file.path, 0, base_offset, "a new segment's file has content already", "move it away")
    return Segment(directory, base_offset, file, interval_bytes)


def _weight(indexes: SegmentIndexes) -> int:
    return 8 * len(indexes.offsets) + 12 * len(indexes.times) + 512
