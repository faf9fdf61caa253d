"""The Arrow buffers of one batch of rows, which a kernel fills.

Each output has its own buffers. They belong to the RecordBatch that `finish` returns and are never written again. Every
capacity in the state block (`layout`) is at most the allocated size.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from thermocline.pipeline.decode import layout as at
from thermocline.pipeline.rows import HEADERS_TYPE, schema_of

_HEADER_ENTRY_BYTES: Final = 32  # budget assumed per header entry; more entries need a bigger output
_ROWS_MAX: Final = 1 << 20  # most rows of one output; only narrow rows reach this number
_INT32_MAX: Final = 2**31 - 1
_WIDTHS: Final = {"key": 4, "value": 4, "partition": 4, "offset": 8, "timestamp": 8, "timestampType": 4, "headers": 4}
_WANTED: Final = {
    "key": at.WANT_KEY,
    "value": at.WANT_VALUE,
    "offset": at.WANT_OFFSET,
    "timestamp": at.WANT_TIMESTAMP,
    "timestampType": at.WANT_TIMESTAMP_TYPE,
    "headers": at.WANT_HEADERS,
}
_STRUCT: Final = HEADERS_TYPE.value_type


class Output:
    """The rows of one RecordBatch at a time: `begin`, then a kernel writes, then `finish`.

    `state` is the block shared with the kernels. `target_bytes` bounds the records plus the fixed-width columns.
    """

    def __init__(
        self, topic: str, partition: int, columns: Sequence[str], target_bytes: int, state: array[int]
    ) -> None:
        self.schema = schema_of(columns)
        self._constants = constants_of(topic, partition)
        self._columns = tuple(columns)
        self._target_bytes = target_bytes
        self._state = state
        self._wanted = sum({_WANTED[name] for name in columns if name in _WANTED})
        self._row_width = row_width(topic, columns)
        self._buffers: dict[int, pa.Buffer] = {}
        state[at.WANTED] = self._wanted
        state[at.ROW_WIDTH] = self._row_width

    @property
    def is_open(self) -> bool:
        return bool(self._state[at.ROWS_MAX])

    def begin(self, record_bytes: int, rows: int, *, bytes_min: int = 0, headers_min: int = 0) -> None:
        """Fresh buffers for an empty output.

        `record_bytes` and `rows`: bounds of the remaining data. `bytes_min`, `headers_min`: needs of the next record.
        """
        width = self._row_width
        rows_max = max(1, min(_ROWS_MAX, self._target_bytes // max(1, width), rows))
        budget = max(min(self._target_bytes, record_bytes + rows * width), bytes_min)
        assert budget <= _INT32_MAX, budget  # offsets of variable-width columns are int32
        headers_max = max(budget // _HEADER_ENTRY_BYTES, headers_min)
        state = self._state
        self._buffers = {}
        if self._wanted & at.WANT_KEY:
            self._variable(rows_max, budget, at.KEY_BITS, at.KEY_OFFSETS, at.KEY_DATA, at.KEY_NULLS)
        if self._wanted & at.WANT_VALUE:
            self._variable(rows_max, budget, at.VALUE_BITS, at.VALUE_OFFSETS, at.VALUE_DATA, at.VALUE_NULLS)
        if self._wanted & at.WANT_OFFSET:
            self._allocate(at.OFFSETS, 8 * rows_max)
        if self._wanted & at.WANT_TIMESTAMP:
            self._allocate(at.TIMESTAMPS, 8 * rows_max)
            self._bits(at.TIMESTAMP_BITS, at.TIMESTAMP_NULLS, rows_max)
        if self._wanted & at.WANT_TIMESTAMP_TYPE:
            self._allocate(at.TIMESTAMP_TYPES, 4 * rows_max)
        if self._wanted & at.WANT_HEADERS:
            self._bits(at.LIST_BITS, at.LIST_NULLS, rows_max)
            self._offsets(at.LIST_OFFSETS, rows_max)
            self._offsets(at.HEADER_KEY_OFFSETS, headers_max)
            self._allocate(at.HEADER_KEY_DATA, budget)
            self._variable(
                headers_max,
                budget,
                at.HEADER_VALUE_BITS,
                at.HEADER_VALUE_OFFSETS,
                at.HEADER_VALUE_DATA,
                at.HEADER_VALUE_NULLS,
            )
            state[at.HEADER_KEY_NOT_ASCII] = 0
        state[at.ROWS] = state[at.HEADERS] = 0
        state[at.ROWS_MAX] = rows_max
        state[at.HEADERS_MAX] = headers_max
        state[at.BUDGET] = budget

    def finish(self) -> pa.RecordBatch | None:
        """The rows written since `begin`, or None. Closes the output."""
        rows = self._state[at.ROWS]
        arrays = [self._array(name, rows) for name in self._columns] if rows else []
        self.close()
        if not rows:
            return None
        if not arrays:  # a count needs no column, only the number of rows
            return pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), rows, [None]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def close(self) -> None:
        self._buffers = {}
        self._state[at.ROWS] = self._state[at.ROWS_MAX] = 0

    def _array(self, name: str, rows: int) -> pa.Array:
        if name == "key":
            return self._binary(pa.binary(), rows, at.KEY_BITS, at.KEY_OFFSETS, at.KEY_DATA, at.KEY_NULLS)
        if name == "value":
            return self._binary(pa.binary(), rows, at.VALUE_BITS, at.VALUE_OFFSETS, at.VALUE_DATA, at.VALUE_NULLS)
        if name == "headers":
            return self._headers(rows)
        kind = self.schema.field(name).type
        if name == "offset":
            return pa.Array.from_buffers(kind, rows, [None, self._cut(at.OFFSETS, 8 * rows)])
        if name == "timestamp":
            valid = self._valid(at.TIMESTAMP_BITS, at.TIMESTAMP_NULLS, rows)
            return pa.Array.from_buffers(kind, rows, [valid, self._cut(at.TIMESTAMPS, 8 * rows)])
        if name == "timestampType":
            return pa.Array.from_buffers(kind, rows, [None, self._cut(at.TIMESTAMP_TYPES, 4 * rows)])
        return self._constants.column(name, rows)

    def _headers(self, rows: int) -> pa.Array:
        count = self._state[at.HEADERS]
        key_size = _last_offset(self._buffers[at.HEADER_KEY_OFFSETS], count)
        key_buffers = [
            None,
            self._cut(at.HEADER_KEY_OFFSETS, 4 * (count + 1)),
            self._cut(at.HEADER_KEY_DATA, key_size),
        ]
        if self._state[at.HEADER_KEY_NOT_ASCII]:
            keys = header_keys(pa.Array.from_buffers(pa.binary(), count, key_buffers))
        else:
            keys = pa.Array.from_buffers(pa.string(), count, key_buffers)
        values = self._binary(
            pa.binary(),
            count,
            at.HEADER_VALUE_BITS,
            at.HEADER_VALUE_OFFSETS,
            at.HEADER_VALUE_DATA,
            at.HEADER_VALUE_NULLS,
        )
        entries = pa.StructArray.from_buffers(_STRUCT, count, [None], children=[keys, values])
        valid = self._valid(at.LIST_BITS, at.LIST_NULLS, rows)
        offsets = self._cut(at.LIST_OFFSETS, 4 * (rows + 1))
        return pa.ListArray.from_buffers(HEADERS_TYPE, rows, [valid, offsets], children=[entries])

    def _binary(self, kind: pa.DataType, rows: int, bits: int, offsets: int, data: int, nulls: int) -> pa.Array:
        size = _last_offset(self._buffers[offsets], rows)
        buffers = [self._valid(bits, nulls, rows), self._cut(offsets, 4 * (rows + 1)), self._cut(data, size)]
        return pa.Array.from_buffers(kind, rows, buffers)

    def _valid(self, bits: int, nulls: int, rows: int) -> pa.Buffer | None:
        return self._cut(bits, (rows + 7) // 8) if self._state[nulls] else None

    def _cut(self, place: int, size: int) -> pa.Buffer:
        """The buffer, shrunk to the written size. The rest returns to Arrow's pool."""
        buffer = self._buffers[place]
        buffer.resize(size, shrink_to_fit=True)
        return buffer

    def _variable(self, rows_max: int, data_max: int, bits: int, offsets: int, data: int, nulls: int) -> None:
        self._bits(bits, nulls, rows_max)
        self._offsets(offsets, rows_max)
        self._allocate(data, data_max)

    def _bits(self, place: int, nulls: int, rows_max: int) -> None:
        size = (rows_max + 7) // 8
        self._allocate(place, size)
        ctypes.memset(self._buffers[place].address, 0xFF, size)
        self._state[nulls] = 0

    def _offsets(self, place: int, rows_max: int) -> None:
        self._allocate(place, 4 * (rows_max + 1))
        ctypes.memset(self._buffers[place].address, 0, 4)

    def _allocate(self, place: int, size: int) -> None:
        buffer = pa.allocate_buffer(size, resizable=True)
        self._buffers[place] = buffer
        self._state[place] = buffer.address


class Constants:
    """Columns with the same value in every row, as slices of one array each. Thread-safe."""

    def __init__(self, topic: str, partition: int) -> None:
        self._scalars = {"topic": pa.scalar(topic, pa.string()), "partition": pa.scalar(partition, pa.int32())}
        self._arrays: dict[str, pa.Array] = {}

    def column(self, name: str, rows: int) -> pa.Array:
        made = self._arrays.get(name)
        if made is None or len(made) < rows:
            made = self._arrays[name] = pa.repeat(self._scalars[name], rows)
        return made.slice(0, rows)


@lru_cache(maxsize=8)
def constants_of(topic: str, partition: int) -> Constants:
    """Constants shared by consecutive decoders, because a reader makes a decoder for every few MiB."""
    return Constants(topic, partition)


def row_width(topic: str, columns: Sequence[str]) -> int:
    """Bytes of a row without its record: fixed-width columns, offsets, and the topic's name."""
    return sum(_WIDTHS.get(name, 0) for name in columns) + (len(topic.encode()) + 4 if "topic" in columns else 0)


def header_keys(keys: pa.Array) -> pa.Array:
    """Binary header keys as strings; invalid UTF-8 becomes U+FFFD, as in the Java client and so in Spark's source."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())


def _last_offset(offsets: pa.Buffer, count: int) -> int:
    return ctypes.c_int32.from_address(offsets.address + 4 * count).value
