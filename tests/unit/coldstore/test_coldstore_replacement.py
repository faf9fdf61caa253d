"""The edit "replace these entries by those", against a model: a list of segments, and books that are summed anew."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coldstore.inspection.audit import audit_manifest
from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.manifest.manifest import EditRefused, Manifest, RemoteSegment, new_manifest
from coldstore.manifest.manifest_entries import REPLACED_MAX
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.manifest.replacement import forget_replaced, replace_segments, restart_graces, set_clean_end
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.store.memory_store import MemoryStore
from tests.support.workers import LoopWorkers

TOPIC_ID = UUID(int=77)


def segment(number: int, base: int, end: int, epoch: int = 1) -> RemoteSegment:
    return RemoteSegment(
        uuid=UUID(int=number),
        base_offset=base,
        end_offset=end,
        leader_epoch=epoch,
        log_bytes=100 + number,
        object_bytes=200 + number,
        records=end - base,
        min_timestamp_ms=1,
        max_timestamp_ms=2,
        crc32c=number,
    )


def filled(count: int) -> Manifest:
    manifest = new_manifest(TOPIC_ID, 0, 1, "t", {})
    for number in range(count):
        manifest = manifest.add(segment(number, 10 * number, 10 * number + 10))
    return manifest


@dataclass
class Model:
    """What the bucket should hold: live segments in order, replaced uuids, the next uuid."""

    live: list[RemoteSegment]
    replaced: list[UUID] = field(default_factory=list)
    following: int = 1000


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5), st.integers(0, 3)), max_size=12))
def test_any_sequence_of_replacements_is_what_a_list_does(count: int, steps: list[tuple[int, int, int]]) -> None:
    manifest = filled(count)
    model = Model(list(manifest.tail))
    for at, length, kind in steps:
        at %= len(model.live)
        old = model.live[at : at + length]
        new = segment(model.following, old[0].base_offset, old[-1].end_offset)
        model.following += 1
        if kind == 0:  # what is not there
            with pytest.raises(EditRefused):
                replace_segments(manifest, [segment(999, old[0].base_offset, old[-1].end_offset)], [new], None, 5)
            continue
        if kind == 1:  # another range
            longer = segment(model.following, new.base_offset, new.end_offset + 1)
            with pytest.raises(EditRefused):
                replace_segments(manifest, old, [longer], None, 5)
            continue
        manifest = replace_segments(manifest, old, [new], None, 5)
        assert replace_segments(manifest, old, [new], None, 6) == manifest  # an unknown outcome is made again
        model.live[at : at + length] = [new]
        model.replaced += [each.uuid for each in old]
    manifest.check()
    assert list(manifest.tail) == model.live
    assert [each.uuid for each in manifest.replaced] == model.replaced
    assert audit_manifest(manifest, model.live) == []
    assert forget_replaced(manifest, model.replaced).replaced == ()


def test_entries_that_were_replaced_do_not_expire() -> None:
    """Regression: the objects that replaced them reach above the log start. The edit took the old entries from the
    totals, and the root could not be read any more."""
    manifest = filled(4)
    (first, *_) = old = manifest.tail
    manifest = replace_segments(manifest, old, [segment(1000, 0, 20), segment(1001, 20, 40)], None, 5)
    with pytest.raises(EditRefused, match="differ"):
        manifest.set_log_start(10).expire([first])


def test_it_refuses_a_range_below_the_log_start_a_foreign_epoch_and_a_full_list() -> None:
    manifest = filled(REPLACED_MAX + 4)
    old = manifest.tail[:2]
    new = segment(2000, 0, 20)
    with pytest.raises(EditRefused, match="log starts"):
        replace_segments(manifest.set_log_start(10), old, [new], None, 0)
    with pytest.raises(EditRefused, match="epoch"):
        replace_segments(manifest, old, [segment(2000, 0, 20, epoch=0)], None, 0)
    whole = segment(2001, 0, 10 * (REPLACED_MAX + 1))
    with pytest.raises(EditRefused, match="wait for the end"):
        replace_segments(manifest, manifest.tail[: REPLACED_MAX + 1], [whole], None, 0)
    with pytest.raises(EditRefused):
        set_clean_end(manifest, manifest.remote_end_offset + 1)
    assert set_clean_end(set_clean_end(manifest, 30), 10).clean_end_offset == 30
    later = replace_segments(manifest, old, [new], None, 9_000)
    assert [each.since_ms for each in restart_graces(later, 100).replaced] == [100, 100]


@pytest.mark.parametrize("pointers_in_root_max", [1, 100])
async def test_pages_that_list_a_replaced_segment_are_written_anew(pointers_in_root_max: int) -> None:
    store = MemoryStore()
    manifests = ManifestStore(
        store,
        TOPIC_ID,
        0,
        SeededRng(3),
        FastClock(),
        root_bytes_max=14_000,
        page_entries_min=8,
        pointers_in_root_max=pointers_in_root_max,
    )
    await manifests.create(1, "t", {}, 0)
    await manifests.claim(1, "t", {})
    live = [segment(number, 10 * number, 10 * number + 10) for number in range(400)]
    for entry in live:
        await manifests.commit(lambda m, entry=entry: m.add(entry))  # type: ignore[misc]
    manifest = manifests.manifest
    assert manifest is not None and manifest.pages
    assert bool(manifest.pages[0].level) == (pointers_in_root_max == 1)
    borders = {pointer.end_offset async for pointer in manifests.leaves()}
    at, number = 0, 5000
    while at < len(live) - 3:
        old = live[at : at + 1 if live[at].end_offset in borders else at + 2]
        new = segment(number, old[0].base_offset, old[-1].end_offset)
        number += 1
        await manifests.replace(old, [new], now_ms=1)
        live[at : at + len(old)] = [new]
        assert [each async for each in manifests.segments()] == live
        at += 35
    view = await BucketInspector(store, LoopWorkers()).view(TOPIC_ID, 0)
    assert view is not None and list(view.live) == live
    view.manifest.check()
    assert audit_manifest(view.manifest, view.live) == []
    dropped = set(manifests.take_unnamed())
    assert dropped and not dropped & set(view.page_sizes)
    pages = {key for key in store.objects if "/pages/" in key}
    assert pages == dropped | set(view.page_sizes)
    with pytest.raises(EditRefused):
        await manifests.replace([segment(1, 10, 20)], [segment(9999, 10, 20)], now_ms=1)
