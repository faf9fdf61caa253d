"""Transactions listed in an object's footer (section 7), because their outcome is not in the object's own bytes. Pure.

The list has all aborted transactions that overlap the object's range, with their full offsets, and the committed
transactions that are open at the range's end. Every transaction that began in the range is decided (TX5). A reader of
the object alone thus knows which records to skip (TX6), and a leader that lost its disk knows the outcome of a
transaction whose marker it lost (TX10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

from coldstore.segments.segment_object import DecidedTransaction, TransactionOutcome
from logformat.indexes.transaction_index import AbortedTransaction
from logformat.producer_snapshot import ProducerState

EPOCH_UNKNOWN: Final = -1
"""Epoch of an aborted transaction that is not open at the range's end; no reader needs it."""


def open_in(producers: ProducerState) -> dict[int, int]:
    """First offsets of the transactions that are open at the range's end, by producer id."""
    return {
        of.producer_id: of.current_txn_first_offset for of in producers.producers if of.current_txn_first_offset >= 0
    }


def decided(
    aborted: Sequence[AbortedTransaction], producers: ProducerState, markers: Mapping[int, tuple[int, bool]]
) -> tuple[DecidedTransaction, ...]:
    """The transactions to list, in the order of their markers. `producers`: the state at the range's end. `markers`:
    (offset, whether it commits) of the next marker, for each producer with a transaction open at the range's end."""
    epochs = {of.producer_id: of.epoch for of in producers.producers}
    first_of = open_in(producers)
    found = {
        (of.producer_id, of.first_offset): DecidedTransaction(
            of.producer_id,
            epochs.get(of.producer_id, EPOCH_UNKNOWN)
            if first_of.get(of.producer_id) == of.first_offset
            else EPOCH_UNKNOWN,
            of.first_offset,
            of.last_offset,
            TransactionOutcome.ABORTED,
        )
        for of in aborted
    }
    for producer_id, first_offset in first_of.items():
        marker = markers.get(producer_id)
        if marker is not None and marker[1]:
            found[producer_id, first_offset] = DecidedTransaction(
                producer_id, epochs[producer_id], first_offset, marker[0], TransactionOutcome.COMMITTED
            )
    return tuple(sorted(found.values(), key=attrgetter("marker_offset")))
