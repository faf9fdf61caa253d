"""The plan: every wanted offset in exactly one split, as few bytes as the indexes allow, no hole without a word."""

from __future__ import annotations

import random
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logformat.records import Record, encode_batch
from tests.support.tier.cold_objects import T0, MadeObject, object_of, segment_object
from thermocline.pipeline.plan import OffsetSpan, Plan, TimeRange, cover, plan
from thermocline.pipeline.split import DataLoss, Loss

TOPIC_ID = UUID(int=5)


def objects(segments: list[list[int]], base: int = 0) -> list[MadeObject]:
    made = []
    for number, sizes in enumerate(segments):
        made.append(segment_object(base, sizes, n=number + 1, interval=200))
        base += sum(sizes)
    return made


def span(made: list[MadeObject], start: int, end: int, log_start: int = 0, **changes: object) -> OffsetSpan:
    entries = tuple(one.entry for one in made if one.entry.end_offset > start and one.entry.base_offset < end)
    remote_end = made[-1].entry.end_offset
    told: dict = {"segments": entries, "skipped": (), **changes}
    return OffsetSpan("events", TOPIC_ID, 0, start, end, log_start, remote_end, **told)


def footers(made: list[MadeObject]) -> dict:
    return {one.entry.uuid: one.footer for one in made}


def offsets_of(piece, made: list[MadeObject]) -> tuple[int, int]:
    """What the bytes of a piece hold, walked batch by batch."""
    from logformat.record_batch import walk

    log = next(one.log for one in made if one.entry.uuid == piece.segment.uuid)
    found = [header for _, header in walk(log[piece.log_start : piece.log_end])]
    assert sum(header.size for header in found) == piece.log_end - piece.log_start, "cut inside a batch"
    return found[0].base_offset, found[-1].next_offset


@given(
    segments=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=25), min_size=1, max_size=5),
    bounds=st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)),
    target=st.integers(100, 20_000),
    max_records=st.one_of(st.none(), st.integers(1, 200)),
    min_partitions=st.one_of(st.none(), st.integers(1, 20)),
    known=st.booleans(),
)
def test_each_offset_is_in_one_split_whose_bytes_hold_it(segments, bounds, target, max_records, min_partitions, known):
    """Whatever is cut: offsets tile the range, and every piece's bytes are whole batches that hold its offsets."""
    made = objects(segments)
    total = made[-1].entry.end_offset
    start, end = sorted((bounds[0] % (total + 1), bounds[1] % (total + 1)))
    found = plan(
        [span(made, start, end)],
        footers(made) if known else {},
        target_bytes=target,
        max_records=max_records,
        min_partitions=min_partitions,
    ).splits
    if start == end:
        assert not found
        return
    edges = [(split.rows.start_offset, split.rows.end_offset) for split in found]
    assert edges[0][0] == start and edges[-1][1] == end
    assert all(before[1] == after[0] for before, after in pairwise(edges))
    for split in found:
        if max_records is not None:
            assert split.rows.end_offset - split.rows.start_offset <= max_records
        at = split.rows.start_offset
        for piece in split.pieces:
            assert piece.start_offset == at < piece.end_offset
            first, after = offsets_of(piece, made)
            assert first <= piece.start_offset and piece.end_offset <= after
            at = piece.end_offset
        assert at == split.rows.end_offset


def test_even_shares_and_cuts_at_object_borders():
    """Shares come out near the target, and a border near a cut is taken without any footer."""
    made = objects([[10] * 20] * 6)
    size = made[0].entry.log_bytes
    found = plan([span(made, 0, 1200)], {}, target_bytes=2 * size)
    assert not found.wanted
    assert [len(split.pieces) for split in found.splits] == [2, 2, 2]
    assert all(split.log_bytes < 2.5 * size for split in found.splits)


def test_a_large_object_is_cut_inside_once_its_footer_is_known():
    """Without footers the plan is coarse and says which would help; with them neighbours share little."""
    made = objects([[10] * 400])
    size = made[0].entry.log_bytes
    coarse = plan([span(made, 0, 4000)], {}, target_bytes=size // 4)
    assert len(coarse.splits) == 1 and list(coarse.wanted.values()) == [made[0].entry]
    fine = plan([span(made, 0, 4000)], footers(made), target_bytes=size // 4)
    assert len(fine.splits) == 4 and not fine.wanted
    assert size <= sum(split.log_bytes for split in fine.splits) < 1.1 * size


def test_min_partitions_makes_smaller_splits():
    """As many as asked for, or nearly, as long as an index interval allows it."""
    made = objects([[200] * 40] * 4)
    for one in made:
        assert one.entry.log_bytes > 4 * 64 * 1024
    found = plan([span(made, 0, 32_000)], footers(made), min_partitions=13)
    assert 13 <= len(found.splits) <= 26


def test_offsets_inside_an_object_fetch_only_their_part():
    """Start and end lie inside objects: what is before and behind is not fetched, but for an interval and a batch."""
    made = objects([[10] * 100] * 2)
    (split,) = plan([span(made, 500, 1500)], footers(made)).splits
    assert split.log_bytes < 1.15 * made[0].entry.log_bytes


def test_time_prunes_objects_and_prefixes():
    """One hour out of many: objects outside are left out, and the prefix of the first one along its time index.

    What is younger is left out only where the caller says how late records are: see finding 1 below.
    """
    made = objects([[10] * 100] * 10)
    low, high = T0 + 2500, T0 + 4000
    found = plan([span(made, 0, 10_000)], footers(made), TimeRange(low, high, late_ms=0)).splits
    pieces = [piece for split in found for piece in split.pieces]
    assert {piece.segment.base_offset for piece in pieces} == {2000, 3000}
    first, _ = offsets_of(pieces[0], made)
    assert 2400 < first <= 2500
    assert sum(split.log_bytes for split in found) < 1.1 * 1.5 * made[3].entry.log_bytes
    assert found[0].rows.min_timestamp_ms == low and found[0].rows.max_timestamp_ms == high


def test_a_bound_on_lateness_ends_the_read_where_the_time_is_over():
    """One object of many hours: with a bound on how late records are, hardly more than the hour is fetched."""
    (made,) = objects([[10] * 400])
    low, high = T0 + 1000, T0 + 1400
    found = plan([span([made], 0, 4000)], footers([made]), TimeRange(low, high, late_ms=100)).splits
    ((piece,),) = [split.pieces for split in found]
    first, after = offsets_of(piece, [made])
    assert 950 <= first <= 1000 and 1500 <= after <= 1550
    whole = plan([span([made], 0, 4000)], footers([made]), TimeRange(low, high)).splits
    assert offsets_of(whole[0].pieces[0], [made])[1] == 4000
    coarse = plan([span([made], 0, 4000)], {}, TimeRange(None, high, late_ms=100))
    assert coarse.splits and not coarse.wanted, "a footer is not worth it for an object this small"


@given(
    stamps=st.lists(st.integers(0, 400), min_size=1, max_size=120),
    late=st.integers(0, 400),
    bounds=st.tuples(st.integers(0, 420), st.integers(0, 420)),
)
def test_no_record_within_the_lateness_is_left_out(stamps, late, bounds):
    """Records out of order by up to `late_ms`: every wanted one lies in a piece."""
    stamps = [max(stamp, max(stamps[:at], default=0) - late) for at, stamp in enumerate(stamps)]
    low, high = sorted(bounds)
    log = [
        encode_batch([Record(at, T0 + stamp, b"k", b"v" * 30)], base_offset=at, leader_epoch=1)
        for at, stamp in enumerate(stamps)
    ]
    made = object_of(log, 0, len(log), 1, 1, interval=200)
    times = TimeRange(T0 + low, T0 + high, late)
    pieces = [p for split in plan([span([made], 0, len(log))], footers([made]), times).splits for p in split.pieces]
    for at, stamp in enumerate(stamps):
        if low <= stamp < high:
            assert any(piece.start_offset <= at < piece.end_offset for piece in pieces), (at, stamp)


def test_skipped_pages_are_no_hole():
    """Ranges whose entries were not read for their times count as held."""
    made = objects([[10] * 10] * 4)
    found = plan([span(made, 0, 400, segments=(made[2].entry,), skipped=((0, 200), (300, 400)))], {})
    assert [piece.segment for split in found.splits for piece in split.pieces] == [made[2].entry]


@pytest.mark.parametrize(
    ("start", "end", "log_start", "left_out", "words"),
    [
        (0, 400, 0, 1, ["offsets [100, 200)", "no object"]),
        (0, 400, 0, 0, ["offsets [0, 100)", "no object"]),
        (0, 400, 0, 3, ["offsets [300, 400)", "no object"]),
        (50, 400, 60, None, ["offsets [50, 60)", "log starts at 60", "earliest"]),
        (0, 500, 0, None, ["offsets [400, 500)", "bucket ends at 400"]),
    ],
)
def test_what_no_object_holds_is_loss(start, end, log_start, left_out, words):
    """A hole between objects, a start below the log's, an end beyond the bucket's: an error with names, or counted."""
    made = objects([[10] * 10] * 4)
    entries = tuple(one.entry for number, one in enumerate(made) if number != left_out)
    asked = OffsetSpan("events", TOPIC_ID, 3, start, end, log_start, 400, entries)
    with pytest.raises(DataLoss) as caught:
        plan([asked], {})
    for word in ["events-3", *words]:
        assert word in str(caught.value)
    loss = Loss()
    held = plan([asked], {}, fail_on_data_loss=False, loss=loss)
    assert len(loss.damage) == 1 and words[0] in loss.damage[0]
    assert sum(split.rows.end_offset - split.rows.start_offset for split in held.splits) > 0


def test_partitions_come_in_order_whatever_order_they_are_given_in():
    """Splits are by topic, partition and offset."""
    made = objects([[10] * 10] * 4)
    spans = [
        OffsetSpan(topic, TOPIC_ID, partition, 0, 400, 0, 400, tuple(one.entry for one in made))
        for topic in ("b", "a")
        for partition in (1, 0)
    ]
    random.Random(1).shuffle(spans)
    found: Plan = plan(spans, {}, target_bytes=3000)
    places = [(split.topic, split.partition, split.rows.start_offset) for split in found.splits]
    assert places == sorted(places) and len(places) > 4


def test_cover_is_tight():
    """Each single offset costs at most an index interval and two batches, and its batch is in the bytes."""
    (made,) = objects([[3] * 300])
    for offset in range(0, 900, 7):
        first, end = cover(made.entry, made.footer, offset, offset + 1)
        assert end - first < 1500 < made.entry.log_bytes
