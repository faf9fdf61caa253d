"""Replaces a run of sealed segments by one cleaned segment of the same offsets.

The swap is one step on the loop: later reads use the cleaned segment. A worker then renames its files (`segment_swap`).
Until the worker is done, the small files of the cleaned segment count as not written, so retention stops before it.
Readers of a replaced segment keep its file. They may load an index of another segment meanwhile. Such an index is
rebuilt, because every entry is compared with its batch. A failure takes the log offline. When it is opened again, the
swap is finished or undone.
"""

from __future__ import annotations

from typing import NamedTuple

from hotstore.file_names import LOG, OFFSET_INDEX, TIME_INDEX
from hotstore.log.batch_walk import BatchPlace
from hotstore.log.log_core import LogCore
from hotstore.log.segment import Segment
from hotstore.recovery.segment_swap import cleaned_file, commit_swap, finish_swap, write_cleaned_transactions
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.segment_index import SegmentIndexer
from logformat.indexes.time_index import TimeIndex
from logformat.indexes.transaction_index import AbortedIndex
from seams.files.disk import read_in


class SegmentRun(NamedTuple):
    """Consecutive sealed segments that one cleaned segment replaces."""

    segments: tuple[Segment, ...]

    @property
    def base_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset


def aborted_of(run: SegmentRun) -> AbortedIndex | None:
    """The transaction index of the cleaned segment. It has all entries of the run's segments, because the markers of
    the run are kept. Entries of transactions without records have no effect.
    """
    found = AbortedIndex(entry for segment in run.segments if segment.aborted is not None for entry in segment.aborted)
    return found if len(found) else None


class LogSwap(LogCore):
    """The swapping part of `PartitionLog`."""

    def sealed_runs(self) -> list[Segment]:
        """The segments that a pass may read and replace, oldest first: sealed, with their small files written. The
        producers at their ends are also written. Without them recovery would need batches that the pass removed.
        """
        segments: list[Segment] = []
        pending = self.durability.pending_seals
        waiting = {seal.segment for seal in pending}  # a later write would replace the cleaned segment's files
        unwritten = min((seal.producers.end_offset for seal in pending if seal.producers is not None), default=None)
        for segment in self._locator.segments[:-1]:
            if segment.indexer is not None or segment.end_offset > self.flushed_end_offset or segment in waiting:
                break
            if unwritten is not None and segment.end_offset >= unwritten:
                break
            segments.append(segment)
        return segments

    def holds(self, run: SegmentRun) -> bool:
        """Whether the log still has exactly the segments of `run`."""
        first = self._locator.segment_of(run.base_offset)
        if first is not run.segments[0]:
            return False
        at = self._locator.segments.index(first)
        return tuple(self._locator.segments[at : at + len(run.segments)]) == run.segments

    def left_of(self, run: SegmentRun) -> SegmentRun:
        """The segments of `run` that the log still has. Retention may have deleted the first ones."""
        first = self._locator.segments[0].base_offset
        return SegmentRun(tuple(segment for segment in run.segments if segment.base_offset >= first))

    def place_of(self, segment: Segment, offset: int) -> BatchPlace:
        """*Blocking*, beside the loop: the batch that holds `offset` in a sealed segment. Raises DamagedLog."""
        return segment.locate(offset, self._locator.cache)

    def open_cleaned(self, run: SegmentRun, size: int) -> Segment:
        """*Blocking*: the cleaned segment for `run`, from its finished, synced files. Its transaction index is written
        here, because a full disk must not fail a swap that readers see. Raises OSError, Corrupt."""
        base, interval = run.base_offset, self.config.index_interval_bytes
        write_cleaned_transactions(self.directory, base, aborted_of(run))
        file = self.directory.open(cleaned_file(base, LOG), write=True)
        cleaned = Segment(self.directory, base, file, interval)
        offsets = OffsetIndex(base, read_in(self.directory, cleaned_file(base, OFFSET_INDEX)))
        times = TimeIndex(base, read_in(self.directory, cleaned_file(base, TIME_INDEX)))
        cleaned.indexer = SegmentIndexer.resume(offsets, times, size, interval)
        cleaned.size, cleaned.end_offset = size, run.end_offset
        cleaned.first_append_ms = run.segments[-1].first_append_ms
        return cleaned

    def swap_in(self, run: SegmentRun, cleaned: Segment) -> None:
        """Make reads use `cleaned` from now on. The caller calls `name_swapped` next."""
        assert self.holds(run), run
        cleaned.aborted = aborted_of(run)
        assert (cleaned.base_offset, cleaned.end_offset) == (run.base_offset, run.end_offset), (cleaned, run)
        self._locator.swap(run.segments, cleaned)
        self._sealed_bytes += cleaned.size - sum(segment.size for segment in run.segments)

    def name_swapped(self, run: SegmentRun) -> None:
        """*Blocking*: make the swap durable, and remove the files of the replaced segments. After a power cut a start
        may have to finish it. Raises OSError."""
        commit_swap(self.directory, run.base_offset)
        finish_swap(self.directory, run.base_offset, [segment.base_offset for segment in run.segments])
