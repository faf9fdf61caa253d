"""One partition's log on local disk: the interface for the broker and tiering.

This module opens and reads the log and deletes its oldest segments. `log_append` appends, `log_cut` truncates,
`log_swap` inserts cleaned segments. All methods are synchronous. Methods marked *blocking* run in workers, the others
on the loop. A method marked "beside the loop" may run at the same time as methods on the loop; a method marked "alone"
needs exclusive use of the log. `log_start ≤ local_log_start ≤ log_end`. Offsets are contiguous. Records below
`flushed_end_offset` survive a power cut.

Hot path: `read` at the tail costs 0.9 µs (CPython 3.11).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from hotstore.errors import OffsetOutOfRange
from hotstore.flush.durability import write_index_files, write_producer_files
from hotstore.host.ballast import Ballast
from hotstore.local_files import drop_segment_files
from hotstore.log.batch_walk import walk_headers
from hotstore.log.locator import LogSlice
from hotstore.log.log_append import Appended, LogAppend
from hotstore.log.log_config import LogConfig
from hotstore.log.log_core import LogState
from hotstore.log.log_cut import LogCut
from hotstore.log.log_swap import LogSwap
from hotstore.log.producer_state import Producers
from hotstore.log.segment import IndexCache, IndexNeeded, Segment, SegmentIndexes, SegmentInfo, create_segment
from hotstore.log.timestamps import TimestampedOffset, find_timestamp, greatest_timestamp
from hotstore.recovery.log_creation import Begin, make_directory
from hotstore.recovery.recovery import Recovered, RecoveryReport, recover
from logformat.indexes.transaction_index import AbortedTransaction
from logformat.transaction_marker import marker_of, may_be_marker
from seams.files.disk import Disk, FileRange

__all__ = ["Appended", "LogState", "PartitionLog"]


class PartitionLog(LogAppend, LogCut, LogSwap):
    """One log. Only `create` and `open` make it."""

    # --- made ---------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: str,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        *,
        staged: str,
        begin: Begin | None = None,
        cache: IndexCache | None = None,
        ballast: Ballast | None = None,
    ) -> PartitionLog:
        """Create an empty log in a new directory. Blocking. Durable when it returns. `staged`: see `make_directory`.
        Raises OSError."""
        begin, cache, ballast = begin or Begin(), cache or IndexCache(), ballast or Ballast(disk, path)
        make_directory(disk, path, staged, topic_id, begin)
        directory = disk.open_dir(path)
        try:
            segment = create_segment(directory, begin.offset, config.index_interval_bytes)
            producers = Producers(config.producer_id_expiration_ms, begin.producers)
            found = Recovered([segment], begin.offset, begin.epochs, producers, RecoveryReport())
            return cls(directory, topic, partition, topic_id, config, cache, found, ballast)
        except BaseException:
            directory.close()
            raise

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        recovery_point: int,
        log_start: int | None,
        clean: bool,
        now_ms: int,
        topic_id: bytes | None = None,
        cache: IndexCache | None = None,
        ballast: Ballast | None = None,
        high_watermark: int = 0,
    ) -> PartitionLog:
        """Recover an existing log. Blocking. If `log_start` is None, there is no checkpoint, and the first segment
        decides.

        Raises DamagedLog (Corrupt) for a log that must not be opened, ForeignLog for another `topic_id`, OSError."""
        cache, ballast = cache or IndexCache(), ballast or Ballast(disk, path)
        directory = disk.open_dir(path)
        try:
            found_id, found = recover(
                directory,
                config,
                recovery_point=recovery_point,
                log_start=log_start,
                clean=clean,
                now_ms=now_ms,
                topic_id=topic_id,
                cache=cache,
                high_watermark=high_watermark,
            )
            return cls(directory, topic, partition, found_id, config, cache, found, ballast)
        except BaseException:
            directory.close()
            raise

    # --- read ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, limit_offset: int, *, min_one: bool) -> LogSlice | None:
        """*Blocking*: as `read_loaded`, but an index is loaded or rebuilt first if it is needed."""
        while True:
            try:
                return self.read_loaded(offset, max_bytes, limit_offset, min_one=min_one)
            except IndexNeeded as needed:
                needed.load()

    def read_loaded(self, offset: int, max_bytes: int, limit_offset: int, *, min_one: bool) -> LogSlice | None:
        """Complete batches of one segment, from the batch that holds `offset`, below `limit_offset` (the high
        watermark).

        None if there is no record yet. The result has at most `max_bytes`. With `min_one` it has at least one batch;
        otherwise its length may be 0. Raises OffsetOutOfRange, LogFailed, DamagedLog if the headers cannot be read, and
        IndexNeeded. It may read headers from disk, but no index."""
        end = self.log_end_offset
        if limit_offset > end:
            limit_offset = end
        if offset >= limit_offset and offset <= end:
            return None
        segments = self._locator.segments
        if offset > end or offset < self.log_start_offset or offset < segments[0].base_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: offset {offset} is not in [{self.local_log_start_offset}, {end}]"
            )
        if self.state is LogState.FAILED:
            raise self._offline()
        return self._locator.slice(offset, max_bytes, limit_offset, min_one=min_one)

    def sound(self, found: LogSlice) -> LogSlice:
        """`found`, or its part before a known damage. Raises DamagedLog if `found` begins with the damage."""
        segment = self._locator.segment_at(found.segment_base)
        if segment.damage is None or segment.file is not found.file:
            return found
        return found._replace(length=segment.sound_bytes(found.position, found.length))

    @property
    def sound_end_offset(self) -> int:
        """The log's end, or the beginning of the first damage that reads have found."""
        found = (segment.damage.offset for segment in self._locator.segments if segment.damage is not None)
        return min(found, default=self.log_end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """The last stable offset: every transaction that began below it has a marker below the high watermark
        (TX21)."""
        transactions = self.producers.transactions
        return min(high_watermark, transactions.first_unstable(high_watermark)) if transactions else high_watermark

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions that overlap [start, end), without duplicates of (producer id, first offset) (TX33).
        Transactions that are still open are missing."""
        found: dict[tuple[int, int], AbortedTransaction] = {}
        for segment in self._locator.from_offset(start):
            index = segment.aborted
            if index is not None:
                for entry in index.overlapping(start, end):
                    found.setdefault((entry.producer_id, entry.first_offset), entry)
                if index.completes(end):
                    break
        return list(found.values())

    def markers_of(self, producer_ids: Collection[int], from_offset: int) -> dict[int, tuple[int, bool]]:
        """*Blocking*, beside the loop: the first marker of each producer id at or above `from_offset`, which is a
        batch's end. A result is the marker's offset and whether the marker commits. Headers are read until all markers
        are found. Raises DamagedLog, Corrupt.
        """
        wanted, found = set(producer_ids), {}
        for segment in self._locator.segments.copy() if wanted else ():
            if segment.end_offset <= from_offset:
                continue
            inside = from_offset > segment.base_offset
            position = segment.locate(from_offset, self._locator.cache).position if inside else 0
            for at, header in walk_headers(segment.file, position, segment.size):
                if header.producer_id in wanted and may_be_marker(header):
                    marker = marker_of(segment.file.read_at(at, header.size))
                    if marker is not None:
                        found[marker.producer_id] = header.base_offset, marker.is_commit
                        wanted.remove(marker.producer_id)
                        if not wanted:
                            return found
        return found

    def end_of(self, found: LogSlice, limit_offset: int) -> int:
        """The offset after a slice that was read up to `limit_offset`. May read a header from disk."""
        return self._locator.end_of(found, limit_offset)

    def is_checked(self, found: LogSlice) -> bool:
        """Whether `found` may be sent. If False, the caller calls `check` in a worker first."""
        segment = self._locator.segment_at(found.segment_base)
        return segment.file is not found.file or segment.is_checked(found.position, found.length)

    def check(self, found: LogSlice) -> None:
        """*Blocking*, beside the loop: verify the base offsets in `found`. If this raises DamagedLog, `sound` raises it
        from then on."""
        segment = self._locator.segment_at(found.segment_base)
        if segment.file is found.file:
            segment.check(found.position, found.length, self._locator.cache)

    def batch_ranges(self, start_offset: int, end_offset: int) -> list[FileRange]:
        """*Blocking*, unless start and end are those of segments: the complete batches with offsets in [start, end),
        one range for each file. Raises DamagedLog."""
        return self._locator.ranges(start_offset, end_offset)

    def batch_indexes(self, batches: FileRange, apart_max: int) -> SegmentIndexes | None:
        """*Blocking*: index entries of a range of `batch_ranges`. None if entries are more than `apart_max` bytes
        apart, or the file does not belong to the log any more. Raises DamagedLog."""
        return self._locator.indexes_of(batches, apart_max)

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """*Blocking*: the first local record that is not older than `timestamp` (ms)."""
        return find_timestamp(list(self._locator.segments), self._locator.cache, timestamp, self.local_log_start_offset)

    def max_timestamp(self) -> TimestampedOffset | None:
        """*Blocking*: the first local record with the greatest timestamp (ListOffsets −3)."""
        return greatest_timestamp(list(self._locator.segments), self._locator.cache)

    # --- segments -------------------------------------------------------------------------------------------------

    def sealed_segments(self) -> list[SegmentInfo]:
        """The sealed segments, oldest first. Those above `flushed_end_offset` are not durable yet (C6)."""
        return [segment.info for segment in self._locator.segments[:-1]]

    def segments_between(self, start: int, end: int) -> list[SegmentInfo]:
        """The segments with offsets in [start, end), oldest first, including the active segment."""
        return [segment.info for segment in self._locator.between(start, end)]

    def active_info(self) -> SegmentInfo:
        return self._active.info

    @property
    def oldest_unsealed_append_ms(self) -> int | None:
        """Time of the first append to the active segment (thermocline.seal.ms); None if the segment is empty."""
        return self._active.first_append_ms if self._active.size else None

    # --- shortened at the front ---------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> bool:
        """Hide the records below `offset` (at most the log's end) from readers, and drop the epochs of only such
        records. Returns whether the log start moved.

        The log start never moves back. Its checkpoint must be durable before local bytes below it are unlinked
        (`LogHost.checkpoint_start`)."""
        self.check_start(offset)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs = self.epochs.truncate_from_start(offset)
        self.owner.start_moved()
        return True

    def check_start(self, offset: int) -> None:
        """Raise OffsetOutOfRange if the log must not start at `offset`."""
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: cannot delete up to {offset}, because the log ends at "
                f"{self.log_end_offset}"
            )

    def delete_local_before(self, offset: int) -> list[Segment]:
        """Drop and return the sealed segments that end at or below `offset`. `unlink` removes their files.

        If the index files of a segment are not written yet, this segment and all later ones stay. Readers keep the
        files of their slices."""
        count = 0
        flushed = self.flushed_end_offset
        for segment in self._locator.segments[:-1]:
            if segment.end_offset > min(offset, flushed) or segment.indexer is not None:
                break
            count += 1
        dropped = self._locator.drop_first(count)
        self._leaving += [segment.base_offset for segment in dropped]
        self._sealed_bytes -= sum(segment.size for segment in dropped)
        return dropped

    @property
    def awaits_unlink(self) -> bool:
        """Whether files of dropped segments are still on disk."""
        return bool(self._leaving)

    def unlink(self) -> None:
        """*Blocking*, beside the loop: remove the files of dropped segments. After an OSError the next call continues
        with the same segment, so the segments on disk stay contiguous."""
        while self._leaving:
            drop_segment_files(self.directory, self._leaving[:1])
            del self._leaving[:1]

    @property
    def start_to_checkpoint(self) -> int:
        """The log start for a checkpoint, even if readers do not see it yet."""
        return max(self.log_start_offset, self.pending_start_offset)

    # --- closed -------------------------------------------------------------------------------------------------

    def close(self, clean: bool) -> None:
        """*Blocking*, alone: close the log. With `clean`, all data is synced, and indexes and producers are written, so
        that the next open needs no scan.

        Readers keep the files of their slices. After an OSError the stop is not clean, and the clean-shutdown marker
        must not be written."""
        with closing(self.directory):
            if clean and self.state is not LogState.FAILED:
                self._sync_all()
                assert self._active.indexer is not None
                self._active.indexer.seal()
                self._active.trim()
                write_index_files(self._active)
                write_producer_files(self.directory, self.producers.at(self.log_end_offset))
                self.directory.sync()
            self.ballast.preallocation.drop(self._active)
            for segment in self._locator.segments:
                segment.release_file()
