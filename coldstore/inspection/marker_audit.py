"""Compares a footer's section 7 with the markers in the object's bytes. Pure.

A reader of committed records hides exactly the transactions that section 7 lists as aborted. If an entry is missing,
readers get aborted records. If an entry is wrong, committed records are hidden. Only markers within the object can be
compared.
"""

from __future__ import annotations

from coldstore.segments.segment_object import SegmentFooter, TransactionOutcome
from logformat.record_batch import Buffer, walk
from logformat.transaction_marker import marker_of, may_be_marker


class MarkerWalk:
    """Collects the markers of one object. The caller passes the checked log bytes to `feed`, in order and in pieces of
    any size, and then calls `differences`.
    """

    def __init__(self) -> None:
        self._carry = bytearray()
        self._opened: set[int] = set()  # producers with records and without a marker so far
        self._markers: dict[tuple[int, int], bool] = {}  # by producer id and offset: whether the marker commits
        self._aborting: set[tuple[int, int]] = set()  # markers that abort records of this object

    def feed(self, piece: Buffer) -> None:
        """Process the next bytes. Raises Corrupt for a marker that cannot be parsed."""
        self._carry += piece
        data, end = bytes(self._carry), 0
        for position, header in walk(data):
            end = position + header.size
            if may_be_marker(header):
                marker = marker_of(data, position, header)
                if marker is not None:
                    at = marker.producer_id, header.base_offset
                    self._markers[at] = marker.is_commit
                    if marker.producer_id in self._opened and not marker.is_commit:
                        self._aborting.add(at)
                    self._opened.discard(marker.producer_id)
            elif header.is_transactional:
                self._opened.add(header.producer_id)
        del self._carry[:end]

    def differences(self, footer: SegmentFooter) -> list[str]:
        """The differences as text, by offset."""
        aborted = {
            (one.producer_id, one.marker_offset)
            for one in footer.transactions
            if one.outcome is TransactionOutcome.ABORTED and one.marker_offset < footer.statistics.end_offset
        }
        found = [
            (at, "aborts records here, but the footer's section 7 does not list it") for at in self._aborting - aborted
        ]
        for at in aborted:
            is_commit = self._markers.get(at)
            if is_commit is not False and at[1] >= footer.statistics.base_offset:
                found.append(
                    (at, ("is listed as an abort in section 7, but ") + ("commits" if is_commit else "is missing"))
                )
        found.sort(key=lambda one: one[0][1])
        return [f"the marker of producer {pid} at offset {offset} {what}" for (pid, offset), what in found]
