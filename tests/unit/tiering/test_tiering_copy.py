"""Copying: what is sealed, flushed and visible sinks into the bucket, nothing else does, whatever the store does."""

from __future__ import annotations

import asyncio
import copy
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from coldstore.inspection.audit import GcPlan, audit_manifest
from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.inspection.orphan_safety import keep_only_copies
from coldstore.object_store import Upload
from coldstore.segments.footer_room import footer_room
from coldstore.segments.segment_reader import fetch_footer
from coldstore.stores.directory import DirectoryStore
from coldstore.stores.metered import MeteredStore
from coldstore.stores.operations import Operation
from hotstore.host.data_dir import DataDir
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_loading import make_log
from logformat.errors import Corrupt
from logformat.indexes.offset_index import OffsetIndex
from logformat.indexes.time_index import TimeIndex
from logformat.record_batch import LEADER_EPOCH_AT, walk
from logformat.values import TopicPartition
from seams.files.disk import FileRange, read_file
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.store.faulty_store import Fault, FaultPlan, FaultyStore, even_rates
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.tier_kit import (
    DATA,
    LIMITS,
    LOG,
    TIER,
    TOPIC,
    TOPIC_ID,
    House,
    Life,
    Opened,
    cold_bytes,
    local_bytes,
    read_everything,
    settle,
)
from tests.support.workers import LoopWorkers
from tiering.copying import segment_body
from tiering.opening.reservation import LocalReservation, write_reservation
from tiering.partition_state import Block


def sunk(opened: Opened) -> bool:
    """Everything sealed is in the bucket."""
    return opened.tier.remote_end_offset == opened.log.active_info().base_offset


async def check_bucket(house: House) -> None:
    """Books balance, tiles tile, and no object is unnamed but for pending ones of the current epoch."""
    inspector = BucketInspector(house.memory, LoopWorkers())
    view = await inspector.view(TOPIC_ID, 0)
    assert view is not None
    assert [f for f in audit_manifest(view.manifest, view.live) if f.kind.is_damage] == []
    damage = [f for f in await inspector.verify(TOPIC_ID, 0, deep=True) if f.kind.is_damage]
    assert damage == []


@pytest.mark.parametrize("one_pass", [True, False])
async def test_sealed_segments_sink_byte_for_byte(one_pass: bool) -> None:
    """Every sealed segment becomes one object with the same log bytes, named by the manifest, and is verified; also in
    a store that wants the checksum before the bytes."""
    house = House()
    life = await house.start(limits=replace(LIMITS, one_pass=one_pass))
    opened = await life.open(new=True)
    await life.fill(60)
    await settle(lambda: sunk(opened))
    sealed_end = opened.tier.remote_end_offset
    assert sealed_end > 0
    manifest = await house.manifest()
    assert cold_bytes(house, manifest) == local_bytes(opened.log, 0, sealed_end)
    assert len(house.objects()) == len(manifest.tail)
    assert life.service.copy_counters.verified_segments == len(manifest.tail)
    await check_bucket(house)
    assert not house.failures
    await life.stop()


async def test_a_log_that_an_unclean_start_cut_still_sinks() -> None:
    """A cut gives a log another flusher: the tier, attached before, asked the one that was closed, in vain, for as long
    as the leader epoch lasted (simulated seed 1120 of three brokers)."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(3)
    await opened.tier.partition_state.lease.truncate(2)
    await life.fill(60)
    await settle(lambda: sunk(opened))
    assert opened.tier.remote_end_offset > 3 and not house.failures
    await life.stop()


async def test_a_range_that_changed_before_its_copy_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeleteRecords came between plan and copy. `tier status` said that the store blocks the partition, perhaps until a
    long transaction ended, and the copy waited as for a store that does not answer."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    log, look, blocks = opened.log, PartitionLog.batch_ranges, list[dict[Block, str]]()

    def changed(self: PartitionLog, start: int, end: int) -> list[FileRange]:
        blocks.append(dict(opened.tier.partition_state.blocks))
        if len(blocks) == 1:
            log.advance_log_start(end)
            log.delete_local_before(end)
        return look(self, start, end)

    monkeypatch.setattr(PartitionLog, "batch_ranges", changed)
    await life.fill(60)
    await settle(lambda: sunk(opened))
    assert len(blocks) > 1 and not any(blocks) and not house.failures
    await life.stop()


async def test_a_clean_restart_serves_at_once_and_goes_on() -> None:
    """The next life finds its log and reservation, claims in the background, and copies on from the remote end."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    end = await life.fill(60)
    await life.stop()

    life = await house.start()
    opened = await life.open()
    assert opened.log.log_end_offset == end
    await life.fill(60)
    await settle(lambda: sunk(opened))
    manifest = await house.manifest()
    assert manifest.leader_epoch == 2 and not manifest.gaps
    assert cold_bytes(house, manifest) == local_bytes(opened.log, 0, manifest.remote_end_offset)
    assert not house.failures
    await life.stop()


async def test_four_requests_a_segment() -> None:
    """One PUT, one CAS, one read-back of the root, one HEAD (issue: ≤ 40 a GiB in 128 MiB segments)."""
    house = House()
    metered = MeteredStore(house.memory, FastClock())
    life = await house.start(store=metered)
    opened = await life.open(new=True)
    await settle(
        lambda: opened.tier.partition_state.log_start_offset == 0 and life.service._queues.commits.running == 0
    )
    await asyncio.sleep(0.5)
    before = {operation: meter.requests for operation, meter in metered.meters.items()}
    await life.fill(200)
    await settle(lambda: sunk(opened))
    await asyncio.sleep(0.5)
    segments = len((await house.manifest()).tail)
    spent = {o: m.requests - before[o] for o, m in metered.meters.items() if m.requests > before[o]}
    assert segments > 5
    assert spent == {
        Operation.PUT_SEGMENT: segments,
        Operation.PUT_ROOT: segments,
        Operation.GET_IF_CHANGED: segments,
        Operation.HEAD: segments,
    }
    await life.stop()


async def test_the_store_is_read_back_whole_where_it_keeps_no_checksum() -> None:
    """Without a HEAD that proves anything the object's bytes are read and their CRC is compared (C12)."""
    house = House()
    house.memory = MemoryStore(checks_checksums=False)
    house.store = house.memory
    life = await house.start(limits=replace(LIMITS, verify_by_head=False))
    opened = await life.open(new=True)
    await life.fill(30)
    await settle(lambda: sunk(opened) and life.service.copy_counters.verified_segments > 0)
    assert life.service.copy_counters.verified_segments == len((await house.manifest()).tail)
    await life.stop()


@pytest.mark.parametrize("flush_sync", [True, False])
async def test_design_c06_nothing_is_copied_before_it_is_flushed(flush_sync: bool) -> None:
    """C6: a sealed segment in the page cache stays there until its fsync, in both modes; then it sinks."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, log=replace(LOG, flush_sync=flush_sync))
    await settle(lambda: opened.tier.partition_state.claimed)
    fault = house.disk.inject("sync", 5, suffix=".log", times=10**6)
    for _ in range(60):
        life.append()
    await asyncio.sleep(5)
    assert opened.log.flushed_end_offset == 0 and house.objects() == []
    assert fault.times < 10**6, "a sync was tried and failed: the log is offline (C10)"
    house.disk.heal()
    await life.kill()
    life = await house.start()
    opened = await life.open(log=replace(LOG, flush_sync=flush_sync))
    await life.fill(60)
    await settle(lambda: sunk(opened))
    await life.stop()


async def test_records_above_the_high_watermark_stay() -> None:
    """What is not visible yet is not copied, flushed or not: the last stable offset bounds the copy."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    visible = 0
    opened.tier.partition_state.visible_end = lambda: visible
    await life.fill(60)
    await asyncio.sleep(3)
    assert opened.tier.remote_end_offset == 0
    visible = 30
    await settle(lambda: opened.tier.remote_end_offset > 0)
    await asyncio.sleep(3)
    assert opened.tier.remote_end_offset <= 30
    visible = 60
    await settle(lambda: sunk(opened))
    await life.stop()


async def test_an_idle_segment_is_sealed_when_its_oldest_record_waited_long_enough() -> None:
    """thermocline.seal.ms counts from the first append by the broker's clock, also when nothing comes any more."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=replace(TIER, seal_ms=90_000))
    await asyncio.sleep(333)
    await life.fill(3)
    await asyncio.sleep(89)
    assert opened.tier.remote_end_offset == 0
    assert 88_000 <= opened.tier.status().seal_age_ms <= 90_000
    await asyncio.sleep(2)
    assert opened.tier.remote_end_offset == 3
    assert opened.tier.status().seal_age_ms == 0
    await life.stop()


async def test_design_c05_a_segment_that_straddles_the_remote_end_gives_its_rest() -> None:
    """C5: other replicas roll elsewhere; the next object begins at the remote end, in the middle of a local file."""
    house, other = House(), House()
    other.memory = other.store = house.memory
    life = await house.start(epoch=1)
    opened = await life.open(new=True)
    await life.fill(60)
    await settle(lambda: sunk(opened))
    end = opened.tier.remote_end_offset
    data = local_bytes(opened.log, 0, 60)
    await life.kill()

    directory = DataDir.open(other.disk, DATA)
    config = replace(LOG, segment_bytes=len(data) * 2)
    log = make_log(directory, TopicPartition(TOPIC, 0), TOPIC_ID.bytes, config)
    for position, header in walk(data):
        batch = bytearray(data[position : position + header.size])
        log.append_as_leader([memoryview(batch)], [header], header.leader_epoch, 0)
    write_reservation(log.directory, LocalReservation(TOPIC_ID, 0, 1000, True, "boot-1"))
    log.close(True)
    directory.close()
    life = await other.start(epoch=2)
    opened = await life.open(log=config)
    opened.log.roll()
    opened.tier.rolled()
    await life.fill(1)
    await settle(lambda: sunk(opened))
    manifest = await house.manifest()
    assert manifest.tail[-1].base_offset == end and manifest.tail[-1].end_offset == 60
    assert cold_bytes(house, manifest) == data
    footer = await fetch_footer(house.memory, manifest.tail[-1].key(TOPIC_ID, 0), manifest.tail[-1].object_bytes)
    assert footer.offset_index.base_offset == end
    await check_bucket(house)
    await life.kill()


async def test_design_c08_the_footer_holds_the_producers_at_the_segments_end() -> None:
    """C8: Kafka's snapshot of a base offset is the state before it; the footer's is the state after the last batch."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    for n in range(30):
        life.append(sequence=n)
    await opened.tier.seal_and_copy()
    for segment in (await house.manifest()).tail:
        footer = await fetch_footer(house.memory, segment.key(TOPIC_ID, 0), segment.object_bytes)
        state = footer.producer_state()
        assert state.end_offset == segment.end_offset
        assert state.producers[0].batches[-1].last_offset == segment.end_offset - 1
    await life.stop()


async def test_a_footers_room_is_told_from_the_local_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the very segment, so that the object carries little filler; no copy needs a second pass."""
    told: list[tuple[OffsetIndex, TimeIndex] | None] = []

    def recorded(*args: Any, indexes: tuple[OffsetIndex, TimeIndex] | None, **others: Any) -> int:
        told.append(indexes)
        return footer_room(*args, indexes=indexes, **others)

    monkeypatch.setattr(segment_body, "footer_room", recorded)
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    await settle(lambda: sunk(opened))
    manifest = await house.manifest()
    bases = [indexes[0].base_offset for indexes in told if indexes is not None]
    assert bases == [segment.base_offset for segment in manifest.tail] and len(told) == len(bases) > 1
    await life.stop()


async def test_a_footer_that_outgrew_its_room_costs_a_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was announced was too little: no object, then the same range once more with its size known, under another
    name. What the first attempts left is asked for and deleted."""
    monkeypatch.setattr(segment_body, "footer_room", lambda *_, **__: 300)
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    await settle(lambda: sunk(opened))
    await asyncio.sleep(5)
    manifest = await house.manifest()
    assert cold_bytes(house, manifest) == local_bytes(opened.log, 0, manifest.remote_end_offset)
    assert len(house.objects()) == len(manifest.tail) == life.service.copy_counters.copied_segments
    assert life.service.copy_counters.copy_errors == 0
    assert life.service.copy_counters.garbage_objects == len(manifest.tail)
    await check_bucket(house)
    assert not house.failures
    await life.stop()


@pytest.mark.parametrize("one_pass", [True, False])
async def test_bit_rot_before_the_copy_is_refused_not_sealed_under_new_checksums(one_pass: bool) -> None:
    """C12: the pass that makes the object's checksums checks every batch's own; nothing is stored."""
    house = House()
    life = await house.start(limits=replace(LIMITS, one_pass=one_pass))
    opened = await life.open(new=True)
    opened.tier.partition_state.visible_end = lambda: 0
    await life.fill(60)
    first = opened.log.sealed_segments()[0]
    path = f"{opened.log.path}/{first.base_offset:020d}.log"
    house.disk.flip_bit(path, 200, 3)
    opened.tier.partition_state.visible_end = lambda: 60
    with pytest.raises(Corrupt):
        await opened.tier.seal_and_copy()
    assert house.objects() == [] and opened.tier.status().blocked_by == "damaged"
    house.disk.flip_bit(path, 200, 3)
    await settle(lambda: sunk(opened))
    assert opened.tier.status().blocked_by is None
    await life.stop()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("bit", [0, 3])
async def test_a_leader_epoch_that_rotted_is_refused_at_the_copy(number: int, bit: int) -> None:
    """Those four bytes lie outside the batch's CRC, and the object's checksums are made of what is read: only the
    log's own epochs know better. Nothing is uploaded; the log goes on where the byte is right again."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    opened.tier.partition_state.visible_end = lambda: 0
    await life.fill(60)
    first = opened.log.sealed_segments()[0]
    path = f"{opened.log.path}/{first.base_offset:020d}.log"
    at = [at for at, _ in walk(read_file(house.disk, path))][number] + LEADER_EPOCH_AT + 3
    house.disk.flip_bit(path, at, bit)
    opened.tier.partition_state.visible_end = lambda: 60
    with pytest.raises(Corrupt, match="leader epoch"):
        await opened.tier.seal_and_copy()
    assert house.objects() == [] and opened.tier.status().blocked_by == "damaged"
    house.disk.flip_bit(path, at, bit)
    await settle(lambda: sunk(opened))
    await life.stop()


class PausingStore(MemoryStore):
    """Holds root commits of one epoch back while `held` is set, as a paused process would."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__()
        self.objects = inner.objects
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return await super().put_root(key, data, if_match)


async def test_design_c02_gc_against_a_writer_that_pauses_between_upload_and_commit() -> None:
    """C2: gc leaves the object alone while its epoch is the root's; once a newer epoch claimed, it deletes it, and the
    paused writer's commit is refused. Its local bytes stay. The new leader has the records too: they were committed."""
    house, other = House(), House()
    other.memory = other.store = house.memory
    store = PausingStore(house.memory)
    limits = replace(LIMITS, store_timeout_s=10_000, upload_timeout_s=10_000)
    old = await house.start(epoch=1, store=store, limits=limits)
    opened = await old.open(new=True)
    await settle(lambda: opened.tier.partition_state.claimed and store.waiting == 0)
    store.gate.clear()
    await old.fill(60)
    await settle(lambda: store.waiting > 0)
    uploaded = house.objects()
    assert len(uploaded) == 1

    inspector = BucketInspector(house.memory, LoopWorkers())
    plan = await inspector.plan_gc(TOPIC_ID, 0)
    assert [info.key for info in plan.pending] == uploaded and not plan.deletable

    other.disk = copy.deepcopy(house.disk).kill()
    new = await other.start(epoch=2)
    replacement = await new.open(tier=replace(TIER, copy_disable=True))
    await asyncio.sleep(3 * LIMITS.gc_grace_ms / 1000)
    assert house.objects() == [], "gc after the claim deleted the orphan of a lower epoch"
    store.gate.set()
    await settle(lambda: bool(house.fenced))
    manifest = await house.manifest()
    assert manifest.leader_epoch == 2 and manifest.live.segments == 0
    assert opened.log.local_log_start_offset == 0
    assert replacement.log.log_end_offset == opened.log.log_end_offset
    await old.kill()
    await new.kill()


async def sunk_to(opened: Opened, end_offset: int) -> None:
    await settle(lambda: opened.tier.partition_state.remote_end_offset >= end_offset)


async def test_the_object_of_a_cut_off_copy_stays_where_its_records_were_lost_with_the_disk() -> None:
    """Uploaded, not committed: nobody else has what is in it, though the manifest covers its offsets later (a gap)."""
    house = House()
    store = PausingStore(house.memory)
    limits = replace(LIMITS, store_timeout_s=10_000, upload_timeout_s=10_000)
    life = await house.start(store=store, limits=limits)
    opened = await life.open(new=True)
    await settle(lambda: opened.tier.partition_state.claimed and store.waiting == 0)
    store.gate.clear()
    await life.fill(60)
    await settle(lambda: store.waiting > 0)
    uploaded = house.objects()
    await life.lose_disk()
    for _ in range(2):
        life = await house.start()
        opened = await life.open()
        assert opened.log.epochs.entries[0].start_offset == 0
        await life.fill(60)
        await sunk_to(opened, 60)
        await asyncio.sleep(3 * LIMITS.gc_grace_ms / 1000)
        assert set(uploaded) <= set(house.objects()), "the only copy of acknowledged records was deleted as garbage"
        await life.power_cut(keep=1.0)


async def test_an_object_of_which_the_log_holds_the_first_half_alone_is_no_garbage() -> None:
    """A log that lost its tail within what an object holds: the key says where it begins, its footer where it ends."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    await settle(lambda: bool(house.objects()))
    end = (await house.manifest()).tail[0].end_offset
    info = await house.memory.head(house.objects()[0])
    plan = GcPlan((info,), (), ())
    whole = await keep_only_copies(house.memory, plan, lambda epoch, upto: upto <= end)
    assert whole.deletable == (info,)
    kept = await keep_only_copies(house.memory, plan, lambda epoch, upto: upto < end)
    assert kept == GcPlan((), (), (), (info,))
    state = opened.tier.partition_state
    assert not state.holds(life.epoch, end), "of its own epoch and later ones it cannot know"
    state.epoch += 1
    assert state.holds(life.epoch, end)
    opened.log.epochs = opened.log.epochs.assign(state.epoch, end - 1)
    assert not state.holds(life.epoch, end), "the offsets were given again"
    await life.kill()


async def test_design_c22_an_object_in_a_directory_bucket_shares_nothing_with_the_local_segment() -> None:
    """C22: damage to a local file after the copy does not reach the object: never a hard link."""
    house = House()
    house.disk.make_dirs("/bucket")
    store = DirectoryStore(house.disk, LoopWorkers(), "/bucket", house.rng)  # type: ignore[arg-type]
    life = await house.start(store=store, limits=replace(LIMITS, verify_by_head=False))
    opened = await life.open(new=True)
    await life.fill(30)
    await settle(lambda: sunk(opened))
    manifest = opened.tier.partition_state.manifest
    assert manifest is not None
    segment = manifest.tail[0]
    before = (await store.get(str(segment.key(TOPIC_ID, 0)))).data
    house.disk.flip_bit(f"{opened.log.path}/{segment.base_offset:020d}.log", 100, 0)
    assert (await store.get(str(segment.key(TOPIC_ID, 0)))).data == before
    await life.kill()


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        (Operation.PUT_SEGMENT, Fault.BEFORE),
        (Operation.PUT_SEGMENT, Fault.LOST),
        (Operation.PUT_SEGMENT, Fault.LATE),
        (Operation.PUT_ROOT, Fault.BEFORE),
        (Operation.PUT_ROOT, Fault.LOST),
        (Operation.PUT_ROOT, Fault.OWN_412),
        (Operation.PUT_ROOT, Fault.REFUSED),
        (Operation.PUT_ROOT, Fault.CONFLICT),
        (Operation.PUT_ROOT, Fault.LATE),
        (Operation.HEAD, Fault.BEFORE),
        (Operation.GET_IF_CHANGED, Fault.BEFORE),
    ],
)
async def test_one_fault_costs_a_retry_and_no_record(operation: Operation, fault: Fault) -> None:
    """Each way a store can fail one step of a copy: it is copied in the end, once, under a name used once, and what
    the failed attempt left is deleted."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(3), FaultPlan(late_s=(0.5, 2.0)))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await settle(lambda: opened.tier.partition_state.claimed)
    await asyncio.sleep(1)
    store.script(operation, fault)
    await life.fill(60)
    await settle(lambda: sunk(opened))
    assert store.hits[fault] == 1
    await store.settle()
    await life.fill(20)
    await settle(lambda: sunk(opened))
    await asyncio.sleep(5)
    manifest = await house.manifest()
    assert cold_bytes(house, manifest) == local_bytes(opened.log, 0, manifest.remote_end_offset)
    named = {str(segment.key(TOPIC_ID, 0)) for segment in manifest.tail}
    left = set(house.objects()) - named
    assert len(left) <= (fault is Fault.LATE and operation is Operation.PUT_SEGMENT), left
    await check_bucket(house)
    assert not house.failures
    await life.stop()
    await store.close()


@pytest.mark.parametrize("seed", range(12))
async def test_a_bad_store_delays_and_never_loses(seed: int) -> None:
    """Every operation fails in every way it can, one time in eight to fifty; once it heals all is in the bucket, byte
    for byte, and gc of the next life leaves nothing unnamed."""
    house = House(seed=seed)
    # Flipped bits of a root are refused as Corrupt and reported: not what this is about.
    plan = FaultPlan(even_rates(0.02), late_s=(0.1, 10.0), flips=lambda key: False)
    store = FaultyStore(house.memory, SeededRng(seed), plan)
    life = await house.start(store=store)
    opened = await life.open(new=True)
    for _ in range(10):
        await life.fill(15)
        await asyncio.sleep(1)
    store.calm()
    await store.settle()
    await settle(lambda: sunk(opened), within_s=300)
    await opened.tier.seal_and_copy()
    assert sum(store.hits.values()) > 0
    end = opened.log.log_end_offset
    assert len(await read_everything(house, opened)) == end
    await check_bucket(house)
    await life.kill()

    life = await house.start()
    opened = await life.open()
    await asyncio.sleep(3 * LIMITS.gc_grace_ms / 1000)
    manifest = await house.manifest()
    assert {str(s.key(TOPIC_ID, 0)) for s in manifest.tail} == set(house.objects())
    assert not house.failures
    await life.stop()
    await store.close()


async def test_an_exception_nobody_expected_leaves_the_copier_alive() -> None:
    """MemoryError in the middle of an upload: reported, counted, tried again (Kafka's task stays dead: Aiven #820)."""

    class Choking(MemoryStore):
        left = 2

        async def put_segment(self, key: str, body: Upload) -> object:  # type: ignore[override]
            if self.left:
                self.left -= 1
                raise MemoryError("no memory for this part")
            return await super().put_segment(key, body)

    house = House()
    house.memory = Choking()
    house.store = house.memory
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(30)
    await settle(lambda: sunk(opened))
    assert [type(failure) for _, failure in house.failures] == [MemoryError, MemoryError]
    assert life.service.copy_counters.copy_errors == 2
    await life.stop()


async def test_an_outage_holds_nothing_up_but_the_copies() -> None:
    """G12: with the store down, appends and hot reads go on; the lag is visible; after it everything sinks."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await settle(lambda: opened.tier.partition_state.claimed)
    store.down = True
    for _ in range(10):
        await life.fill(10)
        await asyncio.sleep(60)
    status = opened.tier.status()
    assert status.copy_lag_segments > 3 and status.copy_lag_bytes > 6000 and status.copy_lag_ms > 400_000
    assert status.blocked_by == "store"
    store.down = False
    await settle(lambda: sunk(opened), within_s=30)
    assert opened.tier.status().copy_lag_segments == 0
    assert opened.tier.status().blocked_by is None
    assert not house.failures
    await life.stop()


async def test_while_copies_are_refused_the_root_is_not_asked_for_what_they_left() -> None:
    """Each look at a store that is away cost a GET beside its PUT, to learn whether earlier attempts' objects may go:
    half of what a broker asked beside its polls. They go when a copy was taken."""
    house = House()
    down = FaultyStore(house.memory, SeededRng(1))
    store = MeteredStore(down, FastClock(), log_max=10_000)
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await settle(lambda: opened.tier.partition_state.claimed)
    down.down = True
    store.log.clear()
    await life.fill(30)
    await asyncio.sleep(600)
    assert {call.operation for call in store.log} == {Operation.PUT_SEGMENT} and len(store.log) > 60  # gc looks, too
    down.down = False
    store.log.clear()
    await settle(lambda: sunk(opened), within_s=30)
    await asyncio.sleep(5)
    assert sum(call.operation is Operation.DELETE for call in store.log) > 50
    await check_bucket(house)
    await life.stop()


async def test_the_broker_bounds_how_many_partitions_copy_at_once() -> None:
    """copy_partitions_max uploads are under way, the other partitions wait their turn and all get it."""

    class Counting(MemoryStore):
        now = most = 0

        async def put_segment(self, key: str, body: Upload) -> object:  # type: ignore[override]
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.2)
            self.now -= 1
            return await super().put_segment(key, body)

    house = House()
    store = Counting()
    house.memory = house.store = store
    life: Life = await house.start(limits=replace(LIMITS, copy_partitions_max=3))
    tiers = [await life.open(new=True, partition=p) for p in range(8)]
    for p in range(8):
        await life.fill(40, partition=p)
    await settle(lambda: all(sunk(opened) for opened in tiers))
    assert store.most == 3
    await life.stop()


async def test_uuids_of_attempts_differ() -> None:
    """A failed attempt's name is never used again."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    names: list[UUID] = []
    put = house.memory.put_segment

    async def remember(key: str, body: Upload) -> object:
        names.append(UUID(key[-40:-4]))
        return await put(key, body)

    house.memory.put_segment = remember  # type: ignore[method-assign,assignment]
    store.script(Operation.PUT_SEGMENT, Fault.LOST, times=3)
    await life.fill(30)
    await settle(lambda: sunk(opened))
    assert len(names) > 3 and len(set(names)) == len(names)
    await life.stop()


async def test_a_partition_whose_jobs_fail_as_its_role_ends_lags_no_more() -> None:
    """Regression: the job noted it again after it was forgotten, and the log named it every minute for ever."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await settle(lambda: opened.tier.partition_state.claimed)
    close = opened.tier._jobs.close

    async def slow_close() -> None:
        await asyncio.sleep(90)  # a step of the bucket's cleaner ends first
        await close()

    opened.tier._jobs.close = slow_close  # type: ignore[method-assign]
    store.down = True
    await life.fill(60)
    opened.tier.reconfigure(replace(TIER, configs={"retention.ms": "1"}))
    await life.service.detach(opened.tier, give_back=False)
    assert store.hits[Fault.OUTAGE] and not life.service._backlog.lagging()
    await life.kill()
