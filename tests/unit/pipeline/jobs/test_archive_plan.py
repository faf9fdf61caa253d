"""The arithmetic of "archived" and the choice of the next commit."""

from __future__ import annotations

import itertools
import os
import signal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldstore.manifest.manifest_entries import RemoteSegment
from logformat.errors import Corrupt
from thermocline.cli.main import main
from thermocline.pipeline.jobs import job_crash_points, offset_ranges
from thermocline.pipeline.jobs.archive_plan import BucketPartition, Expired, lost, next_step, only_new, remaining
from thermocline.pipeline.jobs.job_crash_points import POINTS, reach

RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6)
OFFSETS = st.dictionaries(st.integers(0, 3), RANGES, max_size=3)


def as_set(ranges: object) -> set[int]:
    return {offset for first, end in ranges for offset in range(first, end)}  # type: ignore[attr-defined]


def segment(base: int, end: int, *, size: int = 1000, newest: int | None = None) -> RemoteSegment:
    return RemoteSegment(
        uuid=UUID(int=base + 1, version=4),
        base_offset=base,
        end_offset=end,
        leader_epoch=1,
        log_bytes=size,
        object_bytes=size + 100,
        records=end - base,
        min_timestamp_ms=base,
        max_timestamp_ms=end if newest is None else newest,
        crc32c=1,
    )


def log(partition: int, *borders: int, start: int | None = None, size: int = 1000) -> BucketPartition:
    segments = [segment(first, end, size=size) for first, end in itertools.pairwise(borders)]
    return BucketPartition(partition, borders[0] if start is None else start, borders[-1], segments)


@given(RANGES, RANGES)
def test_ranges_are_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    """Union, difference and overlap of ranges are those of the sets of their offsets, in normal form."""
    assert as_set(offset_ranges.normal([*one, *other])) == as_set(one) | as_set(other)
    assert as_set(offset_ranges.minus(one, other)) == as_set(one) - as_set(other)
    assert as_set(offset_ranges.overlap(one, other)) == as_set(one) & as_set(other)
    for made in (offset_ranges.normal(one), offset_ranges.minus(one, other), offset_ranges.overlap(one, other)):
        assert all(first < end for first, end in made)
        assert all(end < first for (_, end), (first, _) in itertools.pairwise(made))


@given(OFFSETS, OFFSETS)
def test_offsets_by_partition_survive_their_text(one: object, other: object) -> None:
    """What a snapshot's property holds is what was put there; equal sets have equal texts."""
    made = offset_ranges.union(one, other)  # type: ignore[arg-type]
    assert offset_ranges.decode(offset_ranges.encode(made)) == made
    again = offset_ranges.union(other, one)  # type: ignore[arg-type]
    assert offset_ranges.encode(again) == offset_ranges.encode(made)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"0":[]}', '{"0":[[5,5]]}', '{"0":[[0,5],[5,9]]}', '{"0":[[6,9],[0,5]]}', '{"-1":[[0,5]]}']
)
def test_a_property_that_is_no_set_of_offsets_is_refused(text: str) -> None:
    with pytest.raises(Corrupt):
        offset_ranges.decode(text)


def test_a_step_takes_whole_segments_in_the_order_of_time() -> None:
    """A back-fill grows in time over all partitions: the step ends where the next segment would not fit."""
    logs = [log(0, 0, 10, 30, 60), log(1, 0, 20, 40, 80)]
    step = next_step(logs, {}, {}, 3000)
    assert step is not None and dict(step.ranges) == {0: (0, 30), 1: (0, 20)}
    assert (step.log_bytes, step.records, step.dead_letters_committed) == (3000, 50, False)


def test_a_segment_larger_than_a_commit_is_a_commit() -> None:
    step = next_step([log(0, 0, 10, size=5000)], {}, {}, 100)
    assert step is not None and dict(step.ranges) == {0: (0, 10)}


def test_a_step_begins_where_the_archive_ends_and_counts_no_records_of_a_cut_segment() -> None:
    step = next_step([log(0, 0, 10, 20)], {0: ((0, 5),)}, {}, 10**9)
    assert step is not None and dict(step.ranges) == {0: (5, 20)} and step.records is None


def test_offsets_whose_dead_letters_stand_come_first_and_alone() -> None:
    """A run died between its two commits: the table takes exactly those offsets next."""
    logs = [log(0, 0, 10, 20), log(1, 0, 10)]
    step = next_step(logs, {0: ((0, 5),)}, {0: ((0, 10),)}, 10**9)
    assert step is not None and dict(step.ranges) == {0: (5, 10)} and step.dead_letters_committed
    after = next_step(logs, {0: ((0, 10),)}, {0: ((0, 10),)}, 10**9)
    assert after is not None and dict(after.ranges) == {0: (10, 20), 1: (0, 10)} and not after.dead_letters_committed


def test_what_expired_before_it_was_archived_is_lost_and_said() -> None:
    """A partition of which nothing is archived begins where its log did when the archive began."""
    logs = [log(0, 30, 40), log(1, 30, 40)]
    assert lost(logs, {0: ((0, 10),)}, None) == [Expired(0, 10, 30)]
    assert lost(logs, {0: ((0, 10),)}, {0: 0, 1: 30}) == [Expired(0, 10, 30)]
    assert lost(logs, {0: ((20, 30),)}, {0: 20, 1: 25}) == [Expired(1, 25, 30)]
    assert lost(logs, {0: ((20, 30),)}, {0: 20}) == [Expired(1, 0, 30)], "a partition added since begins at 0"
    step = next_step(logs, {0: ((0, 10),)}, {}, 10**9)
    assert step is not None and dict(step.ranges) == {0: (30, 40), 1: (30, 40)}


def test_a_hole_between_segments_stays_in_the_range() -> None:
    """Nobody may skip it here: the reader refuses the range, or counts it."""
    holed = BucketPartition(0, 0, 30, [segment(0, 10), segment(20, 30)])
    step = next_step([holed], {}, {}, 10**9)
    assert step is not None and dict(step.ranges) == {0: (0, 30)}


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=3),
    st.integers(500, 5000),
    OFFSETS,
    st.data(),
)
def test_steps_tile_what_remains(sizes: list[list[int]], bytes_max: int, ahead: object, data: st.DataObject) -> None:
    """Whatever stands already and however small the commits: in the end every offset is archived, none twice, and no
    step mixes offsets whose dead letters stand with others."""
    logs = []
    for partition, parts in enumerate(sizes):
        borders = [sum(parts[:n]) for n in range(len(parts) + 1)]
        logs.append(log(partition, *borders))
    ends = {one.partition: ((0, one.end),) for one in logs}
    archived = offset_ranges.common(ends, offset_ranges.union(data.draw(OFFSETS), {}))
    dead = offset_ranges.union(offset_ranges.common(ends, offset_ranges.union(ahead, {})), archived)  # type: ignore[arg-type]
    for _ in range(200):
        step = next_step(logs, archived, dead, bytes_max)
        if step is None:
            break
        assert only_new(step, archived) and step.ranges
        mixed = offset_ranges.difference(step.offsets, dead)
        assert mixed == ({} if step.dead_letters_committed else step.offsets)
        archived = offset_ranges.union(archived, step.offsets)
        dead = offset_ranges.union(dead, step.offsets)
    assert archived == ends and not remaining(logs, archived)


def test_the_command_line_lists_the_points_where_a_job_may_die(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "job-crash-points"]) == 0
    assert capsys.readouterr().out.split() == list(POINTS)


def test_a_point_is_passed_unless_testing_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is the one that was named, for the second time."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(job_crash_points, "_left", None)
    monkeypatch.setattr(os, "kill", lambda process, word: killed.append((process, word)))
    monkeypatch.setenv("THERMOCLINE_CRASH_AT", "archive.planned:2")
    monkeypatch.delenv("THERMOCLINE_TESTING", raising=False)
    reach("archive.planned")
    reach("archive.planned")
    monkeypatch.setenv("THERMOCLINE_TESTING", "true")
    reach("archive.committed")
    reach("archive.planned")
    assert killed == []
    reach("archive.planned")
    assert killed == [(os.getpid(), signal.SIGKILL)]
