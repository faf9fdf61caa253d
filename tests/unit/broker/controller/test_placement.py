"""Where new partitions lie: as asked, or striped; never on a broker nobody knows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.controller import placement
from broker.errors import ApiError

NODES = st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True).map(sorted)


@given(NODES, st.integers(1, 60), st.integers(1, 9), st.integers(0, 100))
def test_what_is_spread_is_even_and_distinct(nodes: list[int], count: int, factor: int, first: int) -> None:
    """Nobody leads two partitions more than another, nobody holds one twice; what is added later goes on evenly."""
    if factor > len(nodes):
        with pytest.raises(ApiError, match=f"only {len(nodes)} broker"):
            placement.spread(nodes, count, factor, first)
        return
    found = placement.spread(nodes, count, factor, first)
    assert len(found) == count
    assert all(len(set(replicas)) == factor and set(replicas) <= set(nodes) for replicas in found)
    leading = Counter(dict.fromkeys(nodes, 0))
    leading.update(replicas[0] for replicas in found)
    assert max(leading.values()) - min(leading.values()) <= 1
    assert placement.spread(nodes, first, factor) + found == placement.spread(nodes, first + count, factor)


def test_one_broker_gets_everything() -> None:
    """The cluster of today."""
    assert placement.spread([4], 3, 1) == [(4,)] * 3
    assert placement.assigned([4], [(1, [4]), (0, [4])]) == [(4,)] * 2
    assert placement.added([4], [[4]], 1) == [(4,)]


def test_an_assignment_keeps_its_order() -> None:
    """The first replica is the one to lead."""
    assert placement.assigned([1, 2, 3], [(1, [3, 1]), (0, [2, 3])]) == [(2, 3), (3, 1)]
