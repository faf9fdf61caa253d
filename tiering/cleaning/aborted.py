"""The aborted transactions of a pass's dirty objects, from their footers (section 7).

Their records supersede nothing and are removed by the pass (TX17), so these transactions must be known before the map
of keys is filled. Every transaction in the bucket was decided before its upload (TX5), and each footer lists all
aborted transactions that overlap its range. The list is thus complete up to `Aborted.end`. Objects below the dirty part
have no records of aborted transactions left. Only the footers of objects with decided transactions in their entry are
read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from coldstore.manifest.manifest import RemoteSegment
from coldstore.segments.segment_object import SegmentFooter, TransactionOutcome
from hotstore.cleaning.cleanable import Cleanable
from tiering.cleaning.cold_plan import DECIDED_MAX

ABORTED_MAX: Final = 2 * DECIDED_MAX
"""Aborted transactions of one pass, about 20 MB while it begins. The limit is above that of one footer, so that every
pass makes progress."""


class Aborted(NamedTuple):
    """`transactions`: (producer id, first offset, marker's offset). `end`: the pass may read up to this offset."""

    transactions: tuple[tuple[int, int, int], ...]
    end: int


async def find_aborted(
    entries: Sequence[RemoteSegment], dirt: Cleanable, footer_of: Callable[[RemoteSegment], Awaitable[SegmentFooter]]
) -> Aborted:
    """Raises the errors of `footer_of`."""
    found: set[tuple[int, int, int]] = set()
    for entry in entries:
        if entry.end_offset <= dirt.first_dirty or entry.base_offset >= dirt.end or not entry.decided:
            continue
        footer = await footer_of(entry)
        named = {
            (of.producer_id, of.first_offset, of.marker_offset)
            for of in footer.transactions
            if of.outcome is TransactionOutcome.ABORTED
        }
        if found and len(found | named) > ABORTED_MAX:
            return Aborted(tuple(found), entry.base_offset)
        found |= named
    return Aborted(tuple(found), dirt.end)
