"""Logs as ugly as producers, compaction and disasters make them, and what a reading of every record says of them.

A log is segments of whole batches: equal timestamps across batch and segment borders, timestamps out of order or none,
LogAppendTime, records missing inside a batch and at its ends, batches without records, declared gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c
from hypothesis import strategies as st

from logformat.gap import gap_batches
from logformat.record_batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    read_header,
    stamp_log_append_time,
)
from logformat.records import Record, encode_batch, iter_records

T0 = 1_700_000_000_000
STEP_MS = 1000  # the clock of these producers; few ticks, so most timestamps come many times
TICKS = 6


@dataclass(frozen=True)
class UglyLog:
    """`segments` are lists of batches that tile `[0, end)`; `rows` are (offset, timestamp) of what a reader sees."""

    segments: tuple[tuple[bytes, ...], ...]

    @property
    def batches(self) -> tuple[bytes, ...]:
        return tuple(batch for segment in self.segments for batch in segment)

    @property
    def end(self) -> int:
        return read_header(self.segments[-1][-1]).next_offset

    @property
    def rows(self) -> list[tuple[int, int]]:
        return [
            (record.offset, record.timestamp)
            for batch in self.batches
            if not read_header(batch).is_control
            for record in iter_records(batch)
        ]

    def wanted(self, start: int = 0, end: int = 1 << 62, low: int | None = None, high: int | None = None) -> list[int]:
        """Offsets of the rows in `[start, end)` with timestamps in `[low, high)`: a row without one has no time."""
        return [
            offset
            for offset, timestamp in self.rows
            if start <= offset < end
            and (low is None or timestamp >= low)
            and (high is None or timestamp < high)
            and ((low is None and high is None) or timestamp != NO_TIMESTAMP)
        ]

    def first_at(self, timestamp: int, start: int = 0) -> int | None:
        """ListOffsets by time: the first record at `start` or behind it that is not older; control records count."""
        return next((offset for offset, at in self._all(start) if at >= timestamp), None)

    def newest(self, start: int = 0) -> tuple[int, int] | None:
        """The first (offset, timestamp) with the greatest timestamp; None when no record has one."""
        found = max(self._all(start), key=lambda row: row[1], default=(0, NO_TIMESTAMP))
        return None if found[1] == NO_TIMESTAMP else found

    @property
    def lateness_ms(self) -> int:
        """How far at most a record lies behind a younger one before it. An empty batch had such records once."""
        newest, late = NO_TIMESTAMP, 0
        for batch in self.batches:
            header = read_header(batch)
            times = [record.timestamp for record in iter_records(batch)] or [header.max_timestamp]
            for timestamp in times:
                if timestamp != NO_TIMESTAMP:
                    late = max(late, newest - timestamp)
                    newest = max(newest, timestamp)
        return late

    def _all(self, start: int) -> list[tuple[int, int]]:
        return [(r.offset, r.timestamp) for batch in self.batches for r in iter_records(batch) if r.offset >= start]


def empty_batch(base_offset: int, last_offset: int, timestamp: int) -> bytes:
    """What Kafka's cleaner leaves of a producer's last batch: a header that says which offsets it had, and when."""
    header = BatchHeader(
        base_offset=base_offset,
        length=HEADER_SIZE - LOG_OVERHEAD,
        leader_epoch=1,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        record_count=0,
    )
    raw = bytearray(HEADER.pack(*header))
    raw[CRC_AT:ATTRIBUTES_AT] = crc32c(memoryview(raw)[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(raw)


ticks = st.integers(0, TICKS).map(lambda tick: T0 + tick * STEP_MS)
timestamps = st.one_of(ticks, ticks, ticks, st.just(NO_TIMESTAMP), ticks.map(lambda at: at - 1))


@st.composite
def _times(draw: st.DrawFn) -> list[int]:
    """Timestamps of a batch: one for all, or each its own."""
    count = draw(st.sampled_from([1, 1, 2, 3, 7, 25]))
    if draw(st.booleans()):
        return [draw(timestamps)] * count
    return draw(st.lists(timestamps, min_size=count, max_size=count))


@st.composite
def produced(draw: st.DrawFn, base_offset: int) -> bytes:
    """A batch as a producer sends it: one record an offset."""
    fill = draw(st.sampled_from([0, 0, 30, 300]))
    records = [Record(base_offset + n, at, b"k", b"v" * fill) for n, at in enumerate(draw(_times()))]
    codec = draw(st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]))
    batch = bytearray(encode_batch(records, base_offset=base_offset, leader_epoch=1, codec=codec))
    if draw(st.integers(0, 7)) == 0:
        stamp_log_append_time(batch, 0, draw(ticks))
    return bytes(batch)


@st.composite
def _stored(draw: st.DrawFn, base_offset: int) -> bytes:
    """A batch as it may lie in a log: produced, compacted, emptied, or a declared gap."""
    match draw(st.integers(0, 9)):
        case 0:
            return next(iter(gap_batches(base_offset, base_offset + draw(st.sampled_from([1, 40, 5000])), 1)))
        case 1:
            return empty_batch(base_offset, base_offset + draw(st.integers(0, 30)), draw(ticks))
        case 2 | 3:
            offset, records = base_offset, []
            for at in draw(_times()):
                offset += draw(st.sampled_from([0, 0, 1, 50]))
                records.append(Record(offset, at, b"k", b"v" * draw(st.sampled_from([0, 40]))))
                offset += 1
            last = offset - 1 + draw(st.sampled_from([0, 0, 9]))
            return encode_batch(records, base_offset=base_offset, last_offset=last, leader_epoch=1)
        case _:
            return draw(produced(base_offset))


@st.composite
def ugly_logs(draw: st.DrawFn, segments_max: int = 4, batches_max: int = 12, only_produced: bool = False) -> UglyLog:
    base, segments = 0, []
    for _ in range(draw(st.integers(1, segments_max))):
        batches = []
        for _ in range(draw(st.integers(1, batches_max))):
            batches.append(draw(produced(base) if only_produced else _stored(base)))
            base = read_header(batches[-1]).next_offset
        segments.append(tuple(batches))
    return UglyLog(tuple(segments))


# Bounds that lie on a tick, one before it, one behind it, or are open.
bounds = st.one_of(st.none(), ticks, ticks, ticks.map(lambda at: at - 1), ticks.map(lambda at: at + 1))


def offsets_for(log: UglyLog, asked: Sequence[int]) -> tuple[int, int]:
    """Any two numbers as a range of offsets of the log."""
    start, end = sorted(number % (log.end + 1) for number in asked)
    return start, end
