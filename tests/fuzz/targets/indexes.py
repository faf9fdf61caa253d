"""Offset, time, transaction and packed index: refused as Corrupt, or the same again, and lookups as a plain scan gives.

Input: which index (one byte), a base offset (8 bytes), then the file.
"""

from __future__ import annotations

import struct

from coldstore.segments.packed_indexes import pack, thinned, unpack
from logformat.errors import Corrupt
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from logformat.indexes.transaction_index import AbortedTransaction, decode_aborted, encode_aborted
from tests.fuzz.inputs import Cursor

_INT63 = 2**63 - 1
_LOG_BYTES = 128 << 20


def seeds() -> list[bytes]:
    base = struct.pack(">q", 1000)
    offsets, times = OffsetIndex(1000), TimeIndex(1000)
    for n in range(12):
        offsets.append(1003 + 7 * n, 4096 * n + 5)
        times.maybe_append(1_700_000_000_000 + n, 1003 + 7 * n)
    aborted = encode_aborted([AbortedTransaction(5, 1000, 1010, 1000), AbortedTransaction(6, 1005, 1020, 1005)])
    return [
        b"\0" + base + offsets.to_bytes(),
        b"\x01" + base + times.to_bytes(),
        b"\x02" + base + aborted,
        b"\x03" + base + pack(offsets, times),
        b"\0" + base,
        b"\0" + base + offsets.to_bytes()[:-3],
        b"\x01" + struct.pack(">q", _INT63) + times.to_bytes(),
    ]


def run(data: bytes) -> None:
    cursor = Cursor(data)
    kind = cursor.number() % 4
    base = cursor.number(8) & _INT63
    file = cursor.rest()
    try:
        (_offset_index, _time_index, _transaction_index, _packed_indexes)[kind](base, file)
    except Corrupt:
        return


def _offset_index(base: int, file: bytes) -> None:
    index = OffsetIndex(base, file)
    assert index.to_bytes() == file
    entries = list(index.entries())
    assert len(entries) == len(index) and (not entries or index.last == entries[-1])
    for target in (0, base, base + 1, *(e.offset for e in entries[:4]), *(e.offset + 1 for e in entries[-3:]), _INT63):
        expected = max((e for e in entries if e.offset <= target), default=(base, 0))
        assert index.lookup(target) == expected, target
    for position in (0, 1, 2**40, *(e.position for e in entries[:3])):
        expected = max((e for e in entries if e.position <= position), default=(base, 0))
        assert index.lookup_position(position) == expected, position


def _time_index(base: int, file: bytes) -> None:
    index = TimeIndex(base, file)
    assert index.to_bytes() == file
    entries = list(index.entries())
    for timestamp in (-1, 0, *(e.timestamp for e in entries[:4]), *(e.timestamp - 1 for e in entries[-3:]), _INT63):
        expected = max((e for e in entries if e.timestamp <= timestamp), default=(-1, base))
        assert index.lookup(timestamp) == expected, timestamp


def _packed_indexes(base: int, file: bytes) -> None:
    offsets, times = unpack(file, base, _LOG_BYTES)
    again = unpack(pack(offsets, times), base, _LOG_BYTES)
    assert [index.to_bytes() for index in again] == [offsets.to_bytes(), times.to_bytes()]
    thin_offsets, thin_times = thinned(offsets, times)
    assert set(thin_offsets.entries()) <= set(offsets.entries()) and thin_times.last == times.last


def _transaction_index(base: int, file: bytes) -> None:
    entries = decode_aborted(base, file)
    assert encode_aborted(entries) == file
