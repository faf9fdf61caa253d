"""Appends to a log: as its leader, or as a follower that copies from one.

A leader assigns offsets within its reservation and checks the producers' sequences. A follower keeps the leader's
offsets, epochs and timestamps, and checks only that the batches continue its log (D28). Markers of open transactions
may use offsets that are reserved for them (TX24). Markers may be appended while the ballast is deleted (TX23), because
segments with open transactions cannot be uploaded. An append is one write of complete batches into one segment, or has
no effect. Callers check CRCs before an append.

Hot path: without the pwrite, `append_as_leader` costs 2 µs a run and 0.5 µs a batch, and with producer ids 3.3 µs and 1
µs (CPython 3.11). It therefore makes one write and one update of each part per run, and uses tuples instead of objects.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from hotstore.errors import (
    CoordinatorFenced,
    InvalidProducerEpoch,
    RecordListTooLarge,
    ReservationExhausted,
    RunCrossesSegments,
)
from hotstore.log.appender import check_continuity, must_roll
from hotstore.log.log_core import LogCore, LogState
from hotstore.log.producer_state import Admitted, Resent
from hotstore.log.segment import Segment
from hotstore.recovery.producer_files import replay
from logformat.errors import StorageFailed
from logformat.indexes.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from logformat.record_batch import (
    BASE_SEQUENCE,
    HEADER,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LENGTH,
    LOG_OVERHEAD,
    PLACE,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    BatchHeader,
    Fields,
    read_header,
    stamp_log_append_time,
)
from logformat.transaction_marker import TransactionMarker, marker_batch, marker_of, may_be_marker
from seams import crash_points

ABORTED_MAX: Final = 1 << 15
"""Most aborted transactions of one segment; together with the open ones (`OPEN_MAX`) they fit the 65 536 of an object's
footer (TX44)."""
_stamp: Final = PLACE.pack_into
_NOBODY: Final[Admitted] = {}


class Appended(NamedTuple):
    """Offsets of an append. `log_append_time_ms` is −1 if the batches keep their own timestamps."""

    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int


MarkerResult = int | CoordinatorFenced | InvalidProducerEpoch | ReservationExhausted
"""The offset of a marker, or the reason of its refusal."""


def marker_runs(markers: Sequence[TransactionMarker]) -> Iterator[Sequence[TransactionMarker]]:
    """All markers in order, in runs in which no producer occurs twice. The markers of a run are checked before the run
    is written. A producer's second marker must be checked after its first one was written."""
    start, seen = 0, set[int]()
    for at, marker in enumerate(markers):
        if marker.producer_id in seen:
            yield markers[start:at]
            start = at
            seen.clear()
        seen.add(marker.producer_id)
    if start < len(markers):
        yield markers[start:]


_appended: Callable[[tuple[int, int, bool, int]], Appended] = partial(tuple.__new__, Appended)


class LogAppend(LogCore):
    """The appending part of `PartitionLog`."""

    def append_as_leader(
        self, batches: Sequence[memoryview], headers: Sequence[Fields], leader_epoch: int, now_ms: int
    ) -> Appended:
        """Append a run of checked batches by one write. Offset, epoch and, if the topic is configured so, the time are
        stamped into their bytes.

        If the batches are a resend of remembered ones, they are not written, and their original offsets are returned.
        Raises the sequence errors, RecordListTooLarge, RunCrossesSegments, ReservationExhausted, LeaderEpochFenced,
        LogFull, LogFailed. After an error nothing was written, and the batches' bytes are unchanged. A refused run may
        have batches that would be accepted alone.
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
        if self.ballast.is_short and not self.config.uses_ballast:
            raise self._full(OSError(errno.ENOSPC, "No space left on device"))
        # One offset is kept for the marker of each open transaction (TX24).
        kept_back = len(self.producers.transactions.first_offsets)
        segment = self._segment_for_leader(size, end_offset, leader_epoch, now_ms, len(headers), kept_back)
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

    def append_transactional(self, batch: memoryview, header: Fields, leader_epoch: int, now_ms: int) -> Appended:
        """Append one batch of a transaction as the leader. If the producer has no open transaction, the batch begins
        one. A batch without sequence (TxnOffsetCommit) does not change the producer's remembered batches. The caller
        has verified the transaction (TX4). Raises the errors of `append_as_leader`, and TooManyTransactions.
        """
        producers, producer_id, epoch = self.producers, header[PRODUCER_ID], header[PRODUCER_EPOCH]
        if header[BASE_SEQUENCE] < 0:
            producers.check_epoch(producer_id, epoch)
        if not producers.has_open(producer_id, epoch):
            producers.check_may_begin(producer_id)
            marker_end = self.log_end_offset + header[LAST_OFFSET_DELTA] + 2
            if marker_end > self.assignable_end_offset:
                raise self._exhausted(marker_end)
        appended = self.append_as_leader((batch,), (header,), leader_epoch, now_ms)
        if not appended.duplicate:
            producers.began(producer_id, epoch, appended.base_offset, now_ms)
        return appended

    @property
    def assignable_end_offset(self) -> int:
        """End of the offsets for data: one reserved offset is kept for the marker of each open transaction (TX24)."""
        return self.reserved_end - len(self.producers.transactions.first_offsets)

    def append_markers(
        self, markers: Sequence[TransactionMarker], leader_epoch: int, now_ms: int
    ) -> list[MarkerResult]:
        """Write markers as the leader, in as few writes as segments allow. Returns each marker's offset, or the reason
        of its refusal. A marker of a producer without an open transaction is also written, because it fences lower
        epochs. No offset is kept for it, so `assignable_end_offset` limits it like data. ReservationExhausted is then
        the result of this marker only. A repeated marker without effect is not written if no offset is left; its result
        is then the last offset before the run. A deleted ballast does not prevent markers. Raises ReservationExhausted,
        LeaderEpochFenced, LogFull, LogFailed. After an error some markers may be written, and the caller may send all
        of them again."""
        if self.state is LogState.FAILED:
            raise self._offline()
        results: list[MarkerResult] = []
        for run in marker_runs(markers):
            placed, base = self.place_markers(run), self.log_end_offset
            written = [marker for marker, at in zip(run, placed, strict=True) if isinstance(at, int) and at >= base]
            if written:
                self._write_markers(written, leader_epoch, now_ms)
            results += placed
        return results

    def place_markers(self, run: Sequence[TransactionMarker]) -> list[MarkerResult]:
        """The results of `append_markers` for markers of different producers, computed before the write. If the write
        fails in the middle, the markers with offsets below the log's end are written."""
        results: list[MarkerResult] = []
        opened = self.producers.transactions.first_offsets
        count = ends = 0  # numbers of markers to write, and of open transactions that they end
        for marker in run:
            end_offset = self.log_end_offset + count + 1
            is_open = marker.producer_id in opened
            try:
                self.producers.check_marker(marker)
            except (CoordinatorFenced, InvalidProducerEpoch) as refused:
                results.append(refused)
                continue
            if not is_open and end_offset > self.assignable_end_offset + ends:
                came_before = self.producers.knows_marker(marker)
                results.append(
                    self.log_end_offset - 1 if came_before else self._exhausted(end_offset + len(opened) - ends)
                )
                continue
            results.append(end_offset - 1)
            count += 1
            ends += is_open
        return results

    def _write_markers(self, markers: Sequence[TransactionMarker], leader_epoch: int, now_ms: int) -> None:
        base = self.log_end_offset
        batches = [marker_batch(marker, base + at, leader_epoch, now_ms) for at, marker in enumerate(markers)]
        size, end_offset = sum(map(len, batches)), base + len(batches)
        try:
            segment = self._segment_for_leader(size, end_offset, leader_epoch, now_ms, len(batches))
        except (RunCrossesSegments, RecordListTooLarge):
            if len(markers) == 1:
                raise
            for marker in markers:
                self._write_markers((marker,), leader_epoch, now_ms)
            return
        headers = [read_header(batch) for batch in batches]
        self._write(segment, batches, size)
        self._written(segment, headers, size, end_offset, now_ms)
        if leader_epoch != self.leader_epoch:
            self._enter_epoch(leader_epoch, base)
        for at, marker in enumerate(markers):
            self._end_transaction(marker, base + at, now_ms)

    def _end_transaction(self, marker: TransactionMarker, offset: int, now_ms: int) -> None:
        """Record a marker that was written to the active segment."""
        aborted = self.producers.end_transaction(marker, offset, now_ms)
        if aborted is not None:
            self._active.add_aborted(aborted)

    def append_gap(self, batch: bytes, now_ms: int) -> Appended:
        """Write one gap batch (logformat.gap) as the leader of its epoch. Its offsets are fixed, begin at the log's
        end, and must be reserved. Raises the errors of `append_as_leader`."""
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
        """Append batches of the leader's log unchanged by one write. `records` has their bytes in any pieces, `headers`
        the header of each batch.

        The first batch must begin at the log's end, and each other batch at the end of the one before it. Epochs must
        not fall. Each new epoch enters the lineage with its first batch. Producer sequences are not checked. Raises
        DivergingAppend, LogFull, LogFailed, and CorruptBatch for a marker that cannot be parsed. After an error nothing
        was written."""
        if self.state is LogState.FAILED:
            raise self._offline()
        markers = _markers_of(records, headers)
        if self.ballast.is_short and len(markers) < len(headers) and not self.config.uses_ballast:
            raise self._full(OSError(errno.ENOSPC, "No space left on device"))
        size, end_offset = check_continuity(headers, self.log_end_offset, self.leader_epoch)
        # A batch of the leader's log is accepted even if it is larger than segment.bytes. It then gets a segment of its
        # own.
        segment = self._segment_for(min(size, self.config.segment_bytes), end_offset, now_ms)
        self._write_as_is(segment, records, headers, size, end_offset, now_ms)
        for header in headers:
            if header[PRODUCER_ID] >= 0:
                marker = markers.get(header.base_offset)
                if marker is None:
                    replay(self.producers, header, now_ms)
                else:
                    self._end_transaction(marker, header.base_offset, now_ms)

    def _exhausted(self, end_offset: int) -> ReservationExhausted:
        return ReservationExhausted(
            f"{self.topic}-{self.partition}: an append up to offset {end_offset} needs more offsets than are reserved; "
            "appends succeed again when the bucket answers",
            end_offset,
        )

    def _segment_for_leader(
        self, size: int, end_offset: int, leader_epoch: int, now_ms: int, count: int = 1, kept_back: int = 0
    ) -> Segment:
        """The segment for `count` batches of `size` bytes with offsets from the log's end to `end_offset`. After the
        append `kept_back` reserved offsets must remain."""
        if end_offset + kept_back > self.reserved_end:
            raise self._exhausted(end_offset + kept_back)
        if leader_epoch < self.leader_epoch:
            raise self._superseded(leader_epoch)
        return self._segment_for(size, end_offset, now_ms, count)

    def _segment_for(self, size: int, end_offset: int, now_ms: int, count: int = 1) -> Segment:
        """The active segment, after a roll if one is due. Raises RunCrossesSegments for several batches if a roll is
        due or may become due between them. The caller then appends each batch alone, so that each segment ends at the
        same offset as without runs."""
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
        aborted = segment.aborted
        rolls = rolls or (aborted is not None and len(aborted) >= ABORTED_MAX)
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
        """Write batches that have their epochs already. Each new epoch enters the lineage at its first batch."""
        self._write(segment, records, size)
        self._written(segment, headers, size, end_offset, now_ms)
        if headers[-1][LEADER_EPOCH] > self.leader_epoch:  # epochs never fall
            for header in headers:
                if header.leader_epoch > self.leader_epoch:
                    self._enter_epoch(header.leader_epoch, header.base_offset)

    def _write(self, segment: Segment, records: Sequence[memoryview | bytes], size: int) -> None:
        """Write at the end of `segment`. Raises LogFull, LogFailed."""
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
        """Move the log's end, after the batches were written to the active segment."""
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


_NO_MARKERS: Final[Mapping[int, TransactionMarker]] = {}


def _markers_of(
    records: Sequence[memoryview | bytes], headers: Sequence[BatchHeader]
) -> Mapping[int, TransactionMarker]:
    """The markers among the batches, by offset. `records` holds the bytes of the batches, in any pieces. Raises
    CorruptBatch."""
    for header in headers:
        if may_be_marker(header):
            break
    else:
        return _NO_MARKERS
    data = records[0] if len(records) == 1 else b"".join(records)
    found, at = {}, 0
    for header in headers:
        if may_be_marker(header) and (marker := marker_of(data, at, header)) is not None:
            found[header.base_offset] = marker
        at += header.size
    return found
