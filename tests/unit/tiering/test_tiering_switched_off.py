"""Switching tiering off for a topic: the log begins at its local start, the bucket gives its objects back, nothing else
is lost; switching it on again copies anew. Apache Kafka 4.3.1 does the same (KIP-950)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec.structs import replace

from coldstore.manifest.manifest import Manifest
from coldstore.object_store import ObjectStore
from coldstore.stores.operations import Operation
from hotstore.errors import DamagedLog
from hotstore.host.open_log import OpenLog
from logformat.errors import Retryable
from logformat.values import TopicPartition
from seams import crash_points
from seams.rng import SeededRng
from tests.support.store.faulty_store import Fault, FaultPlan, FaultyStore
from tests.support.tier.tier_kit import LIMITS, LOG, TIER, TOPIC, TOPIC_ID, House, Life, Opened, read_everything, settle
from tiering.tier_config import TierConfig

HALF_LOCAL = replace(TIER, local_retention_bytes=4000)
OFF = replace(TIER, enabled=False, configs={"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
GRACE_S = LIMITS.gc_grace_ms / 1000


async def half_local(house: House, *, store: FaultyStore | None = None) -> tuple[Life, Opened]:
    """Sixty records: the bucket holds all that is sealed, the disk the newer part of it and a tail nobody copied."""
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=HALF_LOCAL)
    await life.fill(60)
    base = opened.log.active_info().base_offset
    await settle(lambda: opened.tier.remote_end_offset == base and 0 < opened.log.local_log_start_offset < base)
    assert opened.log.log_end_offset > base, "a tail that nobody copied"
    return life, opened


def switch_off(opened: Opened) -> None:
    opened.log.reconfigure(replace(LOG, tiered=False))
    opened.tier.reconfigure(OFF)


async def nothing_cold(house: House) -> Manifest:
    manifest = await house.manifest()
    manifest.check()
    assert manifest.live.segments == 0 and not manifest.tail and not manifest.pages
    assert manifest.removed == manifest.added
    return manifest


async def test_the_log_begins_at_its_local_start_before_any_object_goes() -> None:
    """Root first, then the grace, then every object, also those of records that are still local and stay readable."""
    house = House()
    life, opened = await half_local(house)
    before, local_start = house.objects(), opened.log.local_log_start_offset
    switch_off(opened)
    await settle(lambda: opened.tier.log_start_offset == local_start)
    assert (await house.manifest()).log_start_offset == local_start == opened.log.log_start_offset
    assert house.objects() == before, "the grace has not passed"
    await settle(lambda: house.objects() == [])
    manifest = await nothing_cold(house)
    assert manifest.remote_end_offset == manifest.log_start_offset == local_start
    assert sorted(await read_everything(house, opened)) == list(range(local_start, 60))
    assert not house.failures
    await life.stop()
    life = await house.start()
    opened = await life.open(tier=OFF)
    assert opened.log.log_start_offset == local_start and opened.log.log_end_offset == 60
    await life.kill()


async def test_a_log_that_was_switched_off_without_a_trace_comes_back_with_its_tail() -> None:
    """What a kill right after the config change leaves, and what earlier versions left for good: local files that begin
    above the log start, and a root that knows nothing. The root's log start moves at the first check."""
    house = House()
    life, opened = await half_local(house)
    local_start = opened.log.local_log_start_offset
    await life.kill()
    assert (await house.manifest()).log_start_offset == 0

    life = await house.start()
    opened = await life.open(tier=OFF)
    await settle(lambda: opened.log.log_start_offset == local_start)
    assert (await house.manifest()).log_start_offset == local_start and opened.log.log_end_offset == 60
    assert sorted(await read_everything(house, opened)) == list(range(local_start, 60))
    life.append()
    await opened.flusher.flush()
    await settle(lambda: house.objects() == [])
    await nothing_cold(house)
    await life.kill()


async def test_a_switch_that_was_taken_back_while_the_log_opened_moves_nothing() -> None:
    """Regression: the log start moved by the configs with which the opening began, although the tier got the newest
    ones before it started. The records that only the bucket held were gone."""
    house = House()
    life, _ = await half_local(house)
    await life.kill()
    life = await house.start()
    opened = await life.open(tier=OFF)
    opened.log.reconfigure(LOG)
    opened.tier.reconfigure(HALF_LOCAL)  # as `LeaderRole` does at once
    await asyncio.sleep(30)
    assert opened.log.log_start_offset == (await house.manifest()).log_start_offset == 0
    assert sorted(await read_everything(house, opened)) == list(range(60))
    await life.kill()


async def test_such_a_log_waits_for_its_bucket() -> None:
    """Nothing but the root tells tiering that was switched off from segments that are gone."""
    house = House()
    life, _ = await half_local(house)
    await life.kill()
    store = FaultyStore(house.memory, SeededRng(1))
    store.script(Operation.GET, Fault.BEFORE, times=10**6)
    life = await house.start(store=store)
    with pytest.raises(Retryable):
        await life.open(tier=OFF)
    store.calm()
    opened = await life.open(tier=OFF)
    assert opened.log.log_end_offset == 60
    await life.kill()


async def test_an_old_copy_of_such_a_log_goes_on_where_the_bucket_says() -> None:
    """It is behind what was copied since: no offset is given twice, and all that the bucket holds stays readable, as
    for a log that is tiered."""
    house = House()
    life, opened = await half_local(house)
    await life.kill()
    old = house.disk.kill()
    life = await house.start()
    opened = await life.open(tier=HALF_LOCAL)
    await life.fill(60)
    await opened.tier.seal_and_copy()
    await life.kill()

    house.disk = old
    life = await house.start()
    opened = await life.open(tier=OFF)
    assert opened.log.local_log_start_offset == 120
    assert life.append() >= 120
    await opened.flusher.flush()
    await asyncio.sleep(3 * GRACE_S)
    assert (await house.manifest()).log_start_offset == opened.log.log_start_offset == 0
    assert set(range(120)) <= set(await read_everything(house, opened))
    await life.kill()


async def test_a_disk_that_is_lost_while_the_switch_is_not_done_costs_nothing_that_was_copied() -> None:
    """The new one's local start is the bucket's end: it became the log start, and every object went, though the disk
    that was to keep the records was gone."""
    house = House()
    life, opened = await half_local(house)
    end = opened.tier.remote_end_offset
    await life.kill()
    await life.lose_disk()
    for _ in range(2):  # it leads alone, as the first of its kind, and again
        life = await house.start()
        opened = await life.open(tier=OFF)
        await asyncio.sleep(3 * GRACE_S)
        assert (await house.manifest()).log_start_offset == 0
        assert set(range(end)) <= set(await read_everything(house, opened))
        assert (await house.manifest()).configs == dict(OFF.configs)
        await life.kill()


async def test_segments_that_the_bucket_never_held_are_still_missed() -> None:
    """A log that never was tiered and lacks its first file is damaged: a person decides."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=OFF)
    await life.fill(60)
    first = opened.log.sealed_segments()[0].base_offset
    life.data_dir.checkpoints.sample([opened.log]).run()
    await life.kill()
    house.disk.unlink(f"{opened.log.path}/{first:020d}.log")
    life = await house.start()
    with pytest.raises(DamagedLog, match="are missing"):
        await life.open(tier=OFF)
    with pytest.raises(DamagedLog, match="are missing"):
        await life.service.open_copy(TopicPartition(TOPIC, 0), TOPIC_ID, replace(LOG, tiered=False))
    assert (await house.manifest()).log_start_offset == 0
    await life.kill()


async def test_a_replica_whose_files_begin_above_the_log_start_opens_by_what_the_root_names() -> None:
    """It was called damaged: its first segments are in the bucket alone, where they stay among replicas (ADR 26). To
    copy to and to lead; nothing of it is let go in either role, and the log starts where the root says."""
    house = House()
    life, opened = await half_local(house)
    start = opened.log.local_log_start_offset
    opened.tier.partition_state.is_alone = False
    switch_off(opened)
    await settle(lambda: opened.log.log_start_offset == start)
    await opened.tier.partition_state.lease.checkpoint_start()
    opened.log.delete_local_before(opened.log.active_info().base_offset)
    opened.log.unlink()
    first = opened.log.local_log_start_offset
    assert first > start
    await life.kill()

    life = await house.start()
    copied = await life.service.open_copy(TopicPartition(TOPIC, 0), TOPIC_ID, replace(LOG, tiered=False))
    assert copied is not None and not copied.log.config.tiered
    assert (copied.log.log_start_offset, copied.log.local_log_start_offset) == (start, first)
    await life.kill()
    for _ in range(2):
        life = await house.start()
        opened = await life.open(tier=OFF)
        assert (opened.log.log_start_offset, opened.log.local_log_start_offset) == (start, first)
        await asyncio.sleep(3 * GRACE_S)
        assert sorted(await read_everything(house, opened)) == list(range(start, 60))
        await life.kill()


async def test_a_replica_that_did_not_hear_that_the_log_starts_where_its_files_do_opens_all_the_same() -> None:
    """Its leader moved the start meanwhile: the root says so."""
    house = House()
    life, opened = await half_local(house)
    local_start = opened.log.local_log_start_offset
    await life.kill()
    disk = house.disk.kill()
    life = await house.start()
    await life.open(tier=OFF)
    await settle(lambda: house.objects() == [])
    await life.kill()
    house.disk = disk
    life = await house.start()
    copied = await life.service.open_copy(TopicPartition(TOPIC, 0), TOPIC_ID, replace(LOG, tiered=False))
    assert copied is not None and copied.log.log_start_offset == local_start
    await life.kill()


@pytest.mark.parametrize("at", [7, 100], ids=["its offset", "its records"])
async def test_the_only_sound_copy_of_a_damaged_batch_stays_in_the_bucket(at: int) -> None:
    """The disk returns a wrong bit, and the bucket serves the offset (G11). When tiering is switched off, the objects
    were deleted, and with them the record."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    await opened.tier.seal_and_copy()
    segment = opened.log.sealed_segments()[1]
    assert opened.log.local_log_start_offset == 0
    path = f"{opened.log.path}/{segment.base_offset:020d}.log"
    house.disk.flip_bit(path, at, 0)
    before = house.objects()
    switch_off(opened)
    await asyncio.sleep(10 * GRACE_S)
    assert house.objects() == before and (await house.manifest()).live.segments
    assert opened.tier.status().blocked_by == "damaged"
    house.disk.flip_bit(path, at, 0)
    await settle(lambda: house.objects() == [])
    assert opened.tier.status().blocked_by is None
    await nothing_cold(house)
    assert sorted(await read_everything(house, opened)) == list(range(60))
    await life.kill()


async def test_damage_of_the_local_log_is_forgotten_when_the_topic_is_tiered_again() -> None:
    """Its objects are not withdrawn then. The partition was called damaged until the role ended."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    await opened.tier.seal_and_copy()
    house.disk.flip_bit(f"{opened.log.path}/{opened.log.sealed_segments()[1].base_offset:020d}.log", 100, 0)
    switch_off(opened)
    await settle(lambda: opened.tier.status().blocked_by == "damaged")
    opened.log.reconfigure(replace(LOG, tiered=True))
    opened.tier.reconfigure(TIER)
    await settle(lambda: opened.tier.status().blocked_by is None)
    await life.kill()


@pytest.mark.parametrize(
    "point", ["expire.start_moved", "expire.object_deleted", "expire.withdrawn", "expire.unnamed_deleted"]
)
async def test_a_kill_between_any_two_steps_is_finished_by_the_next_life(
    point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step the process may end; the next one opens the log with all its records and goes on."""
    house = House()
    life, opened = await half_local(house)
    local_start = opened.log.local_log_start_offset
    reached = asyncio.Event()

    def reach(name: str) -> None:
        if name == point and not reached.is_set():
            reached.set()
            raise asyncio.CancelledError  # nothing of this step's job goes on: the process is dead

    monkeypatch.setattr("tiering.expiry.cold_expirer.reach", reach)
    switch_off(opened)
    async with asyncio.timeout(60):
        await reached.wait()
    await life.kill()
    monkeypatch.setattr("tiering.expiry.cold_expirer.reach", crash_points.reach)

    life = await house.start()
    opened = await life.open(tier=OFF)
    assert sorted(await read_everything(house, opened)) == list(range(local_start, 60))
    await settle(lambda: house.objects() == [])
    await nothing_cold(house)
    assert sorted(await read_everything(house, opened)) == list(range(local_start, 60))
    await life.kill()


@pytest.mark.parametrize("pause_s", [0.0, 1.0, GRACE_S + 0.5, 3 * GRACE_S])
async def test_switched_on_again_everything_readable_is_copied_anew(pause_s: float) -> None:
    """However far the deletion came: afterwards the bucket alone has every record from the log start on."""
    house = House()
    life, opened = await half_local(house)
    switch_off(opened)
    await asyncio.sleep(pause_s)
    opened.log.reconfigure(replace(LOG, tiered=True))
    opened.tier.reconfigure(TIER)
    await life.fill(40)
    await opened.tier.seal_and_copy()
    start = opened.log.log_start_offset
    await asyncio.sleep(3 * GRACE_S)
    await life.stop()
    await life.lose_disk()

    life = await house.start()
    opened = await life.open()
    assert opened.log.log_end_offset == 100 and opened.lost is None
    assert sorted(await read_everything(house, opened)) == list(range(start, 100))
    (await house.manifest()).check()
    await life.kill()


async def test_a_store_that_is_away_meanwhile_changes_nothing_until_it_is_back() -> None:
    """The log start waits for the root; local records and appends do not."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life, opened = await half_local(house, store=store)
    local_start = opened.log.local_log_start_offset
    for operation in (Operation.GET, Operation.PUT_ROOT, Operation.DELETE):
        store.script(operation, Fault.BEFORE, times=10**6)
    switch_off(opened)
    await asyncio.sleep(20)
    assert opened.tier.log_start_offset == 0
    life.append()
    store.calm()
    await settle(lambda: house.objects() == [])
    assert (await nothing_cold(house)).log_start_offset == local_start
    await life.kill()


async def test_no_local_segment_goes_while_a_withdrawal_may_still_arrive() -> None:
    """The commit that withdraws the objects gets no answer, and the topic is tiered again. The objects that the root
    still named were verified and their local segments deleted. Then the withdrawal arrived, and no tier was read."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1), FaultPlan(late_s=(60.0, 60.0)))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await life.fill(60)
    await opened.tier.seal_and_copy()
    state = opened.tier.partition_state
    state.is_alone = False
    switch_off(opened)
    await settle(lambda: state.manifest is not None and not state.is_to_be_switched_off)
    store.script(Operation.PUT_ROOT, Fault.LATE)
    store.script(Operation.PUT_ROOT, Fault.BEFORE, times=10**6)
    state.is_alone = True
    opened.tier.reconfigure(OFF)
    await settle(lambda: not state.manifests.settled)
    opened.log.reconfigure(replace(LOG, tiered=True))
    opened.tier.reconfigure(HALF_LOCAL)
    await store.settle()
    assert store.landed_late == 1 and (await house.manifest()).live.segments == 0
    store.calm()
    await asyncio.sleep(30)
    assert sorted(await read_everything(house, opened)) == list(range(60))
    assert opened.log.local_log_start_offset > 0, "the objects of another copy are verified"
    await life.kill()


async def test_objects_are_verified_beside_a_commit_that_withdraws_none() -> None:
    """A DeleteRecords without an answer: nobody repeats it, so the root may stay unsettled until the next append."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1), FaultPlan(late_s=(60.0, 60.0)))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await life.fill(60)
    await opened.tier.seal_and_copy()
    state = opened.tier.partition_state
    store.script(Operation.PUT_ROOT, Fault.LATE)
    store.script(Operation.PUT_ROOT, Fault.BEFORE, times=10**6)
    with pytest.raises(Retryable):
        await opened.tier.delete_records(5)
    assert not state.manifests.settled
    store.calm()
    entry = (await house.manifest()).tail[-1]
    state.verified.forget_all()
    await opened.tier.expirer._copier.verify(entry)
    assert entry in state.verified
    await life.kill()


async def test_deletes_that_fail_are_done_again() -> None:
    """An answer that is lost, or none: the objects go all the same, and no other."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life, opened = await half_local(house, store=store)
    store.script(Operation.DELETE, Fault.BEFORE, times=3)
    switch_off(opened)
    await settle(lambda: house.objects() == [])
    await nothing_cold(house)
    assert store.hits[Fault.BEFORE] == 3
    await life.kill()


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("deleted", [5, 95, 133])
async def test_switched_on_again_after_records_were_deleted_from_the_middle_of_a_batch(
    deleted: int, waits: bool
) -> None:
    """A log start may stand inside a batch, a copy begins with one: it was tried from the log start on and called the
    log damaged, for good."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=TIER)
    await life.fill(20, count=10)
    await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset > 150)
    switch_off(opened)
    if waits:
        await settle(lambda: house.objects() == [])
    await opened.tier.delete_records(deleted)
    await settle(lambda: house.objects() == [])
    await nothing_cold(house)
    opened.log.reconfigure(replace(LOG, tiered=True))
    opened.tier.reconfigure(TIER)
    await life.fill(10, count=10)
    await opened.tier.seal_and_copy()
    await life.stop()
    await life.lose_disk()
    life = await house.start()
    opened = await life.open()
    assert opened.log.log_end_offset == 300 and opened.lost is None
    assert sorted(await read_everything(house, opened)) == list(range(deleted, 300))
    (await house.manifest()).check()
    await life.kill()


async def test_the_retention_of_a_log_whose_bucket_is_empty_does_not_wait_for_the_bucket() -> None:
    """Nothing cold is left: an outage must not fill the disk, as it does not for a log that never was tiered."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life, opened = await half_local(house, store=store)
    switch_off(opened)
    await settle(lambda: house.objects() == [])
    await nothing_cold(house)
    for operation in (Operation.GET, Operation.PUT_ROOT, Operation.DELETE):
        store.script(operation, Fault.BEFORE, times=10**6)
    start = opened.log.log_start_offset
    opened.tier.reconfigure(replace(OFF, retention_bytes=1))
    life.append()
    opened.tier.expire_soon()
    await settle(lambda: opened.log.sealed_segments() == [])
    assert opened.log.log_start_offset > start + 20
    assert (await house.manifest()).log_start_offset == start
    store.calm()
    await settle(lambda: opened.tier.partition_state.manifests.manifest.log_start_offset == opened.log.log_start_offset)
    await life.kill()
    life = await house.start()
    opened = await life.open(tier=OFF)
    assert opened.log.log_start_offset > start + 20
    await life.kill()


async def test_plain_retention_keeps_what_is_younger_than_a_cold_segment_that_stays() -> None:
    """Copies were switched off. The oldest segment lies in the bucket alone and its timestamp keeps it; the local ones
    are due. They go after it: the log start would have passed it, and its object gone."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=HALF_LOCAL)
    life.append(1, timestamp=life.world.clock.wall_ms() + 10_000_000)
    await life.fill(60)
    base = opened.log.active_info().base_offset
    await settle(lambda: opened.tier.remote_end_offset == base and 0 < opened.log.local_log_start_offset < base)
    opened.log.reconfigure(replace(LOG, tiered=True))
    opened.tier.reconfigure(replace(HALF_LOCAL, copy_disable=True, retention_ms=1000))
    await asyncio.sleep(60)
    assert (await house.manifest()).log_start_offset == 0
    assert min(await read_everything(house, opened)) == 0
    await life.kill()


async def test_local_segments_that_were_due_before_the_switch_stay() -> None:
    """Regression: the verification of their objects began before the switch and ended after it. The segments went, the
    log start moved to the local start behind them, and records that were local at the switch were lost."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    await opened.tier.seal_and_copy()
    await life.kill()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(tier=TIER)
    await settle(lambda: opened.tier.partition_state.claimed)
    store.plan = replace(store.plan, latency_s=(1.0, 1.0))
    opened.tier.reconfigure(replace(TIER, local_retention_bytes=0))
    await asyncio.sleep(1.5)
    assert opened.log.local_log_start_offset == 0
    switch_off(opened)
    await asyncio.sleep(30)
    assert opened.log.log_start_offset == 0
    assert len(await read_everything(house, opened)) == 60
    await life.kill()


# ── a log start that only the disk knows ─────────────────────────────────────────────────────────────────────────────


async def copied_under_an_unknown_root(house: House, tier: TierConfig) -> tuple[Life, Opened]:
    """Everything sealed is in the bucket and on the disk. In the next life the store takes no root, so nothing is
    claimed."""
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    base = opened.log.active_info().base_offset
    await settle(lambda: opened.tier.remote_end_offset == base)
    await life.kill()
    store = FaultyStore(house.memory, SeededRng(1))
    store.script(Operation.PUT_ROOT, Fault.BEFORE, times=10**6)
    life = await house.start(store=store)
    return life, await life.open(tier=tier)


async def start_on_a_new_disk(house: House, life: Life, tier: TierConfig) -> int:
    """The log start after the disk was lost, and that of what is read."""
    await life.kill()
    house.lose_disk()
    life = await house.start()
    opened = await life.open(tier=tier)
    start = opened.log.log_start_offset
    assert min(await read_everything(house, opened), default=start) >= start
    await life.kill()
    return start


@pytest.mark.parametrize("tier", [replace(TIER, copy_disable=True, retention_ms=5000), replace(OFF, retention_ms=5000)])
async def test_retention_before_the_claim_does_not_hide_records_that_a_lost_disk_brings_back(tier: TierConfig) -> None:
    """Regression: before the claim plain retention moved the log start on the disk alone, and deleted the segments. The
    root still named their objects, so after the loss of the disk the log began at 0 again."""
    house = House()
    life, opened = await copied_under_an_unknown_root(house, tier)
    await asyncio.sleep(60)
    start = opened.log.log_start_offset
    assert await start_on_a_new_disk(house, life, tier) >= start


async def test_records_deleted_before_the_claim_stay_deleted_on_a_new_disk() -> None:
    """Regression: the topic was no longer tiered, and DeleteRecords did not know yet that the root names objects. It
    answered when the start was on the disk alone."""
    house = House()
    life, opened = await copied_under_an_unknown_root(house, OFF)
    with pytest.raises(Retryable):
        await opened.tier.delete_records(7)
    start = opened.log.log_start_offset
    assert await start_on_a_new_disk(house, life, OFF) >= start


async def test_records_deleted_before_the_topic_was_tiered_stay_deleted_on_a_new_disk() -> None:
    """Regression: a copy named its object in a root with an older log start, while this broker could not move the
    root's start because it did not know the current leaders."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=OFF)
    opened.log.reconfigure(replace(LOG, tiered=False))
    await life.fill(60)
    await opened.tier.delete_records(7)
    assert (await house.manifest()).log_start_offset == 0, "the durable place of a log that is not tiered is the disk"
    opened.tier.partition_state._is_fresh = lambda: False
    opened.log.reconfigure(LOG)
    opened.tier.reconfigure(TIER)
    base = opened.log.active_info().base_offset
    await settle(lambda: opened.tier.remote_end_offset == base)
    assert await start_on_a_new_disk(house, life, TIER) == 7


class HeldRoot(FaultyStore):
    """While `holds`, a written root is stored, and the answer waits for `goes_on`."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, SeededRng(1))
        self.holds = lambda: False
        self.is_held, self.goes_on = asyncio.Event(), asyncio.Event()

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        etag = await super().put_root(key, data, if_match)
        if self.holds():
            self.is_held.set()
            await self.goes_on.wait()
        return etag


@pytest.mark.parametrize("by", ["retention", "DeleteRecords"])
async def test_records_deleted_while_a_copys_commit_is_unanswered_stay_deleted_on_a_new_disk(by: str) -> None:
    """Regression: tiering was switched off while the commit of the first copy waited for its answer. The known root
    named no object, so the log start moved on the disk alone. The stored root had the object, with the log start of
    before."""
    house = House()
    store = HeldRoot(house.memory)
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await settle(lambda: opened.tier.partition_state.claimed)
    store.holds = lambda: True
    await life.fill(60)
    await asyncio.wait_for(store.is_held.wait(), 30)
    assert (await house.manifest()).remote_end_offset > opened.tier.remote_end_offset == 0
    opened.log.reconfigure(replace(LOG, tiered=False))
    opened.tier.reconfigure(OFF if by == "DeleteRecords" else replace(OFF, retention_bytes=3000))
    for operation in (Operation.GET, Operation.GET_IF_CHANGED):
        store.script(operation, Fault.BEFORE, times=10**6)
    work = opened.tier.delete_records(7) if by == "DeleteRecords" else asyncio.sleep(300)
    deleting = asyncio.ensure_future(work)
    await asyncio.wait([deleting])
    assert opened.tier.remote_end_offset == 0, "the broker does not know that its commit was stored"
    assert opened.tier.partition_state.is_in_bucket, "compaction must keep the tombstones of records that may be copied"
    start = opened.log.log_start_offset
    assert await start_on_a_new_disk(house, life, OFF) >= start


async def test_records_deleted_while_the_topic_is_tiered_and_copied_stay_deleted_on_a_new_disk() -> None:
    """Regression: DeleteRecords of a topic that was not tiered waited for its checkpoint. Meanwhile the topic was
    tiered and copied, and the root named the deleted records."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=OFF)
    opened.log.reconfigure(replace(LOG, tiered=False))
    await life.fill(60)
    goes_on, note = asyncio.Event(), life.logs._note_start
    is_held = asyncio.Event()

    async def slowly(of: OpenLog) -> None:
        is_held.set()
        await goes_on.wait()
        await note(of)

    life.logs._note_start = slowly  # type: ignore[method-assign]
    deleting = asyncio.ensure_future(opened.tier.delete_records(7))
    await asyncio.wait_for(is_held.wait(), 30)
    opened.log.reconfigure(LOG)
    opened.tier.reconfigure(TIER)
    base = opened.log.active_info().base_offset
    await settle(lambda: opened.tier.remote_end_offset == base)
    opened.tier.partition_state._is_fresh = lambda: False  # the root's start does not move soon
    goes_on.set()
    await asyncio.wait([deleting])
    start = opened.log.log_start_offset
    assert await start_on_a_new_disk(house, life, TIER) >= start


async def test_no_object_counts_as_verified_while_the_commit_that_withdraws_it_is_unanswered() -> None:
    """Regression: only a commit that had ended could make an object doubtful. A new replica began above objects that
    the stored root no longer named."""
    house = House()
    store = HeldRoot(house.memory)
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await life.fill(60)
    await opened.tier.seal_and_copy()
    state = opened.tier.partition_state
    assert state.sure_end_offset == 60
    store.holds = lambda: state.manifests.unanswered.withdraws
    switch_off(opened)
    await asyncio.wait_for(store.is_held.wait(), 30)
    assert (await house.manifest()).live.segments == 0
    opened.log.reconfigure(LOG)
    opened.tier.reconfigure(TIER)
    state.is_alone = False
    sealing = asyncio.ensure_future(opened.tier.seal_and_copy())
    await asyncio.wait([sealing], timeout=5)
    assert state.sure_end_offset == 0
    sealing.cancel()
    await life.kill()


async def test_a_copy_that_waits_for_its_turn_while_tiering_is_switched_off_is_not_named() -> None:
    """Regression: a copy looked before it waited for an earlier commit. Tiering was switched off meanwhile, and the
    start moved on the disk alone."""
    house = House()
    store = HeldRoot(house.memory)
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await settle(lambda: opened.tier.partition_state.claimed)
    store.holds = lambda: True
    opened.tier.reserve_soon(5000)
    await asyncio.wait_for(store.is_held.wait(), 30)
    await life.fill(60)
    await settle(lambda: house.objects() != [])
    await asyncio.sleep(1)
    switch_off(opened)
    await opened.tier.delete_records(7)
    opened.tier.partition_state._is_fresh = lambda: False  # only the copy moves the root's start
    store.goes_on.set()
    await asyncio.sleep(60)
    assert opened.tier.remote_end_offset == 0 == (await house.manifest()).remote_end_offset
    await life.kill()


@pytest.mark.parametrize("by", ["retention", "DeleteRecords"])
async def test_a_start_that_moves_while_a_copy_may_be_named_stays_on_a_new_disk(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Regression: tiering was switched off while the commit of the first object was under way. The root did not name
    the object yet, so the start moved on the disk alone; the commit, whose answer was lost, then named an object with
    the deleted records below the old start."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    is_uploaded = False

    def reach(point: str) -> None:
        nonlocal is_uploaded
        if point == "copy.uploaded" and not is_uploaded:
            is_uploaded = True
            store.script(Operation.PUT_ROOT, Fault.LOST)
            store.script(Operation.PUT_ROOT, Fault.BEFORE, times=10**6)
            for read in (Operation.GET, Operation.GET_IF_CHANGED):
                store.script(read, Fault.BEFORE, times=10**6)

    monkeypatch.setattr("tiering.copying.copier.reach", reach)
    await life.fill(60)
    await settle(lambda: bool(store.hits[Fault.LOST]))
    assert opened.tier.remote_end_offset == 0 < (await house.manifest()).remote_end_offset
    assert opened.tier.partition_state.is_in_bucket
    opened.log.reconfigure(replace(LOG, tiered=False))
    if by == "retention":
        opened.tier.reconfigure(replace(OFF, retention_bytes=2000))
        await asyncio.sleep(60)
    else:
        opened.tier.reconfigure(OFF)
        with suppress(Retryable):
            await opened.tier.delete_records(7)
    start = opened.log.log_start_offset
    assert await start_on_a_new_disk(house, life, OFF) >= start


@pytest.mark.parametrize("is_on_again", [False, True])
async def test_a_copy_that_began_before_the_switch_is_not_named_after_it(
    monkeypatch: pytest.MonkeyPatch, is_on_again: bool
) -> None:
    """Regression: while no object was named, compaction of the log that is no longer tiered could remove a tombstone.
    The object that was under way, with the record that the tombstone deletes, was named afterwards."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    sent: list[str] = []

    def reach(point: str) -> None:
        if point == "copy.uploaded" and not sent:
            sent.extend(house.objects())
            opened.tier.reconfigure(OFF)
            if is_on_again:
                opened.tier.reconfigure(TIER)

    monkeypatch.setattr("tiering.copying.copier.reach", reach)
    await life.fill(60)
    await settle(lambda: bool(sent))
    if is_on_again:
        base = opened.log.active_info().base_offset
        await settle(lambda: opened.tier.remote_end_offset == base)
    else:
        await asyncio.sleep(60)
        assert not opened.tier.partition_state.blocks and not life.service.copy_counters.copied_segments
    manifest = await house.manifest()
    assert (manifest.remote_end_offset > 0) is is_on_again
    assert not {str(each.key(TOPIC_ID, 0)) for each in manifest.tail} & set(sent)
    await life.kill()


async def test_a_kill_soon_after_the_start_on_a_new_disk_costs_nothing_that_was_copied() -> None:
    """Regression: tiering was switched off, and the disk was lost. The first start on the new disk ended before the
    root had the switch. The second one found a reservation, so it took its local start, the bucket's end, for the log
    start. All records in the bucket were lost."""
    house = House()
    life, opened = await half_local(house)
    end = opened.tier.remote_end_offset
    await life.kill()
    house.lose_disk()
    life = await house.start()
    state = (await life.open(tier=OFF)).tier.partition_state
    await settle(lambda: state.is_noted)
    await life.kill()
    life = await house.start()
    opened = await life.open(tier=OFF)
    await asyncio.sleep(3 * GRACE_S)
    assert (await house.manifest()).log_start_offset == 0
    assert set(range(end)) <= set(await read_everything(house, opened))
    await life.kill()
