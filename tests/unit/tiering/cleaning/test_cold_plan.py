"""Objects that become one: by the bytes that are left of them, within the bounds of an object, a root and a page."""

from __future__ import annotations

import pytest

from coldstore.manifest.manifest import RemoteSegment
from coldstore.manifest.manifest_entries import RANGES_MAX
from logformat.record_batch import INT32_MAX
from tests.support.tier.cold_values import remote_segment
from tiering.cleaning.cold_plan import DECIDED_MAX, GROUP_MAX, Room, joins

SIZE = 1000
ROOM = Room(segment_bytes=SIZE, first_dirty=20)
"""Objects below offset 20 are clean, those above are dirty."""


def entry(base: int, log_bytes: int = SIZE, **changes: object) -> RemoteSegment:
    return remote_segment(base, base + 10, log_bytes=log_bytes, **changes)


@pytest.mark.parametrize(
    ("base", "kept_bytes", "log_bytes", "is_joined"),
    [
        (10, 0, SIZE, True),
        (10, 1, SIZE, False),  # a clean object may need no rewrite
        (10, SIZE - 100, 100, True),
        (20, 1, SIZE, True),
        (20, SIZE // 2, SIZE, True),
        (20, SIZE // 2, SIZE + SIZE // 2, True),
        (20, SIZE // 2, SIZE + SIZE // 2 + 1, False),
        (20, SIZE // 2 + 1, SIZE, False),  # half full
        (20, SIZE // 2 + 1, SIZE // 2 - 1, True),
        (20, SIZE, 1, False),
    ],
)
def test_an_object_joins_by_what_is_left_of_those_before(
    base: int, kept_bytes: int, log_bytes: int, is_joined: bool
) -> None:
    assert joins([entry(base - 10)], kept_bytes, entry(base, log_bytes), ROOM) is is_joined


def test_an_object_has_positions_of_31_bits() -> None:
    room = Room(segment_bytes=INT32_MAX, first_dirty=0)
    assert joins([entry(0)], 100, entry(10, INT32_MAX - 100), room)
    assert not joins([entry(0)], 101, entry(10, INT32_MAX - 100), room)


def test_offsets_of_an_object_are_within_31_bits_of_its_base() -> None:
    wide = remote_segment(10, INT32_MAX + 1, log_bytes=1)
    assert not joins([entry(0)], 0, wide, ROOM)
    assert joins([entry(0)], 0, remote_segment(10, INT32_MAX, log_bytes=1), ROOM)


def test_objects_join_without_a_hole_and_not_over_a_border() -> None:
    assert not joins([entry(0)], 0, entry(20), ROOM)
    assert not joins([entry(0)], 0, entry(10), Room(SIZE, 20, frozenset({10})))


def test_as_many_join_as_a_root_a_footer_and_an_entry_name() -> None:
    many = [remote_segment(at, at + 1) for at in range(GROUP_MAX)]
    assert joins(many[:-1], 0, many[-1], ROOM)
    assert not joins(many, 0, remote_segment(GROUP_MAX, GROUP_MAX + 1), ROOM)
    half = {"decided": DECIDED_MAX // 2}
    assert joins([entry(0, **half)], 0, entry(10, **half), ROOM)
    assert not joins([entry(0, **half)], 0, entry(10, decided=DECIDED_MAX // 2 + 1), ROOM)
    epochs = tuple((epoch, epoch) for epoch in range(RANGES_MAX))
    assert not joins([entry(0, epochs=epochs)], 0, entry(10), ROOM)
