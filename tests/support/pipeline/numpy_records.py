"""Records of many batches parsed at once: columns of positions and sizes in numpy, then Arrow's own `take`.

Checks the fields of a record in the kernels' order. Indexes into the bytes are clipped, so hostile lengths read wrong
bytes and are refused; they never crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logformat.record_batch import INT64_MAX, NO_TIMESTAMP, BatchHeader, Buffer, TimestampType
from logformat.records import RECORD_BYTES_MIN
from thermocline.pipeline.decode.layout import Reason
from thermocline.pipeline.decode.output import Constants, constants_of, header_keys, row_width
from thermocline.pipeline.rows import HEADERS_TYPE, schema_of
from thermocline.pipeline.split import RowFilter

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_MILLIS_MAX: Final = 9_223_372_036_854_775
_INT64_MIN: Final = -(2**63)
_VARINT_BYTES_MAX: Final = 5
_VARLONG_BYTES_MAX: Final = 10


class Refusal(NamedTuple):
    """The first batch of a group that does not parse."""

    batch: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of a group of batches, a column each. Positions count from the start of `data`; size −1 is null."""

    data: NDArray[np.uint8]
    size: Ints
    offset: Ints
    timestamp: Ints
    timestamp_type: Ints
    key: Ints
    key_size: Ints
    value: Ints
    value_size: Ints
    headers: Ints
    header_count: Ints

    def take(self, chosen: slice | Bools) -> Rows:
        columns = (getattr(self, name)[chosen] for name in Rows.__slots__ if name != "data")
        return Rows(self.data, *columns)

    def inside(self, wanted: RowFilter) -> Rows:
        keep = (self.offset >= wanted.start_offset) & (self.offset < wanted.end_offset)
        low, high = wanted.min_timestamp_ms, wanted.max_timestamp_ms
        if low is not None or high is not None:
            keep &= self.timestamp != NO_TIMESTAMP
        if low is not None:
            keep &= self.timestamp >= low
        if high is not None:
            keep &= self.timestamp < high
        return self if keep.all() else self.take(keep)

    def arrow(
        self, topic: str, partition: int, columns: Sequence[str], target_bytes: int, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """These rows in batches of at most `target_bytes` (or one record) and `rows_max`."""
        constants = constants_of(topic, partition)
        reads_fields = not {"key", "value", "headers"}.isdisjoint(columns)
        costs = np.cumsum((self.size if reads_fields else 0 * self.size) + row_width(topic, columns))
        start = 0
        while start < len(costs):
            before = int(costs[start - 1]) if start else 0
            end = int(np.searchsorted(costs, before + target_bytes, "right"))
            end = min(max(end, start + 1), start + rows_max)
            part = self.take(slice(start, end))
            start = end
            arrays = [part.column(name, constants) for name in columns]
            if arrays:
                yield pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
            else:
                empty = pa.StructArray.from_buffers(pa.struct([]), len(part.size), [None])
                yield pa.RecordBatch.from_struct_array(empty)

    def column(self, name: str, constants: Constants) -> pa.Array:
        if name == "key":
            return _binary(self.data, self.key, self.key_size)
        if name == "value":
            return _binary(self.data, self.value, self.value_size)
        if name == "offset":
            return pa.array(self.offset, pa.int64())
        if name == "timestamp":
            absent = (self.timestamp == NO_TIMESTAMP) | (abs(self.timestamp) > _MILLIS_MAX)
            micros = np.where(absent, 0, self.timestamp) * 1000
            return pa.array(micros, pa.timestamp("us", tz="UTC"), mask=absent)
        if name == "timestampType":
            return pa.array(self.timestamp_type.astype(np.int32), pa.int32())
        if name == "headers":
            return self._header_lists()
        return constants.column(name, len(self.offset))

    def _header_lists(self) -> pa.Array:
        spans = [(pos, count) for pos, count in zip(self.headers.tolist(), self.header_count.tolist(), strict=True)]
        data = self.data.tobytes()
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for at, count in spans:
            for _ in range(count):
                size, at = _varint_at(data, at)
                keys.append(data[at : at + size])
                size, at = _varint_at(data, at + size)
                values.append(None if size < 0 else data[at : at + size])
                at += max(size, 0)
        entries = pa.StructArray.from_arrays(
            [header_keys(pa.array(keys, pa.binary())), pa.array(values, pa.binary())],
            fields=list(HEADERS_TYPE.value_type),
        )
        offsets = np.zeros(len(spans) + 1, np.int32)
        np.cumsum(self.header_count, out=offsets[1:])
        none = pa.array(self.header_count == 0)
        return pa.ListArray.from_arrays(pa.array(offsets), entries, type=HEADERS_TYPE, mask=none)


def parse(batches: Sequence[tuple[BatchHeader, Buffer]], columns: Sequence[str]) -> tuple[Rows, Refusal | None]:
    """All records of the batches before the first one that does not parse, and that one's refusal.

    Only fields that the columns need are looked at, as in the kernels.
    """
    data = np.concatenate([*(np.frombuffer(records, np.uint8) for _, records in batches), np.zeros(1, np.uint8)])
    starts, ends, owners, refusals = _record_borders(data, batches)
    rows, reasons = _parse_records(data, starts, ends, owners, [header for header, _ in batches], columns)
    bad = np.flatnonzero(reasons)
    if len(bad):  # a record that is wrong in itself comes before what is wrong with its batch's borders
        first = int(bad[0])
        owner = int(owners[first])
        if not refusals or owner <= refusals[0].batch:
            refusals.insert(0, Refusal(owner, Reason(int(reasons[first]))))
    if not refusals:
        return rows, None
    return rows.take(slice(0, int(np.searchsorted(owners, refusals[0].batch)))), refusals[0]


def _record_borders(
    data: NDArray[np.uint8], batches: Sequence[tuple[BatchHeader, Buffer]]
) -> tuple[Ints, Ints, Ints, list[Refusal]]:
    """(start, end, batch) of each record, by following their lengths; stops at the first batch where that fails."""
    starts: list[int] = []
    ends: list[int] = []
    counts: list[int] = []
    refusals: list[Refusal] = []
    base = 0
    for index, (header, records) in enumerate(batches):
        before = len(starts)
        reason = _follow_lengths(bytes(records), header, base, starts, ends)
        counts.append(len(starts) - before)
        base += len(records)
        if reason is not None:
            refusals.append(Refusal(index, reason))
            break
    owners = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return np.array(starts, np.int64), np.array(ends, np.int64), owners, refusals


def _follow_lengths(
    records: bytes, header: BatchHeader, base: int, starts: list[int], ends: list[int]
) -> Reason | None:
    """Append where the batch's records begin (behind their length) and end, `base` added."""
    if header.record_count > len(records) // RECORD_BYTES_MIN:
        return Reason.COUNT
    stamped = header.timestamp_type is TimestampType.LOG_APPEND_TIME
    if stamped and header.max_timestamp == _INT64_MIN and header.record_count > 0:
        return Reason.TIMESTAMP
    at = 0
    for _ in range(header.record_count):
        try:
            byte = records[at]
            if byte < 0x80:  # one byte or two, without a call
                size = (byte >> 1) ^ -(byte & 1)
                at += 1
            elif records[at + 1] < 0x80:
                size = ((byte & 0x7F) >> 1 | records[at + 1] << 6) ^ -(byte & 1)
                at += 2
            else:
                size, at = _varint_at(records, at)
        except IndexError:
            return Reason.RECORD
        except OverflowError:
            return Reason.VARINT
        if size < RECORD_BYTES_MIN - 1 or size > len(records) - at:
            return Reason.RECORD
        starts.append(base + at)
        at += size
        ends.append(base + at)
    return None if at == len(records) else Reason.TRAILING


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """A zig-zag int32. IndexError beyond the end, OverflowError when it is too long."""
    raw = shift = 0
    for place in range(at, at + _VARINT_BYTES_MAX):
        byte = data[place]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> 32:
                break
            return (raw >> 1) ^ -(raw & 1), place + 1
        shift += 7
    raise OverflowError


class _Reader:
    """Reads one field after another of all records at once, remembering the first reason against each record."""

    def __init__(self, data: NDArray[np.uint8], at: Ints, end: Ints) -> None:
        self.data = data
        self.at = at
        self.end = end
        self.reasons = np.zeros(len(at), np.int64)

    def refuse(self, where: Bools, reason: Reason) -> None:
        self.reasons[where & (self.reasons == 0)] = reason

    def varint(self, bytes_max: int = _VARINT_BYTES_MAX) -> Ints:
        last = len(self.data) - 1
        start = self.at
        raw = np.zeros(len(start), np.int64)
        place = start.copy()
        going = np.ones(len(start), bool)
        overlong = np.zeros(len(start), bool)
        for count in range(bytes_max):
            byte = self.data[np.clip(place, 0, last)].astype(np.int64)
            going &= place < self.end
            if bytes_max == _VARLONG_BYTES_MAX and count == bytes_max - 1:
                overlong |= going & (byte > 1)
            raw |= np.where(going, (byte & 0x7F) << (7 * count), 0)
            place += going
            ended = going & (byte < 0x80)
            going &= byte >= 0x80
            if count == 0:
                complete = ended
            else:
                complete = complete | ended
            if not going.any():
                break
        if bytes_max == _VARINT_BYTES_MAX:
            overlong |= complete & (raw >> 32 != 0)
        room = self.end - start >= bytes_max
        self.refuse(overlong | (~complete & room), Reason.VARINT)
        self.refuse(~complete & ~room, Reason.RECORD)
        self.at = place
        return ((raw >> 1) & INT64_MAX) ^ -(raw & 1)

    def field(self) -> tuple[Ints, Ints]:
        """(position, size) of a field that may be null; the reader then stands behind it."""
        size = self.varint()
        self.refuse((size < -1) | (size > self.end - self.at), Reason.FIELD)
        position = self.at
        self.at = np.clip(position + np.maximum(size, 0), 0, len(self.data) - 1)
        return position, size


def _parse_records(
    data: NDArray[np.uint8],
    starts: Ints,
    ends: Ints,
    owners: Ints,
    headers: Sequence[BatchHeader],
    columns: Sequence[str],
) -> tuple[Rows, Ints]:
    wanted = set(columns)
    reader = _Reader(data, starts + 1, ends)
    of = np.array([h[:] for h in headers], object)
    stamped = np.array([h.timestamp_type == TimestampType.LOG_APPEND_TIME for h in headers], bool)[owners]
    base_timestamp = of[:, 7].astype(np.int64)[owners]
    timestamp_delta = reader.varint(_VARLONG_BYTES_MAX)
    delta = reader.varint()
    is_first = np.diff(owners, prepend=-1) != 0
    before = np.where(is_first, -1, np.roll(delta, 1))
    reader.refuse((delta <= before) | (delta > of[:, 6].astype(np.int64)[owners]), Reason.DELTA)
    timestamp = base_timestamp + timestamp_delta
    wrapped = ((base_timestamp ^ timestamp) & (timestamp_delta ^ timestamp)) < 0
    reader.refuse(~stamped & (wrapped | (timestamp == _INT64_MIN)), Reason.TIMESTAMP)
    nothing = np.zeros(len(starts), np.int64)
    key = key_size = value = value_size = header_at = header_count = nothing
    if wanted & {"key", "value", "headers"}:
        key, key_size = reader.field()
    if wanted & {"value", "headers"}:
        value, value_size = reader.field()
        header_count = reader.varint()
        header_at = reader.at.copy()
        some = header_count != 0
        reader.refuse(some & ((header_count < 0) | (header_count > (ends - header_at) >> 1)), Reason.HEADERS)
        if "headers" in wanted:
            _pass_headers(reader, header_count)
            some[:] = False
        reader.refuse(~some & (reader.at != ends), Reason.RECORD_SIZE)
    rows = Rows(
        data=data,
        size=ends - starts + _varint_sizes(ends - starts),
        offset=of[:, 0].astype(np.int64)[owners] + delta,
        timestamp=np.where(stamped, of[:, 8].astype(np.int64)[owners], timestamp),
        timestamp_type=stamped.astype(np.int64),
        key=key,
        key_size=key_size,
        value=value,
        value_size=value_size,
        headers=header_at,
        header_count=header_count,
    )
    return rows, reader.reasons


def _pass_headers(reader: _Reader, counts: Ints) -> None:
    """Move the reader behind the headers of each record: round by round, those that have one more."""
    left = np.where(reader.reasons == 0, counts, 0)
    while left.any():
        some = np.flatnonzero(left > 0)
        part = _Reader(reader.data, reader.at[some], reader.end[some])
        _, key_size = part.field()
        part.refuse(key_size < 0, Reason.HEADERS)
        part.field()
        reader.at[some] = part.at
        reader.reasons[some] = part.reasons
        left[some] = np.where(part.reasons == 0, left[some] - 1, 0)


def _varint_sizes(values: Ints) -> Ints:
    """Bytes of a non-negative number as the zig-zag varint in front of a record."""
    sizes = np.ones(len(values), np.int64)
    for more in range(1, _VARINT_BYTES_MAX):
        sizes += values >= 1 << (7 * more - 1)
    return sizes


def _binary(data: NDArray[np.uint8], positions: Ints, sizes: Ints) -> pa.Array:
    """The ranges as binary values in memory of their own: every other of the ranges between all their borders."""
    count = len(positions)
    if not count:
        return pa.array([], pa.binary())
    absent = sizes < 0
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = positions
    borders[1::2] = positions + np.where(absent, 0, sizes)
    ranges = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(borders), pa.py_buffer(data)])
    return pc.take(ranges, pa.array(np.arange(0, 2 * count, 2), pa.int64(), mask=absent), boundscheck=False)
