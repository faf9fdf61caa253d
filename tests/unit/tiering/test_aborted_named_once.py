"""A cold answer names each aborted transaction once, whatever its objects say of its beginning."""

from __future__ import annotations

from logformat.indexes.transaction_index import AbortedIndex, AbortedTransaction
from tiering.reading.plan import _unite


def test_two_beginnings_of_one_marker_are_one_transaction() -> None:
    """A leader that had lost its producers took a later record for the first. librdkafka pops a name for each marker:
    the second name would hide what the producer committed afterwards."""
    found: dict[tuple[int, int], int] = {}
    earlier, later = AbortedTransaction(7, 5, 12, 5), AbortedTransaction(7, 8, 12, 8)
    next_one, other = AbortedTransaction(7, 13, 15, 13), AbortedTransaction(9, 8, 11, 8)
    _unite(found, AbortedIndex([other, later]), 0, 20)
    _unite(found, AbortedIndex([earlier, next_one]), 0, 20)
    assert found == {(9, 11): 8, (7, 12): 5, (7, 15): 13}
