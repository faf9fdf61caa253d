"""Offsets of the Spark source: the JSON in options and checkpoints, from positions to ranges, and admission."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.errors import InvalidRequest
from logformat.values import TopicPartition
from thermocline.pipeline.spark.options import ByOffset, ByTimestamp, Edge
from thermocline.pipeline.spark.planning import ranges
from thermocline.pipeline.spark.planning.admission import admit, pending
from thermocline.pipeline.spark.planning.offsets import Progress, offsets_to_json, parse_offsets
from thermocline.pipeline.spark.planning.ranges import Extent

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
EXTENTS = {A0: Extent(10, 100), A1: Extent(0, 0)}

names = st.from_regex(r"[a-z][a-z0-9._-]{0,9}", fullmatch=True)
partitions = st.builds(TopicPartition, names, st.integers(0, 20))


@given(st.dictionaries(partitions, st.integers(0, (1 << 63) - 1)), st.dictionaries(names, st.uuids()))
def test_progress_survives_the_checkpoint(offsets: dict[TopicPartition, int], ids: dict[str, UUID]) -> None:
    """What Spark writes down and reads back as JSON is the same progress, to the offset."""
    progress = Progress(offsets, ids)
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_equal_progress_is_equal_text() -> None:
    """Spark compares checkpoints as text: order must not come from a dict."""
    one = Progress({A1: 1, A0: 2, TopicPartition("a", 10): 3})
    other = Progress({TopicPartition("a", 10): 3, A0: 2, A1: 1})
    assert json.dumps(one.to_json()) == json.dumps(other.to_json()) == '{"a": {"0": 2, "1": 1, "10": 3}}'


def test_a_checkpoint_of_sparks_own_kafka_source_is_read() -> None:
    """It has no topic ids; a stream may move over with its offsets."""
    assert Progress.from_json({"a": {"0": 5}}) == Progress({A0: 5})


@pytest.mark.parametrize("value", [[1], {"a": 5}, {"a": {"0": -1}}, {"a": {"0": 1}, "@topic_ids": {"a": "x"}}])
def test_a_foreign_checkpoint_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="checkpoint"):
        Progress.from_json(value)


def test_offsets_parse_what_they_print() -> None:
    offsets = {A0: 5, A1: -1}
    assert parse_offsets(json.dumps(offsets_to_json(offsets)), "startingOffsets") == offsets


def test_earliest_and_latest() -> None:
    assert ranges.starts(Edge.EARLIEST, EXTENTS, {}, False, []) == {A0: 10, A1: 0}
    assert ranges.starts(Edge.LATEST, EXTENTS, {}, False, []) == {A0: 100, A1: 0}
    assert ranges.ends(Edge.LATEST, EXTENTS, {}, []) == {A0: 100, A1: 0}


def test_offsets_by_partition_must_name_all_that_is_read() -> None:
    position = ByOffset("startingOffsets", {A0: 20})
    with pytest.raises(InvalidRequest, match="leaves out a-1"):
        ranges.starts(position, EXTENTS, {}, False, [])
    position = ByOffset("startingOffsets", {A0: 20, A1: -2, TopicPartition("b", 0): 1})
    with pytest.raises(InvalidRequest, match="names b-0"):
        ranges.starts(position, EXTENTS, {}, False, [])


def test_an_offset_outside_the_log_is_cut_and_told() -> None:
    """Below the start retention took records; beyond the end there is nothing yet: neither passes silently."""
    lost: list[str] = []
    assert ranges.starts(ByOffset("s", {A0: 3, A1: -1}), EXTENTS, {}, False, lost) == {A0: 10, A1: 0}
    assert ranges.ends(ByOffset("e", {A0: 101, A1: -1}), EXTENTS, {}, lost) == {A0: 100, A1: 0}
    assert len(lost) == 2 and "3–9" in lost[0] and "101" in lost[1]


def test_a_time_later_than_every_record() -> None:
    """An error by default, as in Spark's source; the end with the strategy `latest`, and always for an end."""
    position = ByTimestamp("startingTimestamp", 5)
    assert ranges.times_to_find(position, EXTENTS) == {A0: 5, A1: 5}
    with pytest.raises(InvalidRequest, match="startingOffsetsByTimestampStrategy=latest"):
        ranges.starts(position, EXTENTS, {A0: 20, A1: None}, False, [])
    assert ranges.starts(position, EXTENTS, {A0: 20, A1: None}, True, []) == {A0: 20, A1: 0}
    assert ranges.ends(position, EXTENTS, {A0: None, A1: None}, []) == {A0: 100, A1: 0}


@st.composite
def backlogs(draw: st.DrawFn) -> tuple[dict, dict, dict, int]:
    starts, ends, gaps = {}, {}, {}
    for number in range(draw(st.integers(1, 5))):
        tp = TopicPartition("t", number)
        points = sorted(draw(st.lists(st.integers(0, 2000), min_size=6, max_size=6, unique=True)))
        starts[tp], ends[tp] = points[0], points[5]
        gaps[tp] = [(points[1], points[2]), (points[3], points[4])]
    return starts, ends, gaps, draw(st.integers(1, 5000))


@given(backlogs())
def test_a_batch_has_the_limit_and_not_one_more(backlog: tuple[dict, dict, dict, int]) -> None:
    """min(limit, what is there) offsets outside gaps; nobody goes back or past its end."""
    starts, ends, gaps, limit = backlog
    admitted = admit(starts, ends, limit, gaps)
    assert all(starts[tp] <= admitted[tp] <= ends[tp] for tp in starts)
    taken = sum(pending(starts[tp], admitted[tp], gaps[tp]) for tp in starts)
    assert taken == min(limit, sum(pending(starts[tp], ends[tp], gaps[tp]) for tp in starts))


@given(backlogs())
def test_batch_by_batch_a_stream_arrives(backlog: tuple[dict, dict, dict, int]) -> None:
    """However small the limit, every batch gets nearer to the end, which is reached after total ÷ limit batches."""
    starts, ends, gaps, limit = backlog
    total = sum(pending(starts[tp], ends[tp], gaps[tp]) for tp in starts)
    at = starts
    for _ in range(-(-total // limit)):
        after = admit(at, ends, limit, gaps)
        assert after != at
        at = after
    assert all(pending(at[tp], ends[tp], gaps[tp]) == 0 for tp in at)


def test_shares_are_proportional_and_a_gap_is_free() -> None:
    """900 and 100 waiting, limit 100 → 90 and 10; a hole of a million offsets at the start is stepped over."""
    assert admit({A0: 0, A1: 0}, {A0: 900, A1: 100}, 100, {}) == {A0: 90, A1: 10}
    assert admit({A0: 0}, {A0: 1_000_500}, 10, {A0: [(0, 1_000_000)]}) == {A0: 1_000_010}


def test_a_start_beyond_the_end_stays() -> None:
    """A stream that ran with the hot tail and now runs without it waits for the bucket; it never goes back."""
    assert admit({A0: 120}, {A0: 100}, None, {}) == {A0: 120}
    assert admit({A0: 120, A1: 0}, {A0: 100, A1: 50}, 10, {}) == {A0: 120, A1: 10}
