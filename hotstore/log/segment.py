"""One file of batches with its two indexes: where in it an offset lies.

Always true: [base_offset, end_offset) are the offsets of the file's first `size` bytes, whole batches all. While a
segment is active, and until its index files are written, its indexes live in `indexer`; afterwards they are loaded when
needed through an `IndexCache`. An index is only a hint: every entry is compared with the batch it points to, and an
index that lies is built again from the log, silently (fault D7). Must not know: other segments, who reads.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hotstore.errors import DamagedLog
from hotstore.file_names import LOG, OFFSET_INDEX, TIME_INDEX, offset_file
from hotstore.log.batch_walk import RESTORE_HINT, BatchPlace, find_batch, walk_headers
from logformat.errors import Corrupt
from logformat.offset_index import OffsetIndex
from logformat.record_batch import HEADER_SIZE, NO_TIMESTAMP, read_header
from logformat.segment_index import SegmentIndexer
from logformat.time_index import TimeIndex, TimestampOffset
from seams.disk import ClosedFile, Directory, File, read_in

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


class _Checked(NamedTuple):
    """Bytes [start, end) of a segment hold batches whose offsets follow each other; `offset` is the one at `end`."""

    start: int
    end: int
    offset: int


class Segment:
    """State of one segment. Compared by identity."""

    __slots__ = (
        "_checked",
        "_max_timestamp",
        "ahead_bytes",
        "ahead_until",
        "base_offset",
        "damage",
        "directory",
        "end_offset",
        "file",
        "first_append_ms",
        "has_ahead",
        "indexer",
        "interval_bytes",
        "size",
        "trusted_bytes",
    )

    def __init__(self, directory: Directory, base_offset: int, file: File, interval_bytes: int) -> None:
        """An empty segment over an open, empty file; recovery sets the other fields of one that is not."""
        self.directory = directory
        self.base_offset = base_offset
        self.file = file
        self.size = 0
        self.end_offset = base_offset
        self.first_append_ms: int | None = None
        self.interval_bytes = interval_bytes
        self.indexer: SegmentIndexer | None = SegmentIndexer(base_offset, interval_bytes)
        self._max_timestamp = TimestampOffset(NO_TIMESTAMP, base_offset)
        self.trusted_bytes = 0
        """Below it nobody has read the batches since this process began: a clean stop, or a sync, vouched for them."""
        self.damage: DamagedLog | None = None
        self._checked = _Checked(0, 0, base_offset)
        self.ahead_until = 0
        """Where an append looks for room again (hotstore.ahead); 0 before the first one."""
        self.ahead_bytes = 0
        """What of it counts as held: 0 from the roll on."""
        self.has_ahead = False
        """Whether blocks may lie beyond its end: until `trim`."""

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

    def let_go(self) -> None:
        """Its log is closed. The file is closed by the last who holds it: a response may be half sent, and a descriptor
        that is closed meanwhile could be another file's when the kernel gets it."""
        self.file = ClosedFile(self.file.path)

    def trim(self) -> None:
        """*Blocking* (a few ms), when nothing is appended any more: give back room beyond its end. Raises OSError."""
        if self.has_ahead:
            self.file.truncate(self.size)
            self.has_ahead = False

    def name_of(self, suffix: str) -> str:
        return offset_file(self.base_offset, suffix)

    def release_indexes(self, max_timestamp: TimestampOffset | None = None) -> None:
        """The index files are on disk: from now on the cache answers."""
        self._max_timestamp = self.max_timestamp if max_timestamp is None else max_timestamp
        self.indexer = None

    def locate(self, offset: int, cache: IndexCache) -> BatchPlace:
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

    def is_checked(self, position: int, length: int) -> bool:
        """Whether the base offsets of the batches there are known to be what they were."""
        if position >= self.trusted_bytes:
            return True
        return self._checked.start <= position and min(position + length, self.trusted_bytes) <= self._checked.end

    def sound_bytes(self, position: int, length: int) -> int:
        """How many of `length` bytes lie before the damage that `check` found. Raises that DamagedLog where none do."""
        damage = self.damage
        if damage is None or not position <= damage.position < position + length:
            return length
        if damage.position == position:
            raise damage
        return damage.position - position

    def check(self, position: int, length: int, cache: IndexCache) -> None:
        """Blocking: compare the base offsets of the whole batches in [position, position + length) with each other.

        Kafka's format has no CRC over a batch's base offset: what a disk changed there would be told to readers. But
        each batch begins where the one before it ends, and an index entry or the segment's own base says where the
        first one does. Raises DamagedLog, as `sound_bytes` does from then on.
        """
        end = min(position + length, self.trusted_bytes, self.size)  # it may have been cut since it was asked for
        begin = checked = self._checked
        if not checked.start <= position <= checked.end:
            begin = self._indexed_start(position, cache)
        offset = begin.offset
        try:
            for at, header in walk_headers(self.file, begin.end, end) if begin.end < end else ():
                if header.base_offset != offset:
                    what = f"batch says offset {header.base_offset}, the one before it ends at {offset}"
                    raise DamagedLog(self.file.path, at, offset, what, RESTORE_HINT)
                offset = header.next_offset
        except DamagedLog as damage:
            self.damage = damage
            raise
        self._checked = _Checked(begin.start, max(begin.end, end), offset)

    def _indexed_start(self, position: int, cache: IndexCache) -> _Checked:
        """A batch at or before `position` whose base offset is certain."""
        entry = self.indexes(cache).offsets.lookup_position(position)
        if 0 < entry.position < self.size:
            first = read_header(self.file.read_at(entry.position, HEADER_SIZE))
            if first.last_offset == entry.offset:
                return _Checked(entry.position, entry.position, first.base_offset)
        return _Checked(0, 0, self.base_offset)

    def _find(self, index: OffsetIndex, offset: int) -> BatchPlace | None:
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
    offsets = OffsetIndex(segment.base_offset, read_in(segment.directory, segment.name_of(OFFSET_INDEX)))
    times = TimeIndex(segment.base_offset, read_in(segment.directory, segment.name_of(TIME_INDEX)))
    last = max(offsets.last.offset, times.last.offset)
    if offsets.last.position > max(segment.size - 1, 0) or last > max(segment.end_offset - 1, segment.base_offset):
        raise Corrupt(f"indexes of {segment.file.path} point beyond its end")
    return SegmentIndexes(offsets, times)


def build_indexer(segment: Segment, *, seal: bool = True) -> SegmentIndexer:
    """Both indexes from the batch headers, as if they had just been appended (and the segment sealed).

    Raises DamagedLog where offsets go back.
    """
    indexer = SegmentIndexer(segment.base_offset, segment.interval_bytes)
    end_offset = segment.base_offset
    for position, header in walk_headers(segment.file, 0, segment.size):
        if header.base_offset < end_offset:
            what = f"batch says offset {header.base_offset}, the one before it ends at {end_offset}"
            raise DamagedLog(segment.file.path, position, end_offset, what, RESTORE_HINT)
        indexer.add_run((header,), header.base_offset, position)
        end_offset = header.next_offset
    if seal:
        indexer.seal()
    return indexer


def create_segment(directory: Directory, base_offset: int, interval_bytes: int) -> Segment:
    """A new, empty segment file. Its name is durable after the directory is synced. Raises OSError.

    An empty file of that name is what an earlier attempt left, and is used; one with content raises DamagedLog.
    """
    file = directory.open(offset_file(base_offset, LOG), write=True, create=True)
    if file.size():
        raise DamagedLog(file.path, 0, base_offset, "a new segment's file has content already", "move it away")
    return Segment(directory, base_offset, file, interval_bytes)


def _weight(indexes: SegmentIndexes) -> int:
    return 8 * len(indexes.offsets) + 12 * len(indexes.times) + 512
