"""The manifest as a value: its edits keep the books, whatever their order and however often they come."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from coldstore.manifest.manifest import EditRefused, Manifest, RemoteSegment, SnapshotPointer, Totals, new_manifest
from coldstore.manifest.manifest_entries import GAPS_IN_ROOT_MAX, ZERO_HASH, hash_of, totals_of
from logformat.errors import Corrupt, Fenced, InvalidRequest
from tests.support.tier.cold_values import TOPIC_ID, remote_segment


def empty(epoch: int = 1) -> Manifest:
    return new_manifest(TOPIC_ID, 0, epoch, "events", {"retention.ms": "-1"})


def filled(*ends: int) -> Manifest:
    manifest = empty()
    for base, end in zip((0, *ends), ends, strict=False):
        manifest = manifest.add(remote_segment(base, end))
    manifest.check()
    return manifest


class Model:
    """What the books should say, kept the slow way."""

    def __init__(self) -> None:
        self.added: list[RemoteSegment] = []
        self.live: list[RemoteSegment] = []
        self.log_start = self.remote_end = self.cursor = 0

    def compare(self, manifest: Manifest) -> None:
        manifest.check()
        assert manifest.added == totals_of(self.added)
        assert manifest.live == totals_of(self.live) == manifest.added - manifest.removed
        assert manifest.live_hash == hash_of(list(reversed(self.live)))
        assert manifest.tail == tuple(self.live)
        assert (manifest.log_start_offset, manifest.remote_end_offset) == (self.log_start, self.remote_end)
        assert manifest.deletion_cursor == self.cursor <= self.log_start


STEP = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 50)),
    st.tuples(st.just("start"), st.integers(0, 400)),
    st.tuples(st.just("expire"), st.integers(0, 4)),
    st.tuples(st.just("skip"), st.integers(1, 30)),
    st.tuples(st.just("withdraw"), st.just(0)),
    st.tuples(st.just("again"), st.integers(0, 3)),
)


@given(st.lists(STEP, max_size=40))
def test_design_c13_conservation_over_any_history(steps: list[tuple[str, int]]) -> None:
    """added − removed = live, the live hash is that of what is live, whatever happens in whatever order, and repeating
    the last edits changes nothing (a commit of unknown outcome is made again)."""
    manifest, model = empty(), Model()
    done: list[Callable[[Manifest], Manifest]] = []
    for kind, n in steps:
        edit: Callable[[Manifest], Manifest] | None = None
        if kind == "add" or (kind == "skip" and model.log_start > model.remote_end):
            base = model.remote_end if kind == "add" else min(model.log_start, model.remote_end + n)
            segment = remote_segment(base, base + n)
            edit = lambda m, s=segment: m.add(s)  # noqa: E731
            model.added.append(segment)
            model.live.append(segment)
            model.remote_end = base + n
        elif kind == "start":
            edit = lambda m, o=n: m.set_log_start(o)  # noqa: E731
            model.log_start = max(model.log_start, n)
        elif kind == "expire":
            dead = [s for s in model.live if s.end_offset <= model.log_start][:n]
            edit = lambda m, d=dead: m.expire(d)  # noqa: E731
            model.live = model.live[len(dead) :]
            model.cursor = dead[-1].end_offset if dead else model.cursor
        elif kind == "withdraw":
            listed = list(model.live)
            edit = lambda m, d=listed: m.withdraw(d)  # noqa: E731
            if listed:
                model.live = []
                bases = [s.base_offset for s in listed if s.end_offset > model.log_start]
                model.remote_end = min(bases[0], model.log_start) if bases else model.remote_end
        elif kind == "again":
            for repeated in done[-1 - n :]:
                assert repeated(manifest) in (manifest,)
            continue
        if edit is not None:
            manifest = edit(manifest)
            done = [edit]
        model.compare(manifest)


@given(st.permutations(list(range(6))))
def test_design_c13_the_hash_does_not_depend_on_order(order: list[int]) -> None:
    segments = [remote_segment(n * 10, n * 10 + 10) for n in range(6)]
    assert hash_of([segments[n] for n in order]) == hash_of(segments)


def test_design_c13_a_same_size_substitution_shows_as_arithmetic() -> None:
    """Another object of the same range, size, and counts in the tail: every count agrees, the hash does not."""
    manifest = filled(10, 20, 30)
    swapped = replace(manifest.tail[1], uuid=UUID(int=99, version=4))
    forged = replace(manifest, tail=(manifest.tail[0], swapped, manifest.tail[2]))
    assert totals_of(forged.tail) == forged.live
    with pytest.raises(Corrupt):
        forged.check()
    with pytest.raises(Corrupt):
        replace(manifest, tail=(manifest.tail[0], replace(manifest.tail[1], crc32c=1), manifest.tail[2])).check()


def test_design_c13_a_lost_entry_shows_as_arithmetic() -> None:
    manifest = filled(10, 20, 30)
    with pytest.raises(Corrupt):
        replace(manifest, tail=manifest.tail[1:]).check()
    with pytest.raises(Corrupt):
        replace(manifest, live=Totals()).check()


def test_a_segment_begins_at_the_remote_end() -> None:
    """Overlap and hole are refused (C5); offsets below the log start may be skipped."""
    manifest = filled(10, 20)
    for base in (0, 10, 19, 21, 30):
        with pytest.raises(EditRefused):
            manifest.add(remote_segment(base, 40, n=7))
    skipping = manifest.set_log_start(35).add(remote_segment(30, 40))
    skipping.check()
    assert skipping.remote_end_offset == 40
    with pytest.raises(EditRefused):
        manifest.set_log_start(35).add(remote_segment(36, 40))


def test_design_c02_only_objects_of_the_roots_epoch_are_added() -> None:
    """A copy made under an earlier epoch is not named by a later one: gc may have it already."""
    manifest = filled(10).claim(2, "events", {})
    with pytest.raises(EditRefused):
        manifest.add(remote_segment(10, 20, epoch=1))
    assert manifest.add(remote_segment(10, 20, epoch=2)).remote_end_offset == 20
    with pytest.raises(EditRefused):
        manifest.add(remote_segment(10, 20, epoch=3))


def test_claims_only_go_up() -> None:
    manifest = empty(5)
    with pytest.raises(Fenced):
        manifest.claim(4, "events", {})
    assert manifest.claim(5, "events", {}) == replace(manifest, configs={})
    claimed = manifest.claim(6, "renamed", {"a": "b"})
    assert (claimed.leader_epoch, claimed.topic, claimed.configs) == (6, "renamed", {"a": "b"})


def test_expiring_needs_the_log_start_first() -> None:
    """Order of deletion: the start moves, objects go, the cursor follows (design 5)."""
    manifest = filled(10, 20, 30)
    with pytest.raises(EditRefused):
        manifest.expire(manifest.tail[:1])
    with pytest.raises(EditRefused):
        manifest.set_log_start(19).expire(manifest.tail[:2])
    expired = manifest.set_log_start(20).expire(manifest.tail[:2])
    expired.check()
    assert expired.deletion_cursor == 20 and expired.coverage_start == 20 and expired.live.segments == 1
    assert expired.expire(manifest.tail[:2]) == expired


def test_expiring_what_is_not_there_is_refused() -> None:
    """Leaving one out, another object, or none of the right ones: the books would not balance."""
    manifest = filled(10, 20, 30).set_log_start(30)
    for removed in (
        manifest.tail[1:2],
        [manifest.tail[0], manifest.tail[2]],
        [manifest.tail[0], remote_segment(10, 20, n=5)],
        [remote_segment(0, 20)],
    ):
        with pytest.raises(EditRefused):
            manifest.expire(removed)


def test_everything_expired_leaves_empty_books_and_the_remote_end() -> None:
    manifest = filled(10, 20).set_log_start(50)
    gone = manifest.expire(manifest.tail)
    gone.check()
    assert (gone.live, gone.live_hash, gone.remote_end_offset, gone.coverage_start) == (Totals(), ZERO_HASH, 20, 20)
    assert gone.removed == gone.added


def test_withdrawing_names_nothing_and_begins_again_where_the_log_start_is_held() -> None:
    """Tiering was switched off: all that was listed goes from the books at once, or nothing does. The log start stands
    inside a segment, perhaps inside a batch: a copy begins with both."""
    manifest = filled(10, 20, 30).set_log_start(12)
    with pytest.raises(EditRefused, match="changed"):
        manifest.withdraw(manifest.tail[1:])
    bare = manifest.withdraw(manifest.tail)
    bare.check()
    assert (bare.remote_end_offset, bare.log_start_offset, bare.live.segments) == (10, 12, 0)
    assert bare.withdraw(manifest.tail) == bare, "a commit of unknown outcome is made again"
    all_below = filled(10, 20).set_log_start(50)
    assert all_below.withdraw(all_below.tail).remote_end_offset == 20
    again = bare.add(remote_segment(10, 40))
    again.check()
    with pytest.raises(EditRefused, match="changed"):
        again.withdraw(manifest.tail)


def test_reservations_rise_and_fall_only_to_what_the_bucket_shows() -> None:
    """The one number that may fall, and only to an end at which no given offset lies above (C6, C7)."""
    manifest = filled(10).reserve(1000).reserve(500)
    assert manifest.reserved_end_offset == 1000
    for end in (0, 9, 11, 999):
        with pytest.raises(EditRefused):
            manifest.release_reservation(end)
    released = manifest.release_reservation(10)
    assert released.reserved_end_offset == 10 and released.release_reservation(10) == released
    assert manifest.set_log_start(40).release_reservation(40).reserved_end_offset == 40


def test_snapshots_go_forward() -> None:
    first = SnapshotPointer(uuid=UUID(int=1), epoch=1, end_offset=10, length=5, crc32c=1)
    second = replace(first, uuid=UUID(int=2), end_offset=20)
    manifest = empty().set_snapshot(second)
    assert manifest.set_snapshot(second) is manifest
    with pytest.raises(EditRefused):
        manifest.set_snapshot(first)
    with pytest.raises(EditRefused):
        manifest.set_snapshot(replace(second, uuid=UUID(int=3), epoch=2))
    assert manifest.bucket_end_offset == 20


def test_declared_gaps_are_merged_named_and_bounded() -> None:
    manifest = empty()
    manifest = manifest.add(remote_segment(0, 100, gaps=((50, 100),), records=50))
    manifest = manifest.add(remote_segment(100, 200, gaps=((100, 120),), records=80))
    manifest.check()
    assert manifest.gaps == ((50, 120),)
    gone = manifest.set_log_start(200).expire(manifest.tail)
    assert gone.gaps == ()
    many = manifest
    for n in range(GAPS_IN_ROOT_MAX + 5):
        base = 200 + 10 * n
        many = many.add(remote_segment(base, base + 10, gaps=((base + 2, base + 5),), records=7))
    many.check()
    assert len(many.gaps) == GAPS_IN_ROOT_MAX and many.gaps[-1] == (base + 2, base + 5)


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_impossible_offsets_are_refused(offset: int) -> None:
    with pytest.raises(InvalidRequest):
        empty().set_log_start(offset)
    with pytest.raises(InvalidRequest):
        empty().reserve(offset)


@pytest.mark.parametrize(
    "changes",
    [
        {"end_offset": 0},
        {"base_offset": -1},
        {"leader_epoch": -1},
        {"log_bytes": 0},
        {"object_bytes": 5},
        {"records": 11},
        {"max_timestamp_ms": 0},
        {"crc32c": 2**32},
        {"gaps": ((5, 11),)},
        {"gaps": ((5, 5),)},
        {"gaps": ((5, 7), (6, 8))},
        {"epochs": ((2, 0), (1, 5))},
        {"epochs": ((1, 5), (2, 5))},
        {"epochs": ((1, 10),)},
        {"epochs": tuple((n, n) for n in range(2000))},
    ],
)
def test_impossible_entries_are_corrupt(changes: dict[str, object]) -> None:
    """An entry from a hostile root or page, or from our own bug, goes no further."""
    with pytest.raises(Corrupt):
        empty().add(replace(remote_segment(0, 10), **changes))


def test_offsets_near_the_end_of_int64() -> None:
    """T12: nothing overflows where offsets end."""
    top = 2**63 - 1
    manifest = empty().set_log_start(top - 100).add(remote_segment(top - 100, top))
    manifest.check()
    assert manifest.remote_end_offset == top
    back = msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest)
    assert back == manifest


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_manifest_is_refused_or_another_valid_one(data: st.DataObject) -> None:
    """One byte of its JSON changed: decoding or `check` refuses, or what comes out passes every rule (a changed topic
    name, a higher reservation): never another exception."""
    text = bytearray(msgspec.json.encode(filled(10, 20, 30).set_log_start(12).reserve(500)))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255))
    try:
        found = msgspec.json.decode(bytes(text), type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return
    try:
        found.check()
    except Corrupt:
        return
    assert found.added - found.removed == found.live
