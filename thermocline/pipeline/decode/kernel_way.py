"""Runs the kernels over a log: walk, decompress, rows. It holds the memory that the kernels read and write.

Every address in the state block points into memory that this object holds while a kernel runs. Decompressed batches
that wait take at most `_HELD_BYTES` and one batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from logformat.kernels.aborted_kernel import triples
from logformat.record_batch import CODEC_MASK, INT64_MAX, Buffer, Codec, CorruptBatch
from logformat.records import RECORDS_BYTES_MAX
from thermocline.pipeline.decode import layout as at
from thermocline.pipeline.decode import rows_kernel, walk_kernel
from thermocline.pipeline.decode.codecs import Decompressor
from thermocline.pipeline.decode.output import Output
from thermocline.pipeline.decode.poison import Coverage, PoisonBatch, poison_at

if TYPE_CHECKING:
    from thermocline.pipeline.decode.batches import DecodeRequest

_TABLE_ROWS: Final = 1024
_WALK_BYTES: Final = 512 << 10  # a quarter of a level-2 cache, so that the rows kernel reads from the cache
_HELD_BYTES: Final = 1 << 20
_CODECS: Final = tuple(Codec)


class KernelWay:
    """The decoder of `batches.BatchDecoder`."""

    def __init__(self, asked: DecodeRequest) -> None:
        self.coverage = Coverage()
        self._state = array("q", bytes(8 * at.STATE_WORDS))
        self._table = array("q", bytes(8 * at.BATCH_WORDS * _TABLE_ROWS))
        self._aborted = triples(asked.aborted)
        self._output = Output(asked.topic, asked.partition, asked.columns, asked.target_bytes, self._state)
        self._decompressor = Decompressor()
        self._address = self._state.buffer_info()[0]
        state = self._state
        state[at.TABLE] = self._table.buffer_info()[0]
        state[at.TABLE_ROWS_MAX] = _TABLE_ROWS
        state[at.WALK_BYTES] = _WALK_BYTES
        state[at.ABORTED] = self._aborted.buffer_info()[0]
        state[at.ABORTED_COUNT] = len(asked.aborted)
        rows = asked.rows
        state[at.START_OFFSET] = min(max(rows.start_offset, 0), INT64_MAX)
        state[at.END_OFFSET] = min(max(rows.end_offset, 0), INT64_MAX)
        low, high = rows.min_timestamp_ms, rows.max_timestamp_ms
        state[at.TIMED] = int(low is not None or high is not None)
        state[at.TIME_MIN] = -INT64_MAX if low is None else low
        state[at.TIME_MAX] = INT64_MAX if high is None else high

    def decode(self, log: Buffer | pa.Buffer) -> Iterator[pa.RecordBatch]:
        view = memoryview(log).cast("B")  # an Arrow buffer's view holds signed bytes
        held = pa.py_buffer(view)  # keeps the log's memory while kernels read it
        state = self._state
        state[at.LOG], state[at.LOG_SIZE] = held.address, held.size
        state[at.POS] = state[at.OFFSET_NEXT] = 0
        state[at.COVER_FIRST] = state[at.COVER_END] = -1
        self._output.close()
        status = at.MORE
        while status != at.END:
            status = walk_kernel.walk(self._address)
            if state[at.COVER_END] >= 0:
                self.coverage.add(state[at.COVER_FIRST], state[at.COVER_END])
            if status == at.HOLE:
                state[at.COVER_END] = -1
            if state[at.TABLE_ROWS]:
                yield from self._table_rows(view)
            if status == at.POISON:
                yield from self._finished()
                raise poison_at(view, state[at.POS], at.Reason(state[at.REASON]).text)
        yield from self._finished()

    def _table_rows(self, view: memoryview) -> Iterator[pa.RecordBatch]:
        """Rows of the table's batches. Compressed batches are decompressed a few at a time."""
        state, table = self._state, self._table
        count = state[at.TABLE_ROWS]
        state[at.ENTRY] = state[at.AT] = state[at.DONE] = state[at.VALIDATED] = 0
        entry = 0
        while entry < count:
            held: list[pa.Buffer] = []
            room = _HELD_BYTES
            poison: PoisonBatch | None = None
            while entry < count and room > 0:
                row = at.BATCH_WORDS * entry
                codec = table[row + at.B_ATTRIBUTES] & CODEC_MASK
                if codec:
                    try:
                        records = self._decompress(view, row, _CODECS[codec])
                    except CorruptBatch as error:
                        poison = self._poison(view, row, str(error))
                        break
                    held.append(records)
                    room -= records.size
                entry += 1
            state[at.TABLE_ROWS] = entry
            yield from self._rows(view)
            if poison is not None:
                yield from self._finished()
                raise poison

    def _decompress(self, view: memoryview, row: int, codec: Codec) -> pa.Buffer:
        table = self._table
        first = table[row + at.B_DATA] - self._state[at.LOG]
        packed = view[first : first + table[row + at.B_DATA_SIZE]]
        records = pa.py_buffer(self._decompressor.decompress(codec, packed, RECORDS_BYTES_MAX))
        table[row + at.B_DATA], table[row + at.B_DATA_SIZE] = records.address, records.size
        return records

    def _rows(self, view: memoryview) -> Iterator[pa.RecordBatch]:
        state, output = self._state, self._output
        while True:
            if not output.is_open:
                output.begin(*self._remaining())
            status = rows_kernel.rows(self._address)
            if status == at.END:
                return
            if status == at.TOO_SMALL:
                need, headers = state[at.NEED_BYTES], state[at.NEED_HEADERS]
                output.begin(*self._remaining(), bytes_min=need, headers_min=headers)
                continue
            yield from self._finished()
            if status == at.POISON:
                row = at.BATCH_WORDS * state[at.ENTRY]
                raise self._poison(view, row, at.Reason(state[at.REASON]).text)

    def _remaining(self) -> tuple[int, int]:
        """Bytes and number of the records that are still to come. While the log has more batches than the table, both
        are larger than any limit."""
        state, table = self._state, self._table
        if state[at.POS] < state[at.LOG_SIZE]:
            return INT64_MAX >> 8, INT64_MAX >> 8
        rows = range(at.BATCH_WORDS * state[at.ENTRY], at.BATCH_WORDS * state[at.TABLE_ROWS], at.BATCH_WORDS)
        return sum(table[row + at.B_DATA_SIZE] for row in rows), sum(table[row + at.B_COUNT] for row in rows)

    def _finished(self) -> Iterator[pa.RecordBatch]:
        made = self._output.finish() if self._output.is_open else None
        if made is not None:
            yield made

    def _poison(self, view: memoryview, row: int, reason: str) -> PoisonBatch:
        self.coverage.cut(self._table[row + at.B_BASE_OFFSET])
        return poison_at(view, self._table[row + at.B_POS], reason, checked=True)
