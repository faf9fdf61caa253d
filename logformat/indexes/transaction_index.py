"""Kafka's `.txnindex`: aborted transactions of a segment, 34-byte entries.

An entry is version int16 (0), then four int64: producer id, first offset of the transaction, offset of its abort
marker, last stable offset when the marker was written. Markers' offsets grow strictly. There is no checksum.
`AbortedIndex` has the entries of one segment in memory, 32 bytes each. Source: KIP-98; Kafka's AbortedTxn and
TransactionIndex.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from logformat.errors import Corrupt
from logformat.record_batch import Buffer
from logformat.values import NewerFormat

ENTRY_SIZE: Final = 34
VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")
_BLOCK: Final = 64  # entries that `AbortedIndex.overlapping` skips at once


class AbortedTransaction(NamedTuple):
    """Offsets are absolute; `last_offset` is the offset of the abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(transactions: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(VERSION, *transaction) for transaction in transactions)


def decode_aborted(base_offset: int, data: Buffer) -> tuple[AbortedTransaction, ...]:
    """Entries of the index of the segment at `base_offset`. Raises Corrupt, NewerFormat for a later version."""
    if len(data) % ENTRY_SIZE:
        raise Corrupt(f"transaction index of {base_offset}: {len(data)} bytes is not a multiple of {ENTRY_SIZE}")
    transactions: list[AbortedTransaction] = []
    marker_before = base_offset - 1
    for version, *fields in _ENTRY.iter_unpack(data):
        if version > VERSION:
            raise NewerFormat(f"transaction index of {base_offset}: entry version {version}, known is {VERSION}")
        entry = AbortedTransaction(*fields)
        rising = entry.last_offset > marker_before and 0 <= entry.first_offset <= entry.last_offset
        rising = rising and entry.last_stable_offset <= entry.last_offset + 1
        if version != VERSION or not rising or entry.producer_id < 0:
            raise Corrupt(f"transaction index of {base_offset}: {entry} is out of order")
        transactions.append(entry)
        marker_before = entry.last_offset
    return tuple(transactions)


class AbortedIndex:
    """The aborted transactions whose marker lies in one segment, in the order of their markers.

    A look-up skips a block of entries if all its transactions begin after the range. A fetch below the marker of a long
    transaction thus does not read all later entries."""

    __slots__ = ("_firsts", "_lasts", "_least_firsts", "_producer_ids", "_stable")

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._producer_ids = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._stable = array("q")
        self._least_firsts = array("q")  # the least first offset of each block
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._lasts)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        columns = zip(self._producer_ids, self._firsts, self._lasts, self._stable, strict=True)
        return (AbortedTransaction(*entry) for entry in columns)

    def add(self, entry: AbortedTransaction) -> None:
        """Add a transaction; its marker is after all others."""
        assert not self._lasts or entry.last_offset > self._lasts[-1], entry
        if len(self._lasts) % _BLOCK == 0:
            self._least_firsts.append(entry.first_offset)
        elif entry.first_offset < self._least_firsts[-1]:
            self._least_firsts[-1] = entry.first_offset
        self._producer_ids.append(entry.producer_id)
        self._firsts.append(entry.first_offset)
        self._lasts.append(entry.last_offset)
        self._stable.append(entry.last_stable_offset)

    def overlapping(self, first: int, end: int) -> Iterator[AbortedTransaction]:
        """The transactions that overlap [first, end)."""
        firsts, least_firsts = self._firsts, self._least_firsts
        at, count = bisect_left(self._lasts, first), len(firsts)
        while at < count:
            after = min((at // _BLOCK + 1) * _BLOCK, count)
            if least_firsts[at // _BLOCK] < end:
                for place in range(at, after):
                    if firsts[place] < end:
                        yield AbortedTransaction(
                            self._producer_ids[place], firsts[place], self._lasts[place], self._stable[place]
                        )
            at = after

    def completes(self, end: int) -> bool:
        """Whether the last entry proves that every transaction that began below `end` has its marker in this segment
        or an earlier one."""
        return bool(self._stable) and self._stable[-1] >= end

    def below(self, end: int) -> AbortedIndex:
        """The entries with a marker below `end`."""
        if not self._lasts or self._lasts[-1] < end:
            return self
        return AbortedIndex(entry for entry in self if entry.last_offset < end)
