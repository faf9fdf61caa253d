"""Finds the aborted transaction that a batch belongs to, for kernels that skip its records.

Transactions are (producer id, first offset, marker's offset) triples, sorted, as `triples` lays them out."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from logformat.kernels.raw_memory import load_i64
from logformat.kernels.record_kernel import inlined


def triples(transactions: Iterable[tuple[int, int, int]]) -> array[int]:
    """The triples in the kernel's order. Keep the result as long as a state block has its address."""
    return array("q", [number for transaction in sorted(transactions) for number in transaction])


def _is_in(aborted: int, count: int, producer_id: int, base_offset: int) -> bool:
    """Whether a transactional batch belongs to one of the `count` transactions at address `aborted`. Transactions of a
    producer do not overlap, so only the producer's last transaction that begins at or below the batch can contain
    it."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        place = aborted + 24 * middle
        of = load_i64(place)
        if of < producer_id or (of == producer_id and load_i64(place + 8) <= base_offset):
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return False
    place = aborted + 24 * (low - 1)
    return load_i64(place) == producer_id and base_offset <= load_i64(place + 16)


is_aborted: Final = inlined(_is_in)
