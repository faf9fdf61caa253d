"""The cleaner's engine: reads batches of open files, maps their keys, writes cleaned segments with both indexes.

`CleanerEngine` is the interface. The broker uses `engine_process.ProcessEngine`; `LocalEngine` works in the calling
thread on any `File`. All calls block, and only one thread at a time may call. An engine does not open paths or rename
files: the caller owns files, names and directories. The output of a pass takes effect when the caller swaps it in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from hotstore.cleaning.batch_reader import BatchReader, damage_in
from hotstore.cleaning.segment_writer import SegmentWriter
from logformat.compaction.rules import CleanRules, CleanStats
from logformat.compaction.rules import Mapped as Mapped
from logformat.errors import Corrupt, InvalidRequest, Retryable
from seams.files.disk import File
from seams.files.page_cache import drop, is_cold
from seams.rng import Rng

if TYPE_CHECKING:
    from logformat.compaction.batch_cleaner import BatchCleaner  # imports numba
    from logformat.compaction.offset_map import KeyMapper, OffsetMap


class CleanerLost(Retryable):
    """The engine's process died, or hung and was killed. The pass is over, and the next `begin` starts another process.

    The caller unlinks the output files and opens new ones for the next pass, because a killed process that waits for a
    disk may still finish a write to the old files.
    """


class CleanedSegment(msgspec.Struct, frozen=True):
    """A finished segment. Its three files are synced, but their names in the directory are not.

    `size` is in bytes. `end_offset` is the end of the batches that were read, because fillers stand for removed ones.
    `max_timestamp` is in ms; −1 if there is none. `max_timestamp_offset` is that of `SegmentIndexer`.
    """

    size: int
    end_offset: int
    max_timestamp: int
    max_timestamp_offset: int
    stats: CleanStats


class CleanerEngine(Protocol):
    """An engine for one pass at a time. A pass calls `begin`, then `map` until all keys are mapped or the map is full.
    For each segment it calls `begin_segment`, `clean` until all batches are read, and `finish_segment`. It always calls
    `end`.

    Raises OSError of a file (full disk: `seams.files.disk.is_full`) or of memory (ENOMEM), and CleanerLost. Raises
    DamagedLog with file, position and offset if the input is not complete, valid, contiguous batches. After an error
    the pass is over: only `end` and `begin` are allowed."""

    def begin(self, buffer_bytes: int, rules: CleanRules) -> None:
        """Begin a pass with an empty map of at most `buffer_bytes`. Ends a pass that was not ended."""
        ...

    def map(self, file: File, position: int, length: int) -> Mapped:
        """Map the keys of the complete batches in [`position`, `position` + `length`), but at least the first batch.

        If the map has no room for all keys of a batch, none of them is mapped. `length` must not reach beyond the
        segment's end."""
        ...

    def begin_segment(
        self, base_offset: int, interval_bytes: int, log: File, offset_index: File, time_index: File
    ) -> None:
        """Begin a cleaned segment in these files, which are truncated first. `interval_bytes`: index.interval.bytes."""
        ...

    def clean(self, file: File, position: int, length: int) -> int:
        """Clean the complete batches in [`position`, `position` + `length`), but at least the first batch. Returns
        their size in bytes.

        They continue the batches of the last call. The retained records are written to the segment."""
        ...

    def finish_segment(self) -> CleanedSegment:
        """Write the last filler and both indexes, sync the three files, and release them."""
        ...

    def end(self) -> None:
        """End the pass, finished or not, and free the memory of the map. Never raises."""
        ...

    def reap(self) -> None:
        """Forget a process that ended by itself between two passes. The caller calls this periodically, while no other
        call runs. Does not block, never raises."""
        ...

    def close(self) -> None:
        """Close the engine, from any thread. Running and later calls of `ProcessEngine` raise CleanerLost. This call
        never raises."""
        ...


_REFUSALS: Final = (Corrupt, InvalidRequest)  # errors that mean invalid bytes in a log


class LocalEngine:
    """A `CleanerEngine` in the calling thread, for tests, the simulation and the child process."""

    def __init__(self, rng: Rng) -> None:
        """`rng` makes the hash key of each pass."""
        self._rng = rng
        self._reader = BatchReader()
        self._pass: _Pass | None = None
        self._is_closed = False

    def begin(self, buffer_bytes: int, rules: CleanRules) -> None:
        from logformat.compaction.offset_map import KeyMapper, OffsetMap  # numba's import takes a second

        self.end()
        if self._is_closed:
            raise CleanerLost("the cleaner is closed")
        offsets = OffsetMap(buffer_bytes, self._rng.randrange(1 << 128).to_bytes(16, "big"))
        self._pass = _Pass(rules, offsets, KeyMapper(offsets, rules.aborted))

    def map(self, file: File, position: int, length: int) -> Mapped:
        running = self._running()
        assert running.segment is None, "all keys are mapped before the first segment begins"
        running.look_at(file, position, length)
        run = self._reader.read(file, position, length, running.mapped_offset)
        try:
            mapped = running.mapper.map(run.batches)
        except _REFUSALS as refusal:
            raise damage_in(run, refusal) from refusal
        running.mapped_offset = mapped.end_offset
        return mapped

    def begin_segment(
        self, base_offset: int, interval_bytes: int, log: File, offset_index: File, time_index: File
    ) -> None:
        from logformat.compaction.batch_cleaner import BatchCleaner

        running = self._running()
        cleaner = BatchCleaner(running.offsets, running.rules)
        writer = SegmentWriter(base_offset, interval_bytes, log, offset_index, time_index)
        running.segment = _OpenSegment(cleaner, writer, base_offset)

    def clean(self, file: File, position: int, length: int) -> int:
        segment, running = self._open_segment(), self._running()
        was_cold = running.look_at(file, position, length)
        segment.is_cold &= was_cold
        run = self._reader.read(file, position, length, segment.read_offset)
        try:
            kept = segment.cleaner.clean(run.batches)
        except _REFUSALS as refusal:
            raise damage_in(run, refusal) from refusal
        segment.writer.write(kept)
        segment.read_offset = run.end_offset
        if was_cold:
            _drop(file, position, len(run.batches))  # the pass does not read these bytes again
        return len(run.batches)

    def finish_segment(self) -> CleanedSegment:
        segment = self._open_segment()
        self._running().segment = None
        writer = segment.writer
        writer.write([segment.cleaner.finish()])
        assert writer.end_offset == segment.read_offset, (writer.end_offset, segment.read_offset)
        writer.finish()
        if segment.is_cold:
            writer.drop_cached()
        indexer = writer.indexer
        return CleanedSegment(
            writer.size, writer.end_offset, indexer.max_timestamp, indexer.max_timestamp_offset, segment.cleaner.stats
        )

    def end(self) -> None:
        running, self._pass = self._pass, None
        self._reader.release()
        if running is not None:
            running.offsets.close()

    def reap(self) -> None:
        """Does nothing: there is no process."""

    def close(self) -> None:
        self._is_closed = True  # the memory is freed by `end`, because another thread may use it

    def _running(self) -> _Pass:
        if self._is_closed:
            raise CleanerLost("the cleaner is closed")
        assert self._pass is not None, "no pass was begun"
        return self._pass

    def _open_segment(self) -> _OpenSegment:
        segment = self._running().segment
        assert segment is not None, "no segment was begun"
        return segment


@dataclass(slots=True)
class _OpenSegment:
    """A segment that is being written. `read_offset`: base offset of the next batches to clean. `is_cold`: none of the
    source files was in the page cache.
    """

    cleaner: BatchCleaner
    writer: SegmentWriter
    read_offset: int
    is_cold: bool = True


@dataclass(slots=True)
class _Pass:
    """A running pass. `mapped_offset`: base offset of the next batches to map; None before the first batch."""

    rules: CleanRules
    offsets: OffsetMap
    mapper: KeyMapper
    mapped_offset: int | None = None
    segment: _OpenSegment | None = None
    cold: dict[str, bool] = field(default_factory=dict)

    def look_at(self, file: File, position: int, length: int) -> bool:
        """Whether bytes of the file were missing in the page cache when the pass began to read it. If True, the pass
        drops its pages from the cache, because they would evict data that consumers read.
        """
        found = self.cold.get(file.path)
        if found is None:
            descriptor = file.descriptor()
            found = descriptor is not None and is_cold(descriptor, position, length) is True
            self.cold[file.path] = found
        return found


def _drop(file: File, position: int, length: int) -> None:
    descriptor = file.descriptor()
    if descriptor is not None:
        drop(descriptor, position, length)
