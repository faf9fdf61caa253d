"""`ManifestStore`: claims, commits, folding into pages, look-ups, and what may be deleted."""

from __future__ import annotations

import asyncio

import pytest

from coldstore.keys import PageKey, SegmentKey, manifest_key, parse_key
from coldstore.manifest.manifest import EditRefused, Manifest, PagePointer, RemoteSegment, SnapshotPointer, new_manifest
from coldstore.manifest.manifest_entries import ZERO_HASH, Totals, hash_of, totals_of
from coldstore.manifest.manifest_pages import (
    PointerPage,
    SegmentPage,
    decode_page,
    encode_page,
    pointer_table,
    segment_table,
)
from coldstore.manifest.manifest_reader import ManifestReader
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.manifest.page_reader import PageCache
from coldstore.manifest.unanswered import NOTHING, Unanswered
from coldstore.object_store import Got, ObjectMissing, PreconditionFailed, StoreUnavailable
from coldstore.roots.root import ROOT_BYTES_MAX, RootCodec, RootMissing, RootStore, RootTooLarge, Unsettled
from coldstore.stores.metered import MeteredStore
from coldstore.stores.operations import Operation
from logformat.errors import Corrupt, Fenced, InvalidRequest
from logformat.values import NewerFormat
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock, run_fast
from tests.support.store.faulty_store import FaultyStore
from tests.support.store.memory_store import MemoryStore, StoredObject
from tests.support.tier.cold_values import TOPIC_ID, remote_segment

KEY = manifest_key(TOPIC_ID, 0)


def opened(store: MemoryStore, seed: int = 0, **options: object) -> ManifestStore:
    return ManifestStore(store, TOPIC_ID, 0, SeededRng(seed), FastClock(), **options)  # type: ignore[arg-type]


async def claimed(store: MemoryStore, epoch: int = 1, **options: object) -> ManifestStore:
    mine = opened(store, epoch, **options)
    await mine.create(epoch, "events", {}, 1 << 20)
    await mine.claim(epoch, "events", {"retention.ms": "-1"})
    return mine


async def fill(mine: ManifestStore, count: int, start: int = 0, epoch: int = 1) -> list[RemoteSegment]:
    made = [remote_segment(n * 10, n * 10 + 10, epoch=epoch) for n in range(start, start + count)]
    for segment in made:
        await mine.commit(lambda m, s=segment: m.add(s))  # type: ignore[misc]
    return made


SMALL = {"root_bytes_max": 8000, "page_entries_min": 40, "pointers_in_root_max": 3}


async def test_create_claim_add_and_find() -> None:
    store = MemoryStore()
    mine = await claimed(store)
    made = await fill(mine, 3)
    other = opened(store, 9)
    manifest = await other.load()
    assert manifest is not None and manifest.tail == tuple(made) and manifest.reserved_end_offset == 1 << 20
    for offset, found in ((0, made[0]), (9, made[0]), (10, made[1]), (29, made[2])):
        assert await other.find(offset) == found
    assert await other.find(30) is None and await other.find(-1) is None
    assert not await other.reload_if_changed()


async def test_creating_twice_keeps_what_is_there() -> None:
    """The controller may repeat itself after a crash: nothing is lost, the reservation only rises."""
    store = MemoryStore()
    mine = await claimed(store)
    await fill(mine, 1)
    again = await opened(store, 5).create(1, "events", {}, 1 << 21)
    assert again.remote_end_offset == 10 and again.reserved_end_offset == 1 << 21
    version = (await opened(store).load(), store.objects[KEY].data)[1]
    with pytest.raises(Fenced):  # a creator that was stopped, and whose place was taken
        await opened(store, 6).create(0, "events", {}, 5)
    assert store.objects[KEY].data == version


async def test_a_partition_without_root_cannot_be_claimed() -> None:
    """A deleted topic is not brought back by a leader that has not heard of it."""
    with pytest.raises(RootMissing):
        await opened(MemoryStore()).claim(1, "events", {})
    with pytest.raises(InvalidRequest):
        await opened(MemoryStore()).commit(lambda m: m)


async def test_design_c01_a_claim_stops_the_zombie_before_it_deletes_or_adds() -> None:
    """The new leader has written nothing yet but its claim; the old one, with a current ETag until then, is out."""
    store = MemoryStore()
    zombie = await claimed(store, 1)
    await fill(zombie, 2)
    successor = opened(store, 2)
    await successor.claim(2, "events", {})
    before = store.objects[KEY].data
    for edit in (
        lambda m: m.add(remote_segment(20, 30)),
        lambda m: m.set_log_start(10),
        lambda m: m.reserve(1 << 30),
    ):
        with pytest.raises(Fenced):
            await zombie.commit(edit)
    with pytest.raises(Fenced):
        await zombie.claim(1, "events", {})
    assert store.objects[KEY].data == before


async def test_design_c02_a_copy_that_slept_through_a_claim_is_never_named() -> None:
    """Paused between upload and commit, past a claim: gc took its object; resumed, its commit cannot succeed."""
    store = MemoryStore()
    sleeper = await claimed(store, 1)
    segment = remote_segment(0, 10, epoch=1)
    await opened(store, 2).claim(2, "events", {})
    with pytest.raises(Fenced):
        await sleeper.commit(lambda m: m.add(segment))
    # Even its successor, handed the old object, refuses it.
    successor = opened(store, 3)
    await successor.claim(2, "events", {})
    with pytest.raises(EditRefused):
        await successor.commit(lambda m: m.add(segment))


class LosingStore(MemoryStore):
    """Root PUTs as `script` says: "lost" lands and times out, "late" lands when `land` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[str] = []
        self.late: list[tuple[str, bytes, str | None]] = []

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        word = self.script.pop(0) if self.script else "ok"
        if word == "late":
            self.late.append((key, data, if_match))
            raise StoreUnavailable("time-out")
        etag = await super().put_root(key, data, if_match)
        if word == "lost":
            raise StoreUnavailable("reset")
        return etag

    async def land(self) -> None:
        for request in self.late:
            try:
                await super().put_root(*request)
            except PreconditionFailed:
                continue
        self.late.clear()


async def test_design_c03_nothing_is_deletable_while_an_attempt_may_land() -> None:
    """The commit timed out, the old root is read: the object is not named, and yet it must stay; the PUT lands minutes
    later and names it."""
    store = LosingStore()
    mine = await claimed(store, deadline_s=5.0)
    segment = remote_segment(0, 10)
    key = SegmentKey(TOPIC_ID, 0, 0, 1, segment.uuid)
    store.script = ["late"] * 1000
    with pytest.raises(Unsettled):
        await mine.commit(lambda m: m.add(segment))
    assert not await mine.may_delete(key)
    store.script = []
    await store.land()
    assert not await mine.may_delete(key)  # it is named now
    assert await mine.find(0) == segment
    await mine.commit(lambda m: m.add(segment))
    assert mine.manifest is not None and len(mine.manifest.tail) == 1


async def test_all_attempts_in_doubt_count_until_a_later_root_is_read() -> None:
    """Two commits got no answer: either may be stored. What both change counts, before the first byte is sent, until a
    root of their version is read."""
    store = LosingStore()
    mine = await claimed(store, deadline_s=5.0)
    (first, second) = await fill(mine, 2)
    told: list[Unanswered] = []
    mine.on_attempt = told.append
    assert mine.unanswered == NOTHING
    store.script = ["late"] * 1000
    with pytest.raises(Unsettled):
        await mine.replace((first, second), (remote_segment(0, 20, n=3),), now_ms=1)
    replaces = Unanswered(replaces=frozenset({first.uuid, second.uuid}), adds=True)
    assert told[0] == mine.unanswered == replaces
    with pytest.raises(Unsettled):
        await mine.commit(lambda m: m.withdraw([first, second]))
    assert mine.unanswered == told[-1] == Unanswered(replaces=replaces.replaces, adds=True, withdraws=True)
    store.script = []
    await store.land()  # the first one
    assert mine.unanswered.withdraws
    await mine.load()
    assert mine.unanswered == NOTHING and mine.manifest is not None and mine.manifest.was_replaced(first.uuid)


async def test_who_commits_again_while_the_store_is_away_asks_it_once() -> None:
    """Ten reads a try, of a store that had just said nothing for a whole commit (2.05 requests a second of a broker
    whose reservation was used up). What the attempt in doubt wanted is not asked for a second time."""
    store = FaultyStore(MemoryStore(), SeededRng(1))
    asked = MeteredStore(store, FastClock(), log_max=1000)
    mine = await claimed(asked, deadline_s=10.0)  # type: ignore[arg-type]
    store.down = True
    with pytest.raises(Unsettled):
        await mine.commit(lambda m: m.add(remote_segment(0, 10)))
    for _ in range(20):
        asked.log.clear()
        with pytest.raises(StoreUnavailable):
            await mine.commit(lambda m: m.add(remote_segment(0, 10)))
        assert [call.operation for call in asked.log] == [Operation.GET]
    store.down = False
    manifest = await mine.commit(lambda m: m.add(remote_segment(0, 10)))
    assert len(manifest.tail) == 1


async def test_a_store_that_hangs_costs_who_commits_again_one_deadline() -> None:
    """The read that comes first has no patience of its own."""

    class Hangs(LosingStore):
        async def get(self, key: str, start: int = 0, length: int | None = None) -> Got:
            await asyncio.sleep(600 if self.script else 0)
            return await super().get(key, start, length)

    store = Hangs()
    mine = await claimed(store, deadline_s=10.0)
    store.script = ["late"] * 1000
    for expected in (Unsettled, StoreUnavailable):
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(expected):
            await mine.commit(lambda m: m.add(remote_segment(0, 10)))
        assert asyncio.get_running_loop().time() - began_s < 12


async def test_design_c03_a_lost_copy_may_go_once_settled() -> None:
    """Another copy of the range was committed: ours is unnamed, settled, and may go; theirs never."""
    store = LosingStore()
    mine = await claimed(store)
    theirs, ours = remote_segment(0, 10, n=1), remote_segment(0, 10, n=2)
    await mine.commit(lambda m: m.add(theirs))
    with pytest.raises(EditRefused):
        await mine.commit(lambda m: m.add(ours))
    assert await mine.may_delete(SegmentKey(TOPIC_ID, 0, 0, 1, ours.uuid))
    assert not await mine.may_delete(SegmentKey(TOPIC_ID, 0, 0, 1, theirs.uuid))


async def test_design_c29_after_33_commits_what_a_page_names_is_still_found() -> None:
    """Our add landed unseen, 33 others followed, and it was folded into a page: the repeated add is refused, and
    `may_delete` finds the object named in the page."""
    store = LosingStore()
    mine = await claimed(store, **SMALL)
    segment = remote_segment(0, 10)
    other = opened(store, 8, **SMALL)
    await other.claim(1, "events", {})
    await mine.load()
    original = store.put_root

    async def land_and_be_followed(key: str, data: bytes, if_match: str | None) -> str:
        store.put_root = original  # type: ignore[method-assign]
        await original(key, data, if_match)
        await fill(other, 60, start=1)
        raise StoreUnavailable("time-out")

    store.put_root = land_and_be_followed  # type: ignore[method-assign]
    with pytest.raises(EditRefused):
        await mine.commit(lambda m: m.add(segment))
    assert mine.manifest is not None and mine.manifest.pages and mine.root is not None
    assert mine.root.version > 60
    assert not await mine.may_delete(SegmentKey(TOPIC_ID, 0, 0, 1, segment.uuid))
    assert await mine.find(5) == segment


def test_an_answer_lost_on_every_commit_changes_nothing() -> None:
    """Each root PUT's answer is lost: the same manifest comes out as with all answers heard."""

    async def scenario(lossy: bool) -> Manifest | None:
        store = LosingStore()
        if lossy:
            store.script = ["lost"] * 10_000
        mine = await claimed(store, **SMALL)
        await fill(mine, 100)
        return await opened(store).load()

    quiet, lossy = run_fast(scenario(False)), run_fast(scenario(True))
    assert quiet is not None and lossy is not None
    assert (quiet.added, quiet.live_hash, quiet.remote_end_offset) == (
        lossy.added,
        lossy.live_hash,
        lossy.remote_end_offset,
    )


def test_design_c14_folding_keeps_every_segment_and_the_root_small() -> None:
    """Hundreds of segments through a tiny root: pages, then pages of pointers; every look-up as on a plain list; the
    bucket holds exactly the pages named plus those `take_unnamed` gave."""

    async def scenario() -> None:
        store = MemoryStore()
        mine = await claimed(store, **SMALL)
        made = await fill(mine, 900)
        assert len(store.objects[KEY].data) <= SMALL["root_bytes_max"]
        manifest = mine.manifest
        assert manifest is not None and manifest.pages[0].level == 1
        assert manifest.live == totals_of(made) and manifest.live_hash == hash_of(made)
        cold = opened(store, 77)
        await cold.load()
        assert [segment async for segment in cold.segments()] == made
        assert [segment async for segment in cold.segments(4005)] == made[400:]
        for offset in (0, 5, 10, 399, 400, 4444, 8990, 8999):
            assert await cold.find(offset) == made[offset // 10]
            stamp = made[offset // 10].max_timestamp_ms
            assert await cold.find_by_timestamp(stamp, 0) == made[offset // 10]
        assert await cold.find_by_timestamp(made[-1].max_timestamp_ms + 1, 0) is None
        assert await cold.find_by_timestamp(0, 8885) == made[888]
        pages = {key for key in store.objects if isinstance(parse_key(key), PageKey)}
        unnamed = mine.take_unnamed()
        assert cold.manifest is not None
        named = await ManifestReader(store, TOPIC_ID, 0).page_sizes(cold.manifest)
        assert pages == {*named, *unnamed} and not {*named} & {*unnamed}
        assert mine.take_unnamed() == []
        await store.delete(unnamed)
        assert [segment async for segment in opened_after(cold)] == made

    def opened_after(cold: ManifestStore):  # type: ignore[no-untyped-def]
        return cold.segments()

    run_fast(scenario())


async def test_expiry_walks_through_pages_of_both_levels() -> None:
    """The cursor passes through tail, pages, pages of pointers; at the end nothing is live, and nothing is left but
    names already given for deletion."""
    store = MemoryStore()
    mine = await claimed(store, **SMALL)
    made = await fill(mine, 500)
    while mine.manifest is not None and mine.manifest.live.segments:
        dead = [segment async for segment in mine.segments()][:77]
        await mine.commit(lambda m, d=dead: m.set_log_start(d[-1].end_offset))  # type: ignore[misc]
        await mine.commit(lambda m, d=dead: m.expire(d))  # type: ignore[misc]
        mine.manifest.check()
        rest = [segment async for segment in mine.segments()]
        assert mine.manifest.live == totals_of(rest) and mine.manifest.live_hash == hash_of(rest)
        assert await mine.find(dead[-1].base_offset) is None
        assert rest == made[len(made) - len(rest) :]
    assert mine.manifest is not None and mine.manifest.live_hash == ZERO_HASH and mine.manifest.pages == ()
    await store.delete(mine.take_unnamed())
    assert list(store.objects) == [KEY]
    await fill(mine, 3, start=500)
    assert mine.manifest.remote_end_offset == 5030


async def test_expiring_part_of_a_page_with_one_left_out_is_refused() -> None:
    mine = await claimed(MemoryStore(), **SMALL)
    made = await fill(mine, 120)
    assert mine.manifest is not None and mine.manifest.pages
    await mine.commit(lambda m: m.set_log_start(1100))
    with pytest.raises(EditRefused):
        await mine.commit(lambda m: m.expire([s for s in made[:110] if s is not made[3]]))
    await mine.commit(lambda m: m.expire(made[:110]))


def test_design_c14_a_million_segments_fit_a_root_of_64_kib() -> None:
    """10⁶ segments at the real page size: 244 full pages behind one page of pointers, 32 more and a full tail in the
    root; the old layout (160 a page) needed 6 100 pointers."""
    root = RootCodec(Manifest)
    entries, per_page = 1_000_000, 4096
    leaves = [
        _pointer(n, n * per_page * 10, min(entries, (n + 1) * per_page) * 10) for n in range(-(-entries // per_page))
    ]
    moved, kept = leaves[:-33], leaves[-33:]
    upper, data = encode_page(pointer_table(moved), 1, moved[0].uuid, 2**31 - 1)
    page = decode_page(data, upper)
    assert isinstance(page, PointerPage) and page.pointers == tuple(moved)
    tail: list[RemoteSegment] = []
    base = entries * 10
    while True:
        manifest = _manifest_of((upper, *kept), (*tail, _wide_segment(base)))
        if root.content_size(manifest) > ROOT_BYTES_MAX - 2048 - 8192:
            break
        tail.append(_wide_segment(base))
        base += 10
    manifest = _manifest_of((upper, *kept), tuple(tail))
    manifest.check()
    ring = tuple((10**9 + n, "f" * 32) for n in range(32))
    assert len(root.encode(10**9 + 31, 2**31 - 1, ring, manifest)) <= ROOT_BYTES_MAX
    assert len(tail) >= 40  # a page is written once in at least 40 commits


def _wide_segment(base: int) -> RemoteSegment:
    epochs = ((2**31 - 1, base),)
    return remote_segment(base, base + 10, epoch=2**31 - 1, epochs=epochs, log_bytes=2**31, object_bytes=2**31 + 9999)


def _pointer(n: int, first: int, end: int) -> PagePointer:
    count = (end - first) // 10
    return PagePointer(
        uuid=remote_segment(n, n + 1).uuid,
        level=0,
        epoch=2**31 - 1,
        first_offset=first,
        end_offset=end,
        entries=count,
        segments=count,
        log_bytes=count * 2**31,
        object_bytes=count * 2**31 + count,
        records=end - first,
        min_timestamp_ms=1_700_000_000_000,
        max_timestamp_ms=1_800_000_000_000,
        min_leader_epoch=2**31 - 2,
        max_leader_epoch=2**31 - 1,
        length=400_000,
        crc32c=2**32 - 1,
    )


def _manifest_of(pages: tuple[PagePointer, ...], tail: tuple[RemoteSegment, ...]) -> Manifest:
    sums = totals_of(tail)
    for page in pages:
        sums += Totals(
            log_bytes=page.log_bytes, object_bytes=page.object_bytes, records=page.records, segments=page.segments
        )
    base = new_manifest(TOPIC_ID, 0, 2**31 - 1, "t" * 249, {"retention.ms": "-1"})
    end = tail[-1].end_offset if tail else pages[-1].end_offset
    values = {name: getattr(base, name) for name in Manifest.__struct_fields__}
    values |= {"pages": pages, "tail": tail, "added": sums, "live": sums, "remote_end_offset": end}
    return Manifest(**values)


async def test_a_full_page_is_left_alone() -> None:
    """4 096 entries (here 40) and more: the next fold begins a new page instead of rewriting."""
    store = MemoryStore()
    mine = await claimed(store, root_bytes_max=8000, page_entries_min=40, pointers_in_root_max=100)
    await fill(mine, 300)
    assert mine.manifest is not None
    assert all(pointer.entries >= 40 for pointer in mine.manifest.pages[:-1]) and len(mine.manifest.pages) > 2


async def test_what_cannot_be_folded_is_refused() -> None:
    mine = await claimed(MemoryStore())
    with pytest.raises(RootTooLarge):
        await mine.commit(lambda m: m.set_topic("events", {"a": "x" * ROOT_BYTES_MAX}))


async def test_a_replaced_snapshot_is_given_for_deletion() -> None:
    mine = await claimed(MemoryStore())
    rng = SeededRng(5)
    pointers = [SnapshotPointer(uuid=rng.uuid(), epoch=1, end_offset=n, length=9, crc32c=1) for n in (10, 20)]
    for pointer in pointers:
        await mine.commit(lambda m, p=pointer: m.set_snapshot(p))  # type: ignore[misc]
    assert mine.take_unnamed() == [str(pointers[0].key(TOPIC_ID, 0))]


async def test_a_reader_with_an_old_root_recovers_from_deleted_pages() -> None:
    """A page deleted after its grace: the look-up reads the root again and answers."""
    store = MemoryStore()
    mine = await claimed(store, **SMALL)
    made = await fill(mine, 30)
    reader = opened(store, 5)
    await reader.load()
    assert reader.manifest is not None and reader.manifest.pages
    more = await fill(mine, 30, start=30)
    await store.delete(mine.take_unnamed())
    assert await reader.find(5) == made[0]
    assert await reader.find(305) == more[0]


async def test_a_missing_or_damaged_page_fails_loudly() -> None:
    store = MemoryStore()
    mine = await claimed(store, **SMALL)
    await fill(mine, 30)
    assert mine.manifest is not None
    (key,) = (str(pointer.key(TOPIC_ID, 0)) for pointer in mine.manifest.pages)
    good = store.objects[key]
    reader = opened(store, 5)
    await reader.load()
    flipped = bytearray(good.data)
    flipped[len(flipped) // 2] ^= 1
    for bad in (bytes(flipped), good.data[:-1], good.data + b"x", b"x" * len(good.data)):
        store.objects[key] = StoredObject(bad, '"x"', None)
        with pytest.raises(Corrupt):
            await reader.find(5)
    del store.objects[key]
    with pytest.raises(ObjectMissing):
        await reader.find(5)
    store.objects[key] = good
    assert await reader.find(5) is not None


async def test_a_root_of_another_partition_is_refused() -> None:
    store = MemoryStore()
    await claimed(store)
    store.objects[manifest_key(TOPIC_ID, 1)] = store.objects[KEY]
    with pytest.raises(Corrupt):
        await ManifestStore(store, TOPIC_ID, 1, SeededRng(1), FastClock()).load()


async def test_a_root_whose_epoch_is_not_its_manifests_is_refused() -> None:
    store = MemoryStore()
    raw: RootStore[Manifest] = RootStore(store, KEY, Manifest, SeededRng(1), FastClock())
    await raw.commit(lambda m: m, epoch=2, initial=new_manifest(TOPIC_ID, 0, 1, "events", {}))
    with pytest.raises(Corrupt):
        await opened(store).load()


async def test_the_page_cache_is_bounded_and_shared() -> None:
    store = MemoryStore()
    mine = await claimed(store, **SMALL)
    await fill(mine, 600)
    cache = PageCache(bytes_max=60_000)
    reader = opened(store, 5, page_cache=cache)
    await reader.load()
    for offset in range(0, 6000, 50):
        assert await reader.find(offset) is not None
        assert cache.nbytes <= 60_000 or len(cache) == 1
    assert len(cache) > 1


async def test_concurrent_commits_of_one_process_all_land() -> None:
    mine = await claimed(MemoryStore(), **SMALL)
    segment = remote_segment(0, 10)
    await asyncio.gather(
        mine.commit(lambda m: m.add(segment)),
        mine.commit(lambda m: m.reserve(1 << 30)),
        mine.commit(lambda m: m.set_log_start(5)),
    )
    assert mine.manifest is not None
    assert (mine.manifest.remote_end_offset, mine.manifest.reserved_end_offset) == (10, 1 << 30)


def _page(count: int = 10) -> tuple[PagePointer, bytes]:
    return encode_page(segment_table([remote_segment(n * 10, n * 10 + 10) for n in range(count)]), 0, TOPIC_ID, 3)


def test_a_page_reads_back_as_written() -> None:
    made = [
        remote_segment(0, 10, gaps=((3, 5),), records=8, epochs=((1, 0), (4, 6))),
        remote_segment(10, 25, crc32c=2**32 - 1),
        remote_segment(25, 30, min_timestamp_ms=-1, max_timestamp_ms=-1, epochs=()),
    ]
    pointer, data = encode_page(segment_table(made), 0, TOPIC_ID, 3)
    page = decode_page(data, pointer)
    assert isinstance(page, SegmentPage) and list(page.rows()) == made and page.find(12) == made[1]
    longer = segment_table([remote_segment(30, 40)], page)
    pointer, data = encode_page(longer, 0, TOPIC_ID, 3)
    assert (pointer.first_offset, pointer.end_offset, pointer.entries) == (0, 40, 4)


def test_a_page_has_the_column_of_decided_transactions_only_with_some() -> None:
    """Pages without transactions are as they always were; those of before read as none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain, with_some = remote_segment(0, 10), remote_segment(10, 20, decided=3)
    pointer, data = encode_page(segment_table([plain]), 0, TOPIC_ID, 3)
    assert "decided" not in pq.read_table(pa.BufferReader(data)).column_names
    page = decode_page(data, pointer)
    assert isinstance(page, SegmentPage) and page.find(0) == plain
    pointer, data = encode_page(segment_table([with_some], page), 0, TOPIC_ID, 3)
    page = decode_page(data, pointer)
    assert isinstance(page, SegmentPage) and list(page.rows()) == [plain, with_some]


@pytest.mark.parametrize(
    "change",
    [
        {"entries": 11, "segments": 11},
        {"records": 99},
        {"first_offset": 5},
        {"end_offset": 200},
        {"level": 1},
        {"level": 2},
        {"entries": 0},
        {"crc32c": 0},
        {"length": 1},
    ],
)
def test_a_page_that_is_not_what_its_pointer_says_is_corrupt(change: dict[str, int]) -> None:
    from msgspec.structs import replace

    pointer, data = _page()
    with pytest.raises(Corrupt):
        decode_page(data, replace(pointer, **change))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + b"\0" * 100 + b"PAR1", b"junk" * 50])
def test_bytes_that_are_no_parquet_are_corrupt(data: bytes) -> None:
    """With a matching CRC too: a bucket's owner can forge both."""
    from crc32c import crc32c
    from msgspec.structs import replace

    pointer, _ = _page()
    with pytest.raises(Corrupt):
        decode_page(data, replace(pointer, length=max(1, len(data)), crc32c=crc32c(data)))


def test_parquet_that_is_no_page_is_corrupt_and_a_newer_page_is_named() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from crc32c import crc32c
    from msgspec.structs import replace

    pointer, data = _page()
    table = pq.read_table(pa.BufferReader(data))
    words = dict(table.schema.metadata)

    def forged(table: pa.Table, **changes: str) -> tuple[PagePointer, bytes]:
        sink = pa.BufferOutputStream()
        named = table.replace_schema_metadata(
            {**words, **{f"thermocline.{k}".encode(): v.encode() for k, v in changes.items()}}
        )
        pq.write_table(named, sink)
        out = sink.getvalue().to_pybytes()
        return replace(pointer, length=len(out), crc32c=crc32c(out), entries=table.num_rows), out

    for wrong in (
        forged(table.drop_columns(["epochs"])),
        forged(table.set_column(1, "base_offset", pa.array([None] * 10, pa.int64()))),
        forged(table.set_column(1, "base_offset", pa.array(["x"] * 10))),
        forged(table.set_column(2, "end_offset", pa.array([5] * 10, pa.int64()))),
        forged(table.slice(0, 9)),
        forged(table, level="1"),
        forged(table, format_version="x"),
    ):
        with pytest.raises(Corrupt):
            decode_page(wrong[1], wrong[0])
    bad_uuid = forged(table.set_column(0, "uuid", pa.array(["zz"] * 10)))
    page = decode_page(bad_uuid[1], bad_uuid[0])
    assert isinstance(page, SegmentPage)
    with pytest.raises(Corrupt):
        page.find(5)
    newer = forged(table, format_version="2")
    with pytest.raises(NewerFormat):
        decode_page(newer[1], newer[0])


def test_fuzz_a_page_with_text_that_is_no_text_is_corrupt() -> None:
    """Found by the fuzz target manifest_page: pyarrow reads strings unchecked, and its UnicodeDecodeError escaped."""
    import pyarrow as pa

    table = segment_table([remote_segment(0, 10)])
    text = pa.array([b"\x9a" * 36], pa.binary()).view(pa.string())
    broken = table.set_column(0, table.schema.field("uuid"), text)
    pointer, data = encode_page(broken, 0, TOPIC_ID, 1)
    with pytest.raises(Corrupt, match="not readable"):
        decode_page(data, pointer)
