"""How batches get to the log's end: as its leader appends them, or as its follower copies them.

Owns the two modes. The leader gives offsets, and is bound by what it may give (the reservation) and by what producers
sent before (sequences). The follower has neither (D28): what its leader appended is in the log whatever a rule of
today says, so offsets, epochs and times stay as they came, and all that is asked is that the batches continue this log.
Always true: an append is one write of whole batches or leaves no trace; the batches of one append lie in one segment.
Must not know: acknowledgements, where the bytes came from, whether their CRCs are right (whoever calls checked them).

Hot path: `append_as_leader` of one batch costs 4.2 µs besides its pwrite, 5.7 µs with a producer id (CPython 3.11); it
therefore calls machines with plain values.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple

from hotstore.appender import Placement, continued, place, roll_reason
from hotstore.errors import ReservationExhausted
from hotstore.log_core import LogCore, LogState
from hotstore.producer_files import replay
from hotstore.segment import Segment
from hotstore.stamping import put_back, stamp_all
from logformat.record_batch import LOG_OVERHEAD, BatchHeader, read_header
from seams import crash_points


class Appended(NamedTuple):
    """Offsets an append got; `log_append_time_ms` −1 where the batches keep their own timestamps."""

    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int


class LogAppend(LogCore):
    """See the module."""

    def append_as_leader(
        self, batches: Sequence[memoryview], headers: Sequence[BatchHeader], leader_epoch: int, now_ms: int
    ) -> Appended:
        """Write checked batches, each with its header, at the log's end by one write; they are stamped in place with
        offset, epoch and, where the topic wants it, the time.

        Resends of remembered batches write nothing and answer their first offsets. Raises the sequence errors,
        RecordListTooLarge, ReservationExhausted, LeaderEpochFenced, LogFull, LogFailed: nothing was written then.
        """
        if self.state is LogState.FAILED:
            raise self._offline()
        known = self._resent(headers, now_ms)
        if known is not None:
            return known
        if self.ballast.is_short:
            raise self._full(OSError(errno.ENOSPC, "No space left on device"))
        append_time_ms = now_ms if self.config.log_append_time else -1
        base = self.log_end_offset
        placement = place(headers, base, leader_epoch, append_time_ms)
        headers, size, end_offset = placement
        assert size == sum(map(len, batches)), (size, [*map(len, batches)])
        segment = self._to_give(size, end_offset, leader_epoch, now_ms)
        as_sent = stamp_all(batches, headers, leader_epoch, append_time_ms)
        try:
            segment.file.write_at(segment.size, batches)
        except OSError as error:
            put_back(batches, as_sent)
            raise self._write_failed(error) from error
        self._written(segment, placement, now_ms)
        if leader_epoch != self._leader_epoch:
            self._enter_epoch(leader_epoch, base)
        for header in headers:
            if header.producer_id >= 0:
                self.producers.record(header, header.base_offset, now_ms)
        return Appended(base, end_offset - 1, False, append_time_ms)

    def append_gap(self, batch: bytes, now_ms: int) -> Appended:
        """Write one gap batch (logformat.gap) as the leader of its epoch: bound by the reservation like any append, but
        final as it is, since it names the very offsets it declares lost, which begin at the log's end.

        Raises as `append_as_leader`.
        """
        if self.state is LogState.FAILED:
            raise self._offline()
        header = read_header(batch)
        assert header.base_offset == self.log_end_offset and header.size == len(batch), (header, self.log_end_offset)
        placement = Placement([header], len(batch), header.next_offset)
        segment = self._to_give(placement.size, placement.end_offset, header.leader_epoch, now_ms)
        self._write_as_is(segment, placement, (batch,), now_ms)
        return Appended(header.base_offset, header.last_offset, False, -1)

    def append_as_follower(
        self, batches: Sequence[memoryview | bytes], headers: Sequence[BatchHeader], now_ms: int
    ) -> None:
        """Write batches of the leader's log, each with its header, as they are, by one write.

        They continue this log: the first begins at its end, each next one where the one before it ends, and no epoch is
        below the one before. They may span several epochs, each of which enters the lineage with its first batch. A
        producer's sequence is taken as it comes. Raises DivergingAppend, LogFull, LogFailed: nothing was written then.
        """
        if self.state is LogState.FAILED:
            raise self._offline()
        if self.ballast.is_short:
            raise self._full(OSError(errno.ENOSPC, "No space left on device"))
        placement = continued(headers, self.log_end_offset, self._leader_epoch)
        # What is in the leader's log has a place here whatever segment.bytes says now: larger, it gets its own segment.
        room = min(placement.size, self.config.segment_bytes)
        segment = self._segment_for(room, placement.end_offset, now_ms)
        self._write_as_is(segment, placement, batches, now_ms)
        for header in headers:
            replay(self.producers, header, now_ms)

    def _resent(self, headers: Sequence[BatchHeader], now_ms: int) -> Appended | None:
        """The answer to a resend; None when the batches are new. Raises the sequence errors."""
        if len(headers) == 1:
            header = headers[0]
            if header.producer_id < 0:
                return None
            first = last = self.producers.check(header, now_ms)
            if first is None or last is None:
                return None
        else:
            if not any(header.producer_id >= 0 for header in headers):
                return None
            known = self.producers.check_all(headers, now_ms)
            if known is None:
                return None
            first, last = known
        return Appended(first.first_offset, last.last_offset, True, -1)

    def _to_give(self, size: int, end_offset: int, leader_epoch: int, now_ms: int) -> Segment:
        """Where a leader may write `size` bytes of offsets from the log's end to `end_offset`."""
        if end_offset > self.reserved_end:
            raise ReservationExhausted(
                f"{self.topic}-{self.partition}: offsets up to {end_offset} wanted, reserved are those below "
                f"{self.reserved_end}; the bucket must answer first",
                end_offset,
            )
        if leader_epoch < self._leader_epoch:
            raise self._superseded(leader_epoch)
        return self._segment_for(size, end_offset, now_ms)

    def _segment_for(self, size: int, end_offset: int, now_ms: int) -> Segment:
        """The active segment, after a roll where the configuration asks for one."""
        segment = self._active
        indexer = segment.indexer
        assert indexer is not None
        reason = roll_reason(
            self.config,
            segment_base=segment.base_offset,
            segment_size=segment.size,
            first_append_ms=segment.first_append_ms,
            index_full=segment.size > self._index_room_bytes and indexer.is_full(self.config.segment_index_bytes),
            incoming_bytes=size,
            incoming_base=self.log_end_offset,
            incoming_end=end_offset,
            now_ms=now_ms,
        )
        if reason is None:
            return segment
        self._roll()
        return self._active

    def _write_as_is(
        self, segment: Segment, placement: Placement, batches: Sequence[memoryview | bytes], now_ms: int
    ) -> None:
        """Write batches that carry their epochs, each of which enters the lineage where it begins."""
        assert placement.size == sum(map(len, batches)), (placement, [*map(len, batches)])
        try:
            segment.file.write_at(segment.size, batches)
        except OSError as error:
            raise self._write_failed(error) from error
        self._written(segment, placement, now_ms)
        for header in placement.headers:
            if header.leader_epoch > self._leader_epoch:
                self._enter_epoch(header.leader_epoch, header.base_offset)

    def _written(self, segment: Segment, placement: Placement, now_ms: int) -> None:
        """The batches lie at the end of the active segment: move the log's end over them."""
        headers, size, end_offset = placement
        crash_points.reach("append.written")
        position = segment.size
        if position == 0:
            segment.first_append_ms = now_ms
        indexer, locator = segment.indexer, self._locator
        assert indexer is not None
        for header in headers:
            indexer.add(header, position)
            position += header.length + LOG_OVERHEAD
            locator.appended(header.base_offset + header.last_offset_delta + 1, position)
        segment.size = position
        segment.end_offset = self.log_end_offset = end_offset
        durability = self._durability
        durability.written_bytes += size
        if durability.oldest_dirty_ms is None:
            durability.oldest_dirty_ms = now_ms
        if self.state is LogState.FULL:
            self.state = LogState.ONLINE
