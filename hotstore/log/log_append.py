"""Appends to a log: as its leader, or as a follower that copies from one.
The leader assigns offsets. It is bound by the reservation and by the producers' sequences. A follower is bound by
neither (D28): it takes offsets, epochs and timestamps as they come, and requires only that the batches continue its
log. An append is one write of whole batches into one segment, or leaves no trace. Callers check CRCs before. Hot path:
`append_as_leader` costs 2 µs a run and 0.5 µs a batch besides the pwrite; with producer ids 3.3 and 1 µs (CPython
3.11). Therefore one write, one update of each part a run, and tuples instead of objects."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from hotstore.errors import ReservationExhausted, RunCrossesSegments
from hotstore.log.appender import check_continuity, must_roll
from hotstore.log.log_core import LogCore, LogState
from hotstore.log.producer_state import Admitted, Resent
from hotstore.log.segment import Segment
from hotstore.recovery.producer_files import replay
from logformat.errors import StorageFailed
from logformat.indexes.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from logformat.record_batch import (
    HEADER,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LENGTH,
    LOG_OVERHEAD,
    PLACE,
    PRODUCER_ID,
    BatchHeader,
    Fields,
    read_header,
    stamp_log_append_time,
)
from seams import crash_points

_stamp: Final = PLACE.pack_into
_NOBODY: Final[Admitted] = {}


class Appended(NamedTuple):
    """Offsets of an append; `log_append_time_ms` is −1 if the batches keep their own timestamps."""

    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int


_appended: Callable[[tuple[int, int, bool, int]], Appended] = partial(tuple.__new__, Appended)


class LogAppend(LogCore):
    """The appending part of `PartitionLog`."""

    def append_as_leader(
        self, batches: Sequence[memoryview], headers: Sequence[Fields], leader_epoch: int, now_ms: int
    ) -> Appended:
        """Write a run of checked batches at the log's end in one write; stamps them in place with offset, epoch and, if
        the topic asks for it, the time.

        A resend of remembered batches writes nothing and returns their first offsets. Raises the sequence errors,
        RecordListTooLarge, RunCrossesSegments, ReservationExhausted, LeaderEpochFenced, LogFull, LogFailed: nothing was
        written then, and the batches' bytes are unchanged. A refused run may hold batches that would be accepted alone.
        """
        if self.state is LogState.FAILED:
            raise self._offline()
        base = end_offset = self.log_end_offset
        size = 0
        has_producer = False
        for header in headers:
            size += header[LENGTH]
            end_offset += header[LAST_OFFSET_DELTA]
            if header[PRODUCER_ID] >= 0:
                has_producer = True
        size += LOG_OVERHEAD * len(headers)
        end_offset += len(headers)
        admitted = self.producers.admit(headers, base, now_ms) if has_producer else _NOBODY
        if isinstance(admitted, Resent):
            return Appended(admitted.first_offset, admitted.last_offset, True, -1)
        if self.ballast.is_short:
            raise self._full(OSError(errno.ENOSPC, "No space left on device"))
        segment = self._segment_for_leader(size, end_offset, leader_epoch, now_ms, len(headers))
        append_time_ms = now_ms if self.config.log_append_time else -1
        offset = base
        for batch, header in zip(batches, headers, strict=True):
            if append_time_ms >= 0:
                stamp_log_append_time(batch, 0, append_time_ms)
            _stamp(batch, 0, offset, header[LENGTH], leader_epoch)
            offset += header[LAST_OFFSET_DELTA] + 1
        try:
            self._write(segment, batches, size)
        except StorageFailed:
            for batch, header in zip(batches, headers, strict=True):
                HEADER.pack_into(batch, 0, *header)
            raise
        self._written(segment, headers, size, end_offset, now_ms, append_time_ms)
        if leader_epoch != self.leader_epoch:
            self._enter_epoch(leader_epoch, base)
        if has_producer:
            self.producers.record(admitted)
        return _appended((base, end_offset - 1, False, append_time_ms))

    def append_gap(self, batch: bytes, now_ms: int) -> Appended:
        """Write one gap batch (logformat.gap) as the leader of its epoch. It is bound by the reservation and keeps its
        own offsets, which begin at the log's end. Raises as `append_as_leader`."""
        if self.state is LogState.FAILED:
            raise self._offline()
        header = read_header(batch)
        assert header.base_offset == self.log_end_offset and header.size == len(batch), (header, self.log_end_offset)
        segment = self._segment_for_leader(header.size, header.next_offset, header.leader_epoch, now_ms)
        self._write_as_is(segment, (batch,), (header,), header.size, header.next_offset, now_ms)
        return Appended(header.base_offset, header.last_offset, False, -1)

    def append_as_follower(
        self, records: Sequence[memoryview | bytes], headers: Sequence[BatchHeader], now_ms: int
    ) -> None:
        """Write batches of the leader's log unchanged in one write: their bytes in any pieces, and the header of each.

        The first must begin at the log's end, each next one where the last ends, and epochs must not fall. Each new
        epoch enters the lineage with its first batch. Producer sequences are not checked. Raises DivergingAppend,
        LogFull, LogFailed: nothing was written then."""
        if self.state is LogState.FAILED:
            raise self._offline()
        if self.ballast.is_short:
            raise self._full(OSError(errno.ENOSPC, "No space left on device"))
        size, end_offset = check_continuity(headers, self.log_end_offset, self.leader_epoch)
        # A batch of the leader's log is accepted whatever segment.bytes is now; a larger one gets its own segment.
        segment = self._segment_for(min(size, self.config.segment_bytes), end_offset, now_ms)
        self._write_as_is(segment, records, headers, size, end_offset, now_ms)
        for header in headers:
            if header[PRODUCER_ID] >= 0:
                replay(self.producers, header, now_ms)

    def _segment_for_leader(
        self, size: int, end_offset: int, leader_epoch: int, now_ms: int, count: int = 1
    ) -> Segment:
        """The segment for `count` batches of `size` bytes, offsets from the log's end to `end_offset`."""
        if end_offset > self.reserved_end:
            raise ReservationExhausted(
                f"{self.topic}-{self.partition}: offsets below {end_offset} wanted, more than are reserved; the bucket "
                "must answer first",
                end_offset,
            )
        if leader_epoch < self.leader_epoch:
            raise self._superseded(leader_epoch)
        return self._segment_for(size, end_offset, now_ms, count)

    def _segment_for(self, size: int, end_offset: int, now_ms: int, count: int = 1) -> Segment:
        """The active segment, after a roll if one is due. Raises RunCrossesSegments if a roll is due before or,
        perhaps, within `count` batches: segments end where they would if each batch had come alone."""
        segment = self._active
        indexer = segment.indexer
        assert indexer is not None
        config, may_fill_index = self.config, segment.size + size > self._index_room_bytes
        rolls = must_roll(
            config,
            segment_base=segment.base_offset,
            segment_size=segment.size,
            first_append_ms=segment.first_append_ms,
            index_full=may_fill_index and indexer.is_full(config.segment_index_bytes),
            incoming_bytes=size,
            incoming_base=self.log_end_offset,
            incoming_end=end_offset,
            now_ms=now_ms,
        )
        if count > 1 and (
            rolls or (may_fill_index and indexer.is_full(config.segment_index_bytes - count * TIME_ENTRY_SIZE))
        ):  # each batch adds at most one entry
            raise RunCrossesSegments(f"{self.topic}-{self.partition}: a segment ends within a run of {count} batches")
        if not rolls:
            return segment
        self._roll()
        return self._active

    def _write_as_is(
        self,
        segment: Segment,
        records: Sequence[memoryview | bytes],
        headers: Sequence[BatchHeader],
        size: int,
        end_offset: int,
        now_ms: int,
    ) -> None:
        """Write batches that carry their epochs; each new epoch enters the lineage where it begins."""
        self._write(segment, records, size)
        self._written(segment, headers, size, end_offset, now_ms)
        if headers[-1][LEADER_EPOCH] > self.leader_epoch:  # epochs never fall
            for header in headers:
                if header.leader_epoch > self.leader_epoch:
                    self._enter_epoch(header.leader_epoch, header.base_offset)

    def _write(self, segment: Segment, records: Sequence[memoryview | bytes], size: int) -> None:
        """Raises LogFull, LogFailed."""
        end = segment.size + size
        if end > segment.preallocate_at:
            self.ballast.preallocation.take(segment, end, self.config.segment_bytes)
        try:
            written = segment.file.write_at(segment.size, records)
        except OSError as error:
            raise self._write_failed(error) from error
        assert written == size, (written, size)

    def _written(
        self,
        segment: Segment,
        headers: Sequence[Fields],
        size: int,
        end_offset: int,
        now_ms: int,
        append_time_ms: int = -1,
    ) -> None:
        """The batches were written to the active segment: move the log's end."""
        crash_points.reach("append.written")
        position = segment.size
        if position == 0:
            segment.first_append_ms = now_ms
        indexer = segment.indexer
        assert indexer is not None
        indexer.add_run(headers, self.log_end_offset, position, append_time_ms)
        segment.size = position = position + size
        segment.end_offset = self.log_end_offset = end_offset
        self._locator.appended(end_offset, position)
        durability = self.durability
        durability.written_bytes += size
        if durability.oldest_dirty_ms is None:
            durability.oldest_dirty_ms = now_ms
        if self.state is LogState.FULL:
            self.state = LogState.ONLINE
