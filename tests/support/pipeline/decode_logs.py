"""Random logs for the pipeline's decoder, and what an independent, record by record reading makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from hypothesis import strategies as st

from logformat.gap import gap_batches
from logformat.record_batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    Codec,
    CorruptBatch,
    TimestampType,
    check_stored,
    stamp_log_append_time,
)
from logformat.records import Record, encode_batch, iter_records
from thermocline.pipeline.decode.batches import BatchDecoder, PoisonBatch, Way
from thermocline.pipeline.rows import COLUMNS, schema_of
from thermocline.pipeline.split import RowFilter

EVERYTHING = RowFilter(
    0, 2**63 - 1
)  # beyond it a batch passes by its header alone, whatever a flipped bit made of that
MILLIS_MAX = 9_223_372_036_854_775

maybe_bytes = st.none() | st.binary(max_size=90) | st.integers(100, 20_000).map(bytes)
header_keys = st.binary(max_size=4).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
header_lists = st.lists(st.tuples(header_keys, maybe_bytes), max_size=3).map(tuple)
timestamps = st.integers(0, 2**41) | st.sampled_from([-1, -7, 2**62, MILLIS_MAX, MILLIS_MAX + 1])


@st.composite
def batches(draw: st.DrawFn, base_offset: int) -> bytes:
    """One batch from `base_offset` on: any codec, compacted or not, transactional or not, stamped or not, or a gap."""
    if draw(st.integers(0, 9)) == 0:
        return next(iter(gap_batches(base_offset, base_offset + draw(st.integers(1, 9)), 1)))
    offset = base_offset
    records = []
    for _ in range(draw(st.integers(1, 6))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 130]))
        records.append(Record(offset, draw(timestamps), draw(maybe_bytes), draw(maybe_bytes), draw(header_lists)))
        offset += 1
    transactional = draw(st.booleans())
    batch = encode_batch(
        records,
        base_offset=base_offset,
        last_offset=offset - 1 + draw(st.sampled_from([0, 0, 5])),
        codec=draw(st.sampled_from(Codec)),
        producer_id=draw(st.sampled_from([7, 8])) if transactional else -1,
        transactional=transactional,
        control=draw(st.integers(0, 9)) == 0,
    )
    if draw(st.integers(0, 3)) == 0:
        stamped = bytearray(batch)
        stamp_log_append_time(stamped, 0, draw(st.sampled_from([-1, 5, 1_700_000_000_000])))
        return bytes(stamped)
    return batch


@st.composite
def logs(draw: st.DrawFn, batches_max: int = 6) -> bytes:
    """Whole batches, one behind the other, sometimes with a hole between two."""
    out = b""
    offset = draw(st.sampled_from([0, 1000, 2**40]))
    for _ in range(draw(st.integers(0, batches_max))):
        batch = draw(batches(offset))
        header = check_stored(batch, 0, len(batch))
        out += batch
        offset = header.next_offset + draw(st.sampled_from([0, 0, 0, 3]))
    return out


def with_right_crc(batch: bytes | bytearray) -> bytes:
    """The batch with the CRC its bytes have, so that damage reaches the parser."""
    out = bytearray(batch)
    out[CRC_AT:ATTRIBUTES_AT] = crc32c(memoryview(out)[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(out)


def read_slowly(
    log: bytes, rows: RowFilter = EVERYTHING, aborted: Sequence[tuple[int, int, int]] = ()
) -> tuple[list[dict[str, Any]], int | None]:
    """(rows with every column, position of the first batch that is poison) by `logformat`'s readers."""
    out: list[dict[str, Any]] = []
    position = offset_next = 0
    while position < len(log):
        try:
            header = check_stored(log, position, len(log), offset_min=offset_next)
            if header.next_offset > rows.start_offset and header.base_offset < rows.end_offset:
                dead = header.is_transactional and any(
                    p == header.producer_id and first <= header.base_offset <= last for p, first, last in aborted
                )
                empty = header.record_count == 0 and header.size == HEADER_SIZE
                if not header.is_control and not dead and not empty:
                    records = list(iter_records(log, position))
                    out += [_row(r, header.timestamp_type) for r in records if _is_wanted(r, rows)]
        except CorruptBatch:
            return out, position
        offset_next = header.next_offset
        position += header.size
    return out, None


def _is_wanted(record: Record, rows: RowFilter) -> bool:
    low, high = rows.min_timestamp_ms, rows.max_timestamp_ms
    if (low is not None or high is not None) and record.timestamp == -1:
        return False
    return (
        rows.start_offset <= record.offset < rows.end_offset
        and (low is None or record.timestamp >= low)
        and (high is None or record.timestamp < high)
    )


def _row(record: Record, timestamp_type: TimestampType) -> dict[str, Any]:
    shown = record.timestamp != -1 and abs(record.timestamp) <= MILLIS_MAX
    headers = [
        {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
        for key, value in record.headers
    ]
    return {
        "key": record.key,
        "value": record.value,
        "topic": "orders",
        "partition": 3,
        "offset": record.offset,
        "timestamp": record.timestamp * 1000 if shown else None,
        "timestampType": int(timestamp_type),
        "headers": headers or None,
    }


def read(
    log: bytes | memoryview,
    way: type[Way],
    columns: Sequence[str] = COLUMNS,
    rows: RowFilter = EVERYTHING,
    aborted: Sequence[tuple[int, int, int]] = (),
    target_bytes: int = 8 << 20,
) -> tuple[list[dict[str, Any]], PoisonBatch | None, list[tuple[int, int]]]:
    """(rows, poison, covered) by the decoder; timestamps as integers. Every batch of rows is validated in full."""
    decoder = BatchDecoder("orders", 3, columns, rows, aborted, target_bytes=target_bytes, way=way)
    out: list[dict[str, Any]] = []
    poison = None
    try:
        for batch in decoder.decode(pa.py_buffer(log)):  # as a store gives it: its view's bytes are signed
            batch.validate(full=True)
            assert batch.schema == schema_of(columns) and batch.num_rows
            out += as_rows(batch)
    except PoisonBatch as error:
        poison = error.with_traceback(None)  # a cycle through this frame would keep the decoder's buffers
    return out, poison, decoder.covered


def as_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as dicts, timestamps as µs: Python's datetime ends at the year 9999."""
    place = batch.schema.get_field_index("timestamp")
    if place >= 0:
        batch = batch.set_column(place, "timestamp", batch.column(place).cast(pa.int64()))
    return batch.to_pylist() if batch.num_columns else [{} for _ in range(batch.num_rows)]
