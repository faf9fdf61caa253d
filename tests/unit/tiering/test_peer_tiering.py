"""What went wrong in other tiered logs, each bug (T…) as a test of ours: copies, retention, gc, the seam."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as changed

from coldstore.inspection.audit import FindingKind
from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.keys import SegmentKey, SnapshotKey, parse_key
from coldstore.manifest.manifest import EditRefused
from coldstore.object_store import AccessRefused
from coldstore.stores.operations import Operation
from hotstore.errors import ReservationExhausted
from logformat.errors import Corrupt, Retryable
from logformat.record_batch import INT64_MAX
from seams.files.syncs import WorkerSyncs
from seams.rng import SeededRng
from seams.world import World
from tests.support.disk.late import must_not_come
from tests.support.fast_loop import FastClock, run_fast
from tests.support.store.faulty_store import Fault, FaultyStore
from tests.support.tier.peer_kit import WatchedStore, read_through, route_of
from tests.support.tier.tier_kit import LIMITS, LOG, TIER, TOPIC_ID, House, Opened, read_everything, settle
from tests.support.workers import LoopWorkers
from tiering.expiry.collector import Collector
from tiering.reading.fetch_router import Route

COLD_FAST = replace(TIER, local_retention_ms=2_000)
GRACE_S = LIMITS.gc_grace_ms / 1000
EAGER = replace(LIMITS, gc_grace_ms=0)


class WrongClock(FastClock):
    """A wall clock that jumps by years at every look."""

    def __init__(self) -> None:
        self._rng = SeededRng("clock")

    def wall_ms(self) -> int:
        return self._rng.randrange(200 * 365 * 86_400_000) - 100 * 365 * 86_400_000


def inspector(house: House) -> BucketInspector:
    return BucketInspector(house.memory, LoopWorkers())


async def copied(opened: Opened) -> None:
    """Everything appended by now is in the bucket."""
    async with asyncio.timeout(300):
        await opened.tier.seal_and_copy()


async def drained(opened: Opened) -> None:
    """Everything copied, nothing local that need not be."""
    await copied(opened)
    await settle(lambda: opened.log.local_log_start_offset == opened.log.log_end_offset)


def beside(house: House) -> House:
    """Another machine on the same bucket."""
    other = House(seed="other")
    other.memory, other.store, other.lives = house.memory, house.store, house.lives
    return other


async def test_peer_t03_gc_without_a_grace_and_with_a_wrong_clock_deletes_nothing_reachable() -> None:
    """slatedb #1622, #604, #1831: a wall-clock cutoff stood for reachability, and gc deleted live objects. Here gc runs
    at every step of a busy partition, with no grace and a clock that jumps by centuries; all it takes is orphans."""
    house = House()
    workers: Any = LoopWorkers()
    net: Any = None
    syncs = WorkerSyncs(workers)
    world = World(house.disk, workers, syncs, WrongClock(), house.rng, net, late_effect=must_not_come)
    gc = Collector(house.memory, world, 10.0)
    for number in range(3):
        life = await house.start(limits=EAGER)
        opened = await life.open(new=number == 0, tier=COLD_FAST)
        for _ in range(12):
            await life.fill(4)
            for _ in range(6):
                await gc.collect(TOPIC_ID, 0, lambda epoch, end_offset: True)
                await asyncio.sleep(0.07)
            assert len(await read_through(opened)) == opened.log.log_end_offset
        orphan = str(SnapshotKey(TOPIC_ID, 0, opened.log.log_end_offset, life.epoch, house.rng.uuid()))
        house.memory.objects[orphan] = house.memory.objects[house.objects()[0]]
        await life.kill()
        await gc.collect(TOPIC_ID, 0, lambda epoch, end_offset: True)
        assert orphan in house.memory.objects, "of the root's own epoch: its writer may yet commit it"
    life = await house.start(limits=EAGER)
    opened = await life.open(tier=COLD_FAST)
    await settle(lambda: opened.tier.partition_state.claimed)
    await gc.collect(TOPIC_ID, 0, lambda epoch, end_offset: True)
    assert gc.counters.gc_objects >= 1 and house.objects("snapshots") == []
    assert len(house.objects()) == (await house.manifest()).live.segments
    assert len(await read_through(opened)) == opened.log.log_end_offset
    await life.kill()


async def test_peer_t04_a_404_on_ones_own_object_asks_for_the_epoch_first() -> None:
    """slatedb #1718: NotFound during replay was really "you are fenced". A leader that finds its own object missing
    must learn that a newer leader deleted it: it stops as fenced, and does not report the log as damaged."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    old = await house.start(store=store)
    opened = await old.open(new=True)
    store.script(Operation.HEAD, Fault.BEFORE, times=10**6)  # copied, and not verified
    await old.fill(60)
    await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
    replacement = beside(house)
    new = await replacement.start()
    took = await new.open(tier=COLD_FAST)
    await took.tier.delete_records(took.log.log_end_offset)
    await asyncio.sleep(3 * GRACE_S)
    assert not house.objects()
    store.calm()
    opened.tier.reconfigure(COLD_FAST)
    await settle(lambda: opened.tier.status().blocked_by is not None)
    assert opened.tier.status().blocked_by == "fenced"
    assert house.fenced and "2" in house.fenced[0]
    await old.kill()
    await new.kill()


async def test_peer_t10_a_delete_that_only_says_so_is_seen_and_made_good() -> None:
    """litestream #976 (Cloudflare R2): DeleteObjects answered 200, listed the keys as deleted, and deleted nothing.
    What is left is counted by `bucket verify`, harms no reader, and the next claim's gc deletes it."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=replace(COLD_FAST, retention_bytes=3000))
    store.script(Operation.DELETE, Fault.IGNORED, times=10**6)
    await life.fill(60)
    await settle(lambda: opened.tier.partition_state.log_start_offset > 0)
    await asyncio.sleep(4 * GRACE_S)
    manifest = await house.manifest()
    assert manifest.deletion_cursor == manifest.log_start_offset and store.hits[Fault.IGNORED] > 0
    left = len(house.objects()) - manifest.live.segments
    assert left > 0
    findings = await inspector(house).verify(TOPIC_ID, 0, deep=True)
    assert not [found for found in findings if found.kind.is_damage]
    assert len([found for found in findings if found.kind is FindingKind.ORPHAN_PENDING]) == left
    assert sorted(await read_through(opened)) == list(range(opened.tier.log_start_offset, 60))
    store.calm()
    await life.stop()
    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    await asyncio.sleep(4 * GRACE_S)
    assert len(house.objects()) == (await house.manifest()).live.segments
    await life.kill()


@pytest.mark.parametrize("base", [2**31 - 60, 2**32 - 60, 2**63 - 2**31 - 60, INT64_MAX - 120])
async def test_peer_t12_offsets_near_two_to_the_31_and_63(base: int) -> None:
    """AutoMQ #3339: an offset delta overflowed int32, and compaction dropped the block. Offsets around 2³¹, 2³² and
    2⁶³ go through append, index, roll, copy, manifest, a lost disk and cold reads, and come back as they were."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    state = opened.tier.partition_state
    await state.claim()
    await state.commit(lambda m: m.set_log_start(base))
    await life.lose_disk()

    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    assert opened.log.log_end_offset == opened.log.log_start_offset == base
    written = 0
    for _ in range(40):
        written += 3
        life.append(3)
    await opened.flusher.flush()
    assert opened.log.log_end_offset == base + 120
    before = await read_through(opened)
    assert sorted(before) == list(range(base, base + written))
    stamp = opened.log.offset_for_timestamp(0)
    assert stamp is not None and stamp.offset == base
    await drained(opened)
    assert len(house.objects()) > 3
    assert await read_through(opened) == before
    for offset in range(base, base + 120):
        assert route_of(opened, offset) is Route.COLD
        assert min(await read_through(opened, offset)) == offset
    await life.lose_disk()

    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    assert {at: value for at, value in (await read_through(opened)).items() if at < base + 120} == before
    if base + 120 == INT64_MAX:
        with pytest.raises(ReservationExhausted):
            life.append()
    await life.kill()


async def test_peer_t12_a_hole_wider_than_an_int32_is_declared_copied_and_crossed() -> None:
    """AutoMQ #3339 again, for our own wide thing: after a lost disk the unused part of a reservation is closed by gaps.
    One of three times 2³¹ offsets needs several batches, several segments, and leaves every record where it was."""
    wide = 3 * 2**31
    house = House()
    life = await house.start(limits=replace(LIMITS, reservation_offsets=wide))
    opened = await life.open(new=True)
    await life.fill(20)
    await copied(opened)
    await life.lose_disk()
    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    assert opened.lost == (20, wide) and opened.log.log_end_offset == wide
    await life.fill(20)
    await drained(opened)
    assert sorted(await read_through(opened)) == [*range(20), *range(wide, wide + 20)]
    manifest = await house.manifest()
    manifest.check()
    assert manifest.gaps == ((20, wide),)
    # Neither an index entry nor a batch's last offset says more than 2³¹−1 from its base.
    assert max(segment.end_offset - segment.base_offset for segment in manifest.tail) <= 2**31
    assert sorted(await read_through(opened, 2**31 + 5)) == list(range(wide, wide + 20))
    await life.kill()


async def test_peer_t13_delete_records_at_every_boundary_and_beside_it() -> None:
    """AutoMQ 3678dc2: more was trimmed than was asked for. At each batch and segment boundary of both tiers, one
    before, and one behind it: exactly the records below go, and exactly the objects that end at or below it."""
    house = House()
    life = await house.start(limits=EAGER)
    opened = await life.open(new=True)
    await life.fill(12, count=3, size=150)
    await copied(opened)
    opened.tier.reconfigure(replace(TIER, copy_disable=True))
    await life.fill(12, count=3, size=150)
    end = opened.log.log_end_offset
    cold = [segment.end_offset for segment in (await house.manifest()).tail]
    local = [segment.base_offset for segment in opened.log.sealed_segments()]
    assert len(cold) >= 3 and len([base for base in local if base >= cold[-1]]) >= 2
    near = {edge + by for edge in (*cold, *local, *range(0, end, 3), end) for by in (-1, 0, 1)}
    for offset in sorted(at for at in near if 0 <= at <= end):
        await opened.tier.delete_records(offset)
        assert opened.tier.log_start_offset == opened.log.log_start_offset == offset
        assert sorted(await read_through(opened)) == list(range(offset, end))
        await opened.tier.delete_records(max(offset - 1, 0))
        assert opened.tier.log_start_offset == offset, "a lower one changes nothing"
        await asyncio.sleep(2.5)
        bases = [key.base_offset for key in map(parse_key, house.objects()) if isinstance(key, SegmentKey)]
        starts = dict(zip(cold, [0, *cold], strict=False))
        assert bases == [starts[at] for at in cold if at > offset]
    await life.kill()
    life = await house.start()
    opened = await life.open()
    assert opened.log.log_start_offset == end == opened.log.log_end_offset
    await life.kill()


async def test_peer_t14_failed_and_unfinished_copies_do_not_count_in_size_retention() -> None:
    """KAFKA-17062: segments of failed copies counted towards retention.bytes, so that good ones went early. Ten uploads
    whose answers were lost leave objects behind, and one hangs: the log counts once, and nothing goes."""
    house = House()
    faulty = FaultyStore(house.memory, SeededRng(1))
    store = WatchedStore(faulty)
    life = await house.start(store=store)
    opened = await life.open(new=True)
    faulty.script(Operation.DELETE, Fault.BEFORE, times=10**6)  # what failed stays in the bucket
    faulty.script(Operation.PUT_SEGMENT, Fault.LOST, times=10)
    await life.fill(40)
    await copied(opened)
    await life.fill(40)
    await copied(opened)
    manifest = await house.manifest()
    assert faulty.hits[Fault.LOST] == 10 and len(house.objects()) == manifest.live.segments + 10
    store.holds["put_segment"] = asyncio.Event()
    await life.fill(20)
    await asyncio.sleep(1)
    live = (await house.manifest()).live
    only_local = opened.log.local_bytes - live.log_bytes
    assert only_local > 2000, "nothing of them was copied"
    opened.tier.reconfigure(replace(TIER, retention_bytes=live.log_bytes + only_local))
    await asyncio.sleep(15)
    assert opened.tier.log_start_offset == 0 and len(await read_through(opened)) == 100
    opened.tier.reconfigure(replace(TIER, retention_bytes=live.log_bytes + only_local - manifest.tail[0].log_bytes))
    await settle(lambda: opened.tier.log_start_offset > 0)
    assert opened.tier.log_start_offset == manifest.tail[0].end_offset
    await life.kill()


async def test_peer_t15_cleaning_up_a_failed_copy_may_fail_too() -> None:
    """KAFKA-17428: the clean-up of a failed copy failed itself, and its object dangled for ever. Here it is asked for
    again until the store did it; what the process could not clean any more, the next claim's gc does."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    store.script(Operation.PUT_SEGMENT, Fault.LOST, times=3)
    for fault in (Fault.BEFORE, Fault.LOST, Fault.BEFORE):
        store.script(Operation.DELETE, fault)
    await life.fill(60)
    await copied(opened)
    await life.fill(60)
    await copied(opened)
    assert store.hits[Fault.LOST] == 4 and store.hits[Fault.BEFORE] == 2
    await settle(lambda: len(house.objects()) == opened.tier.partition_state.manifest.live.segments)
    store.script(Operation.PUT_SEGMENT, Fault.LOST, times=2)
    store.script(Operation.DELETE, Fault.BEFORE, times=10**6)
    await life.fill(30)
    await asyncio.sleep(20)
    assert len(house.objects()) == (await house.manifest()).live.segments + 2
    await life.kill()
    life = await house.start()
    opened = await life.open()
    await asyncio.sleep(4 * GRACE_S)
    assert len(house.objects()) == (await house.manifest()).live.segments
    assert len(await read_through(opened)) == 150
    await life.kill()


class NoDeletes(WatchedStore):
    """A policy without DeleteObject."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, self._refuse)

    def _refuse(self, operation: str, argument: Any) -> None:
        if operation == "delete":
            raise AccessRefused("403 AccessDenied DeleteObject")


async def test_peer_t15_a_store_that_deletes_nothing_stops_neither_copies_nor_local_retention() -> None:
    """KAFKA-17428's neighbour, found here: a failed copy's clean-up came before the next copy, and the deletion of
    objects before that of local segments. A policy without DeleteObject and one failed upload ended both, until the
    disk was full."""
    house = House()
    faulty = FaultyStore(NoDeletes(house.memory), SeededRng(1))  # type: ignore[arg-type]
    life = await house.start(store=faulty)
    opened = await life.open(new=True, tier=replace(COLD_FAST, retention_bytes=4000))
    faulty.script(Operation.PUT_SEGMENT, Fault.LOST)
    await life.fill(60)
    await copied(opened)
    assert faulty.hits[Fault.LOST] == 1
    await settle(lambda: opened.tier.log_start_offset > 0)
    await asyncio.sleep(2 * GRACE_S)
    assert house.objects(), "nothing was deleted"
    await life.fill(60)
    await drained(opened)
    assert sorted(await read_through(opened)) == list(range(opened.tier.log_start_offset, 120))
    await life.kill()


async def test_peer_t16_the_log_start_moves_before_anything_is_deleted() -> None:
    """KAFKA-15352: objects went before the log start had moved, and readers met holes. At each deletion the root in the
    bucket already says that nothing below is readable."""
    house = House()
    late: list[str] = []
    deleted: list[str] = []
    start = 0

    def check(operation: str, keys: Any) -> None:
        if operation == "delete":
            for key in map(parse_key, keys):
                if isinstance(key, SegmentKey):
                    deleted.append(str(key))
                    entry = next(s for s in known if s.uuid == key.uuid)
                    if entry.end_offset > start:
                        late.append(str(key))

    store = WatchedStore(house.memory, check)
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=COLD_FAST)
    await life.fill(60)
    await copied(opened)
    known = (await house.manifest()).tail
    opened.tier.reconfigure(replace(COLD_FAST, retention_bytes=2000))
    await settle(lambda: opened.tier.log_start_offset > 0)
    assert not deleted
    start = (await house.manifest()).log_start_offset
    await asyncio.sleep(3 * GRACE_S)
    assert deleted and not late
    await life.kill()


async def test_peer_t16_a_segment_of_several_epochs_counts_once() -> None:
    """KAFKA-15479: a segment with batches of several leader epochs was counted once for each. Five lives write into one
    segment; size retention at exactly the log's size lets nothing go, at one byte less than the rest exactly one."""
    house = House()
    for number in range(5):
        life = await house.start()
        opened = await life.open(new=number == 0)
        await life.fill(2)
        if number < 4:
            await life.stop()
    await life.fill(30)
    await copied(opened)
    manifest = await house.manifest()
    first = manifest.tail[0]
    assert len(first.epochs) == 5
    total = manifest.live.log_bytes
    opened.tier.reconfigure(replace(TIER, retention_bytes=total - first.log_bytes + 1))
    await asyncio.sleep(15)
    assert opened.tier.log_start_offset == 0
    opened.tier.reconfigure(replace(TIER, retention_bytes=total - first.log_bytes))
    await asyncio.sleep(15)
    assert opened.tier.log_start_offset == first.end_offset
    await life.kill()


async def test_peer_t18_a_log_rebuilt_from_the_bucket_is_read_where_its_bytes_are() -> None:
    """KAFKA-15695: a follower rebuilt from remote kept its old local start, and reads were routed to a local log that
    held nothing. After a lost disk, and after an old copy of the directory came back, every offset leads to bytes."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=COLD_FAST)
    await life.fill(30)
    await opened.flusher.flush()
    life.data_dir.checkpoints.sample([opened.log]).run()
    old_disk = house.disk.kill()
    await life.fill(30)
    await copied(opened)
    await life.lose_disk()

    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    assert opened.log.local_log_start_offset == 60 and opened.log.log_start_offset == 0
    assert {route_of(opened, offset) for offset in range(60)} == {Route.COLD}
    assert sorted(await read_through(opened)) == list(range(60))
    await life.kill()

    house.disk, house.boots = old_disk, 9
    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    await settle(lambda: opened.tier.status().blocked_by == "log behind bucket")
    assert sorted(await read_through(opened)) == list(range(opened.log.log_end_offset))
    await life.kill()
    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    assert {route_of(opened, offset) for offset in range(60)} <= {Route.COLD, Route.HOT}
    assert sorted(await read_through(opened))[:60] == list(range(60))
    await life.kill()


async def test_peer_t20_overlapping_and_duplicate_copies_neither_stick_nor_move_the_start() -> None:
    """KAFKA-16511, 16890, 15168: overlapping and duplicate remote segments made deletion stick and moved the log start
    wrongly. Of several uploads of one range the manifest names one and refuses the others, and retention goes on."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    store.plan = replace(store.plan, late_s=(0.5, 3.0))
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=COLD_FAST)
    store.script(Operation.PUT_SEGMENT, Fault.LATE, times=3)
    store.script(Operation.PUT_SEGMENT, Fault.LOST, times=2)
    store.script(Operation.PUT_ROOT, Fault.LOST, times=2)
    await life.fill(60)
    await copied(opened)
    await asyncio.sleep(5)
    manifest = await house.manifest()
    manifest.check()
    state = opened.tier.partition_state
    taken = manifest.tail[1]
    for overlap in (
        replace_entry(taken, house),
        replace_entry(taken, house, base_offset=taken.base_offset + 1),
        replace_entry(taken, house, end_offset=taken.end_offset + 5),
        replace_entry(manifest.tail[-1], house, base_offset=manifest.remote_end_offset - 1, records=1),
    ):
        with pytest.raises((EditRefused, Corrupt)):
            await state.commit(lambda m, entry=overlap: m.add(entry))  # type: ignore[misc]
    assert sorted(await read_through(opened)) == list(range(60))
    opened.tier.reconfigure(replace(COLD_FAST, retention_bytes=1))
    await settle(lambda: opened.tier.log_start_offset > 40)
    await asyncio.sleep(3 * GRACE_S)
    manifest = await house.manifest()
    assert manifest.deletion_cursor == manifest.log_start_offset
    assert sorted(await read_through(opened)) == list(range(manifest.log_start_offset, 60))
    await life.kill()


def replace_entry(entry: Any, house: House, **changes: Any) -> Any:
    changes.setdefault("uuid", house.rng.uuid())
    return changed(entry, epochs=(), **changes)


@pytest.mark.parametrize("operation", ["get", "get_if_changed", "head", "put_segment", "put_root", "delete"])
async def test_peer_t25_a_store_that_never_answers_holds_nothing_for_ever(operation: str) -> None:
    """Aiven #820: an upload without a time-out hung for ever. Each operation hangs in its turn; produces go on, the
    calls that need the store end by their deadline, a stop ends, and when the store is back the backlog drains."""
    house = House()
    store = WatchedStore(house.memory)
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=replace(COLD_FAST, retention_bytes=6000))
    await life.fill(40)
    await copied(opened)
    store.hangs.add(operation)
    await life.fill(40)
    assert opened.log.log_end_offset == 80
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(200):
            await opened.tier.delete_records(opened.tier.log_start_offset + 1)
    except (Retryable, TimeoutError):
        assert loop.time() - began < 150, "it has no deadline of its own"
    await asyncio.sleep(60)
    store.hangs.clear()
    await settle(lambda: opened.tier.status().copy_lag_bytes == 0, within_s=300)
    await asyncio.sleep(60)
    assert len(house.objects()) == (await house.manifest()).live.segments
    await read_through(opened)
    store.hangs.add(operation)
    async with asyncio.timeout(200):
        await life.stop()


async def test_peer_t26_a_local_segment_deleted_in_mid_upload() -> None:
    """Redpanda #4624: the local segment was deleted while it was uploaded. DeleteRecords passes over a range whose
    upload is under way: the copy finishes or fails as a whole, what is left tiles, and nothing above the start goes."""
    for hold in ("put_segment", "put_root"):
        house = House()
        store = WatchedStore(house.memory)
        life = await house.start(store=store)
        opened = await life.open(new=True, tier=COLD_FAST)
        await settle(lambda: opened.tier.partition_state.claimed)  # noqa: B023
        gate = store.holds["put_segment"] = asyncio.Event()
        await life.fill(60)
        await asyncio.sleep(0.5)
        assert house.objects(), "the upload is under way"
        second = opened.log.sealed_segments()[1]
        if hold == "put_root":
            store.holds["put_root"] = gate
        deleting = asyncio.ensure_future(opened.tier.delete_records(second.base_offset + 1))
        await asyncio.sleep(5)
        gate.set()
        await deleting
        store.holds.clear()
        await copied(opened)
        (await house.manifest()).check()
        assert sorted(await read_through(opened)) == list(range(second.base_offset + 1, 60))
        await asyncio.sleep(3 * GRACE_S)
        assert sorted(await read_everything(house, opened)) == list(range(second.base_offset + 1, 60))
        await life.stop()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.TRUNCATED])
async def test_peer_t26_a_term_never_begins_with_an_empty_manifest(fault: Fault) -> None:
    """Redpanda #9759: a new leader that had not read the manifest yet uploaded an empty one. Whatever the first reads
    of a term answer, the manifest keeps every segment it had."""
    house = House()
    for number in range(4):
        store = FaultyStore(house.memory, SeededRng(number))
        if number:
            store.script(Operation.GET, fault, times=5 * number)
            store.script(Operation.PUT_ROOT, Fault.REFUSED, times=number)
            store.script(Operation.PUT_ROOT, Fault.LOST, times=number)
        life = await house.start(store=store)
        opened = await life.open(new=number == 0, tier=COLD_FAST)
        await life.fill(20)
        before = (await house.manifest()).tail
        await copied(opened)
        manifest = await house.manifest()
        manifest.check()
        assert manifest.tail[: len(before)] == before and manifest.leader_epoch == life.epoch
        assert len(await read_through(opened)) == 20 * (number + 1)
        await life.kill()


async def test_peer_t26_a_transfer_in_mid_upload_leaves_nothing_for_ever() -> None:
    """Redpanda #8560: each leadership transfer left the objects of unfinished uploads behind. Three lives end between
    upload and commit; after the next claim the bucket holds what the manifest names, and nothing else."""
    house = House()
    for number in range(3):
        store = WatchedStore(house.memory)
        life = await house.start(store=store)
        opened = await life.open(new=number == 0)
        await settle(lambda: opened.tier.partition_state.claimed)  # noqa: B023
        store.holds["put_segment"] = asyncio.Event()
        await life.fill(20)
        await asyncio.sleep(1)
        await life.kill()
    manifest = await house.manifest()
    assert len(house.objects()) == 3 + manifest.live.segments
    life = await house.start()
    opened = await life.open(tier=COLD_FAST)
    await copied(opened)
    await asyncio.sleep(4 * GRACE_S)
    assert len(house.objects()) == (await house.manifest()).live.segments
    assert len(await read_through(opened)) == 60
    await life.kill()


def test_peer_t26_retention_goes_on_when_nobody_waits_for_the_disk() -> None:
    """Redpanda #4224: retention stopped where only acks=1 was produced. Nobody asks for a flush, in either mode of it:
    segments are sealed, copied and expired all the same."""

    async def scenario(*, flush_sync: bool) -> None:
        house = House()
        life = await house.start()
        log = replace(LOG, flush_sync=flush_sync)
        opened = await life.open(new=True, log=log, tier=replace(COLD_FAST, retention_bytes=3000))
        for _ in range(80):
            life.append()
            await asyncio.sleep(0.05)
        await settle(lambda: opened.tier.log_start_offset > 40, within_s=120)
        await asyncio.sleep(3 * GRACE_S)
        assert len(house.objects()) == (await house.manifest()).live.segments < 10
        assert opened.log.local_bytes < 6000
        assert sorted(await read_through(opened)) == list(range(opened.tier.log_start_offset, 80))
        await life.kill()

    for flush_sync in (True, False):
        run_fast(scenario(flush_sync=flush_sync))


async def test_peer_t26_the_manifest_has_no_offset_gap() -> None:
    """Redpanda #17408: the manifest had an offset gap where a segment was skipped. A local segment that is not there
    when its turn comes stops the copies and is named; what lies behind it is not copied over the hole."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=replace(TIER, copy_disable=True))
    await life.fill(60)
    await asyncio.sleep(1)
    opened.log.advance_log_start(opened.log.sealed_segments()[1].base_offset)
    assert opened.log.delete_local_before(opened.log.log_start_offset)
    opened.log.log_start_offset = 0  # as if nobody had asked for its deletion
    opened.tier.reconfigure(TIER)
    await settle(lambda: opened.tier.status().blocked_by is not None)
    assert opened.tier.status().blocked_by == "hole"
    manifest = await house.manifest()
    assert manifest.remote_end_offset == 0 and not house.objects()
    await life.kill()
