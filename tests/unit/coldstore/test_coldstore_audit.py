"""Audit and gc: what is missing, damaged, overlapping or unbalanced is found; what may yet be named is not deleted."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from coldstore.inspection.audit import (
    FindingKind,
    NamedKeys,
    audit_chunks,
    audit_footer,
    audit_listing,
    audit_manifest,
    gc_plan,
    named_by,
    orphan_findings,
    partitions_in,
)
from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.keys import MetadataKey, PageKey, SegmentKey, SnapshotKey, manifest_key
from coldstore.manifest.manifest import Manifest, RemoteSegment, SnapshotPointer, new_manifest
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import ObjectInfo
from logformat.errors import Fenced
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock, run_fast
from tests.support.store.memory_store import MemoryStore, StoredObject
from tests.support.tier.cold_objects import MadeObject, segment_object
from tests.support.tier.cold_values import TOPIC_ID, remote_segment
from tests.support.workers import LoopWorkers

KINDS = FindingKind


def filled(*ends: int) -> Manifest:
    manifest = new_manifest(TOPIC_ID, 0, 1, "events", {})
    for base, end in zip((0, *ends), ends, strict=False):
        manifest = manifest.add(remote_segment(base, end))
    return manifest


def info(key: object, size: int = 1) -> ObjectInfo:
    return ObjectInfo(str(key), size, '"e"')


def listing_of(manifest: Manifest) -> list[ObjectInfo]:
    return [info(s.key(TOPIC_ID, 0), s.object_bytes) for s in manifest.tail] + [info(manifest_key(TOPIC_ID, 0), 900)]


def object_key(epoch: int, n: int = 99) -> SegmentKey:
    return SegmentKey(TOPIC_ID, 0, 10, epoch, UUID(int=n, version=4))


# ── gc ───────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_design_c02_gc_deletes_only_what_no_commit_can_name_any_more() -> None:
    """Unnamed: below the root's epoch it goes, of the root's epoch (a leader between upload and commit) or above it
    stays; roots and strangers are not judged."""
    manifest = replace(filled(10, 20), leader_epoch=5)
    strangers = [info("topics/readme.txt"), info("x")]
    old, own, newer = info(object_key(4)), info(object_key(5)), info(object_key(6))
    page = info(PageKey(TOPIC_ID, 0, 0, 10, 4, UUID(int=7)))
    snapshot = info(SnapshotKey(TOPIC_ID, 0, 10, 5, UUID(int=8)))
    plan = gc_plan(
        [*listing_of(manifest), *strangers, old, own, newer, page, snapshot], named_by(manifest, manifest.tail, [])
    )
    assert plan.deletable == (old, page) and plan.deletable_bytes == 2
    assert plan.pending == (own, newer, snapshot) and plan.unknown == tuple(strangers)


def test_gc_spares_everything_named() -> None:
    """Segments (also those whose deletion is under way), pages and the snapshot, whatever the epoch in their keys."""
    snapshot = SnapshotPointer(uuid=UUID(int=8), epoch=1, end_offset=20, length=1, crc32c=0)
    manifest = filled(10, 20).set_snapshot(snapshot).set_log_start(15).claim(9, "events", {})
    page = PageKey(TOPIC_ID, 0, 0, 10, 1, UUID(int=7))
    objects = [*listing_of(manifest), info(page), info(snapshot.key(TOPIC_ID, 0))]
    plan = gc_plan(objects, named_by(manifest, manifest.tail, [str(page)]))
    assert plan.deletable == plan.pending == plan.unknown == ()


def test_without_a_root_nothing_is_judged() -> None:
    plan = gc_plan([info(object_key(0)), info("zzz")], None)
    assert plan.deletable == () and len(plan.pending) == 1 and len(plan.unknown) == 1


def test_the_clusters_own_pages_go_by_the_same_rule() -> None:
    named = MetadataKey(1, 3, UUID(int=1))
    old, own = MetadataKey(0, 2, UUID(int=2)), MetadataKey(2, 3, UUID(int=3))
    plan = gc_plan([info(named), info(old), info(own), info("cluster.json")], NamedKeys(3, frozenset({str(named)})))
    assert [i.key for i in plan.deletable] == [str(old)] and [i.key for i in plan.pending] == [str(own)]


def test_partitions_are_found_by_any_of_their_keys() -> None:
    other = UUID(int=5)
    keys = [
        manifest_key(TOPIC_ID, 2),
        str(object_key(1)),
        str(PageKey(other, 7, 0, 1, 1, TOPIC_ID)),
        "cluster.json",
        "?",
    ]
    assert list(partitions_in(keys)) == sorted([(TOPIC_ID, 0), (TOPIC_ID, 2), (other, 7)])


# ── the manifest against itself ──────────────────────────────────────────────────────────────────────────────────────
def kinds(found: list) -> set[FindingKind]:  # type: ignore[type-arg]
    return {finding.kind for finding in found}


def test_a_healthy_manifest_has_no_findings() -> None:
    manifest = filled(10, 20, 30)
    assert audit_manifest(manifest, manifest.tail) == []
    assert audit_listing(manifest, manifest.tail, {}, listing_of(manifest)) == []
    assert audit_manifest(filled(), ()) == []


def test_declared_gaps_are_reported_but_are_no_damage() -> None:
    manifest = filled(10).add(remote_segment(10, 20, gaps=((12, 15),), records=7))
    (finding,) = audit_manifest(manifest, manifest.tail)
    assert finding.kind is KINDS.DECLARED_GAP and not finding.kind.is_damage and finding.offset == 12


def test_holes_overlaps_and_losses_are_found() -> None:
    """In what pages and tail hold together, whatever the root claims."""
    manifest = filled(10, 20, 30)
    a, b, c = manifest.tail
    assert kinds(audit_manifest(manifest, (a, c))) == {KINDS.UNDECLARED_GAP, KINDS.BOOKS}
    assert kinds(audit_manifest(manifest, (b, c))) == {KINDS.UNDECLARED_GAP, KINDS.BOOKS}
    assert kinds(audit_manifest(manifest, (a, b))) == {KINDS.BOOKS}
    overlapping = replace(b, base_offset=5)
    assert KINDS.OVERLAP in kinds(audit_manifest(manifest, (a, overlapping, c)))
    below_start = manifest.set_log_start(15)
    assert KINDS.UNDECLARED_GAP in kinds(audit_manifest(below_start, (a, c)))
    assert KINDS.UNDECLARED_GAP not in kinds(audit_manifest(manifest.set_log_start(20), (a, c)))


def test_design_c13_a_substitution_is_found_by_the_hash() -> None:
    manifest = filled(10, 20)
    swapped = replace(manifest.tail[1], uuid=UUID(int=77, version=4))
    (finding,) = audit_manifest(manifest, (manifest.tail[0], swapped))
    assert finding.kind is KINDS.BOOKS and "replaced" in finding.detail


def test_missing_and_resized_objects_are_found() -> None:
    manifest = filled(10, 20, 30)
    listing = listing_of(manifest)
    damaged = [listing[0], info(listing[1].key, 7), *listing[3:], info(object_key(0)), info(object_key(1))]
    pages = {"topics/p": 5}
    found = audit_listing(manifest, manifest.tail, pages, damaged)
    found += orphan_findings(gc_plan(damaged, named_by(manifest, manifest.tail, pages)))
    assert [(f.kind, f.offset) for f in found] == [
        (KINDS.WRONG_SIZE, 10),
        (KINDS.MISSING, 20),
        (KINDS.MISSING, None),
        (KINDS.ORPHAN_DELETABLE, 10),
        (KINDS.ORPHAN_PENDING, 10),
    ]


def test_an_object_below_the_log_start_may_be_gone_before_the_cursor_says_so() -> None:
    """A crash between deleting an object and advancing the cursor leaves no damage: found by SIGKILL at that point."""
    manifest = filled(10, 20, 30).set_log_start(20)
    left = [i for i in listing_of(manifest) if i.key != str(manifest.tail[0].key(TOPIC_ID, 0))]
    assert len(left) < len(listing_of(manifest))
    assert audit_listing(manifest, manifest.tail, {}, left) == []
    above = [i for i in left if i.key != str(manifest.tail[2].key(TOPIC_ID, 0))]
    assert kinds(audit_listing(manifest, manifest.tail, {}, above)) == {FindingKind.MISSING}


def test_footers_and_chunks_are_compared() -> None:
    one = segment_object(0, [50, 50, 300])
    assert audit_footer(one.key, one.entry, one.footer) == []
    assert audit_chunks(one.key, one.footer, list(one.footer.chunk_crcs)) == []
    (finding,) = audit_footer(one.key, replace(one.entry, records=3, crc32c=1), one.footer)
    assert "records" in finding.detail and "crc32c" in finding.detail
    assert kinds(audit_footer(object_key(1), one.entry, one.footer)) == {KINDS.DAMAGED}
    crcs = list(one.footer.chunk_crcs)
    crcs[1] ^= 1
    (finding,) = audit_chunks(one.key, one.footer, crcs)
    assert "chunk 1" in finding.detail and finding.offset is not None and 0 < finding.offset < 400


# ── a whole bucket ───────────────────────────────────────────────────────────────────────────────────────────────────
def inspector(store: MemoryStore) -> BucketInspector:
    return BucketInspector(store, LoopWorkers())  # type: ignore[arg-type]


async def bucket(count: int = 6, **options: int) -> tuple[MemoryStore, ManifestStore, list[MadeObject]]:
    store = MemoryStore()
    mine = ManifestStore(store, TOPIC_ID, 0, SeededRng(1), FastClock(), **options)  # type: ignore[arg-type]
    await mine.create(1, "events", {}, 1 << 20)
    await mine.claim(1, "events", {})
    made = [segment_object(n * 400, [50, 50, 300], n=n + 1) for n in range(count)]
    for one in made:
        store.objects[str(one.key)] = StoredObject(one.data, f'"{one.key.uuid}"', None)
        await mine.commit(lambda m, e=one.entry: m.add(e))  # type: ignore[misc]
    return store, mine, made


PAGED = {"root_bytes_max": 5500, "page_entries_min": 4, "pointers_in_root_max": 2}


@pytest.mark.parametrize("options", [{}, PAGED])
async def test_a_healthy_bucket_verifies_to_the_last_byte(options: dict[str, int]) -> None:
    store, mine, _ = await bucket(30 if options else 6, **options)
    for key in mine.take_unnamed():
        await store.delete([key])
    assert await inspector(store).partitions() == [(TOPIC_ID, 0)]
    assert await inspector(store).verify(TOPIC_ID, 0, deep=True) == []
    assert (await inspector(store).plan_gc(TOPIC_ID, 0)).pending == ()


@pytest.mark.parametrize("deep", [False, True])
async def test_damage_of_every_kind_is_reported_with_its_object(deep: bool) -> None:
    store, _, made = await bucket()
    objects = store.objects
    del objects[str(made[0].key)]
    objects[str(made[1].key)] = StoredObject(made[1].data[:-1], '"x"', None)
    flipped = bytearray(made[2].data)
    flipped[5000] ^= 1
    objects[str(made[2].key)] = StoredObject(bytes(flipped), '"x"', None)
    objects[str(made[3].key)], objects[str(made[4].key)] = objects[str(made[4].key)], objects[str(made[3].key)]
    found = await inspector(store).verify(TOPIC_ID, 0, deep=deep)
    by_key: dict[str | None, FindingKind] = {f.key: f.kind for f in found if f.kind.is_damage}
    # The swapped ones have the same size, or differ in the digits of a checksum.
    swapped = KINDS.DAMAGED if len(made[3].data) == len(made[4].data) else KINDS.WRONG_SIZE
    expected = {
        str(made[0].key): KINDS.MISSING,
        str(made[1].key): KINDS.WRONG_SIZE,
        str(made[3].key): swapped,
        str(made[4].key): swapped,
    }
    if deep:
        expected[str(made[2].key)] = KINDS.DAMAGED
    assert by_key == expected


async def test_an_unreadable_root_or_page_is_a_finding() -> None:
    store, mine, _ = await bucket(30, **PAGED)
    page = str(mine.manifest.pages[0].key(TOPIC_ID, 0))
    del store.objects[page]
    (finding,) = await inspector(store).verify(TOPIC_ID, 0)
    assert finding.kind is KINDS.UNREADABLE
    store.objects[manifest_key(TOPIC_ID, 0)] = StoredObject(b"{}", '"x"', None)
    (finding,) = await inspector(store).verify(TOPIC_ID, 0)
    assert finding.kind is KINDS.UNREADABLE


async def test_verify_beside_a_live_broker_does_not_cry_wolf() -> None:
    """Objects expire between the root's reading and theirs; under the root as it then stands nothing is wrong."""
    store, mine, made = await bucket()
    plain_get = store.get

    async def get_and_expire(key: str, start: int = 0, length: int | None = None):  # type: ignore[no-untyped-def]
        if key == str(made[0].key):
            store.get = plain_get  # type: ignore[method-assign]
            await mine.commit(lambda m: m.set_log_start(800))
            await store.delete([str(one.key) for one in made[:2]])
            await mine.commit(lambda m: m.expire([one.entry for one in made[:2]]))
        return await plain_get(key, start, length)

    store.get = get_and_expire  # type: ignore[method-assign]
    assert await inspector(store).verify(TOPIC_ID, 0, deep=True) == []


def test_design_c02_gc_beside_a_paused_leader() -> None:
    """A leader uploads, sleeps past any grace; another claims, gc runs: the upload goes, and the sleeper's commit is
    refused, so nothing named is ever missing. Without the claim gc leaves the upload and the commit succeeds."""

    async def scenario(claim: bool) -> None:
        store, sleeper, _ = await bucket(2)
        late = segment_object(800, [50, 50, 300], n=50)
        store.objects[str(late.key)] = StoredObject(late.data, '"l"', None)
        if claim:
            successor = ManifestStore(store, TOPIC_ID, 0, SeededRng(3), FastClock())
            await successor.claim(2, "events", {})
        plan = await inspector(store).plan_gc(TOPIC_ID, 0)
        assert [i.key for i in (plan.deletable if claim else plan.pending)] == [str(late.key)]
        assert await inspector(store).delete(plan) == (1 if claim else 0)
        if claim:
            with pytest.raises(Fenced):
                await sleeper.commit(lambda m: m.add(late.entry))
        else:
            await sleeper.commit(lambda m: m.add(late.entry))
        assert await inspector(store).verify(TOPIC_ID, 0, deep=True) == []

    run_fast(scenario(True))
    run_fast(scenario(False))


async def test_gc_removes_exactly_what_a_listing_minus_the_manifests_says() -> None:
    """T10, T11: more orphans than a listing page or a bulk delete takes."""
    store, mine, _ = await bucket(3)
    for n in range(2100):
        store.objects[str(object_key(0, n))] = StoredObject(b"x", '"x"', None)
    for n in range(5):
        store.objects[str(object_key(1, n))] = StoredObject(b"x", '"x"', None)
    named = set((await inspector(store).view(TOPIC_ID, 0)).named.keys) | {manifest_key(TOPIC_ID, 0)}  # type: ignore[union-attr]
    plan = await inspector(store).plan_gc(TOPIC_ID, 0)
    assert {i.key for i in (*plan.deletable, *plan.pending)} == set(store.objects) - named
    assert await inspector(store).delete(plan) == 2100
    assert set(store.objects) == named | {i.key for i in plan.pending}
    assert mine.manifest is not None


@pytest.mark.parametrize("piece", [1, 3, 7, 10_000])
async def test_gc_in_pieces_says_what_gc_at_once_says(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """Pages, pages of pointers, orphans between the segments of other epochs, an unknown object; and a commit of the
    leader's that lands between two pieces stays out of the plan."""
    store, mine, _ = await bucket(30, **PAGED)
    for key in mine.take_unnamed():
        await store.delete([key])
    late = segment_object(30 * 400, [50, 50, 300], n=99)
    store.objects[str(late.key)] = StoredObject(late.data, '"l"', None)
    for n in range(40):
        store.objects[str(object_key(n % 2, n))] = StoredObject(b"x", '"x"', None)
    store.objects[str(object_key(0)).replace(".log", ".txt")] = StoredObject(b"x", '"x"', None)
    view = await inspector(store).view(TOPIC_ID, 0)
    assert view is not None and any(pointer.level for pointer in view.manifest.pages)
    named = view.named.keys | {manifest_key(TOPIC_ID, 0), str(late.key)}
    monkeypatch.setattr("coldstore.inspection.bucket_inspection._GC_PIECE", piece)
    planning = asyncio.ensure_future(inspector(store).plan_gc(TOPIC_ID, 0))
    await asyncio.sleep(0)
    await mine.commit(lambda m: m.add(late.entry))
    plan = await planning
    assert {i.key for i in plan.deletable} == {str(object_key(0, n)) for n in range(0, 40, 2)}
    left = {i.key for i in (*plan.deletable, *plan.pending, *plan.unknown)}
    assert left == set(store.objects) - named


async def test_a_live_segment_type_is_what_audit_takes() -> None:
    """`live` comes from `ManifestStore.segments`: entries below the deletion cursor are not in it."""
    store, mine, made = await bucket()
    await mine.commit(lambda m: m.set_log_start(400))
    await mine.commit(lambda m: m.expire([made[0].entry]))
    view = await inspector(store).view(TOPIC_ID, 0)
    assert view is not None and all(isinstance(s, RemoteSegment) for s in view.live)
    assert view.live == tuple(one.entry for one in made[1:])
    plan = await inspector(store).plan_gc(TOPIC_ID, 0)
    assert [i.key for i in plan.pending] == [str(made[0].key)]  # expired, but a store may lie about deletes
