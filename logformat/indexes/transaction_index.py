"""Kafka's `.txnindex`: aborted transactions of a segment, 34-byte entries.
Not used until transactions are served. An entry is version int16 (0), then four int64: producer id, first offset of the
transaction, offset of its abort marker, last stable offset when the marker was written. Markers' offsets grow strictly.
No checksum. Source: KIP-98; Kafka's AbortedTxn and TransactionIndex."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from logformat.errors import Corrupt
from logformat.record_batch import Buffer
from logformat.values import NewerFormat

ENTRY_SIZE: Final = 34
VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")


class AbortedTransaction(NamedTuple):
    """Offsets are absolute; `last_offset` is the abort marker's."""

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
        if version != VERSION or not rising or entry.producer_id < 0:
            raise Corrupt(f"transaction index of {base_offset}: {entry} is out of order")
        transactions.append(entry)
        marker_before = entry.last_offset
    return tuple(transactions)


def overlapping(
    transactions: Sequence[AbortedTransaction], first: int, end: int
) -> tuple[tuple[AbortedTransaction, ...], bool]:
    """Aborted transactions that overlap the fetched range [first, end), and whether the list is complete.

    If not, transactions that began below `end` may have their marker in a later segment: continue there."""
    found: list[AbortedTransaction] = []
    for entry in transactions:
        if entry.last_offset >= first and entry.first_offset < end:
            found.append(entry)
        if entry.last_stable_offset >= end:
            return tuple(found), True
    return tuple(found), False
