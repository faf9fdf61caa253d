"""Whole record batches in, Arrow rows out: the door of this room.

Owns which batches of a piece of log become rows (offsets, control batches, aborted transactions, time) and the error
that names a batch which cannot. Always true: a batch of rows has exactly `rows.schema_of(columns)`, owns its memory,
and holds rows of the log's order; a batch inside the wanted offsets has its CRC checked; rows before a poisonous batch
are given out before the error. Must not know where the bytes came from, nor Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from logformat.errors import Corrupt
from logformat.record_batch import BatchHeader, Buffer, CorruptBatch, TimestampType, check_stored, read_header
from logformat.records import Record, iter_records
from thermocline.pipeline.rows import schema_of
from thermocline.pipeline.split import RowFilter

TARGET_BYTES = 8 << 20


class PoisonBatch(Corrupt):
    """A batch whose bytes cannot become rows: damaged, or never well-formed.

    `position` is its first byte in the bytes given to `decode`; `next_position` is where the next batch begins, or None
    when the length cannot be trusted. `base_offset` is what stands in its header (−1 when not even that is there).
    """

    def __init__(self, base_offset: int, position: int, next_position: int | None, reason: str) -> None:
        super().__init__(f"batch at offset {base_offset}, position {position}: {reason}")
        self.base_offset = base_offset
        self.position = position
        self.next_position = next_position
        self.reason = reason


class BatchDecoder:
    """Decodes pieces of one topic-partition's log, in order. One per thread: it reuses scratch memory between calls.

    `aborted`: (producer id, first offset, last offset) of aborted transactions, left out when `read_committed`.
    `covered`: offsets [first, end) of all batches met so far, wanted or not, adjacent ones merged: where the log given
    to `decode` has holes, two of these do not touch.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str],
        rows: RowFilter,
        aborted: Sequence[tuple[int, int, int]] = (),
        read_committed: bool = True,
        target_bytes: int = TARGET_BYTES,
    ) -> None:
        self.schema = schema_of(columns)
        self.covered: list[tuple[int, int]] = []
        self._topic = topic
        self._partition = partition
        self._rows = rows
        self._aborted = tuple(aborted) if read_committed else ()
        self._target_bytes = target_bytes

    def decode(self, log: Buffer | pa.Buffer) -> Iterator[pa.RecordBatch]:
        """The wanted rows of `log` (whole batches, one behind the other), in batches of about `target_bytes`.

        Raises PoisonBatch after giving out all rows that come before that batch.
        """
        view = memoryview(log)
        pos = 0
        while pos < len(view):
            try:
                header = check_stored(view, pos, len(view))
                rows = self._rows_of(view, pos, header)
            except Corrupt as error:
                base, after = _suspect(view, pos)
                raise PoisonBatch(base, pos, after, str(error)) from None
            if self.covered and self.covered[-1][1] == header.base_offset:
                self.covered[-1] = (self.covered[-1][0], header.next_offset)
            else:
                self.covered.append((header.base_offset, header.next_offset))
            if rows:
                yield self._arrow(header.timestamp_type, rows)
            pos += header.size

    def _rows_of(self, view: memoryview, pos: int, header: BatchHeader) -> list[Record]:
        want = self._rows
        if header.is_control or header.next_offset <= want.start_offset or header.base_offset >= want.end_offset:
            return []
        if header.is_transactional and any(
            header.producer_id == producer and first <= header.base_offset <= last
            for producer, first, last in self._aborted
        ):
            return []
        low, high = want.min_timestamp_ms, want.max_timestamp_ms
        return [
            record
            for record in iter_records(view, pos)
            if want.start_offset <= record.offset < want.end_offset
            and ((low is None and high is None) or record.timestamp != -1)
            and (low is None or record.timestamp >= low)
            and (high is None or record.timestamp < high)
        ]

    def _arrow(self, timestamp_type: TimestampType, rows: list[Record]) -> pa.RecordBatch:
        count = len(rows)
        columns = {
            "key": [r.key for r in rows],
            "value": [r.value for r in rows],
            "topic": [self._topic] * count,
            "partition": [self._partition] * count,
            "offset": [r.offset for r in rows],
            "timestamp": [None if r.timestamp == -1 else r.timestamp * 1000 for r in rows],
            "timestampType": [int(timestamp_type)] * count,
            "headers": [[{"key": k, "value": v} for k, v in r.headers] for r in rows],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _suspect(view: memoryview, pos: int) -> tuple[int, int | None]:
    """(base offset, next position) as far as the header at `pos` can be believed."""
    try:
        header = read_header(view, pos)
    except CorruptBatch:
        return -1, None
    after = pos + header.size
    if header.magic != 2 or header.size < 61 or after > len(view):
        return header.base_offset, None
    return header.base_offset, after
