"""What opening and closing costs each of thousands of partitions: writes to the bucket, syncs of the disk."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from coldstore.object_store import ObjectStore
from coldstore.stores.metered import MeteredStore
from coldstore.stores.operations import Operation
from tests.support.fast_loop import FastClock
from tests.support.tier.tier_kit import BLOCK, TIER, House, Life
from tiering.opening.deferred_start import DEFER_S_MAX

PARTITIONS = 3


async def opened(house: House, store: ObjectStore, *, new: bool = False) -> Life:
    life = await house.start(store=store)
    for partition in range(PARTITIONS):
        await life.open(new=new, partition=partition)
    return life


def root_writes(store: MeteredStore) -> int:
    return store.meters[Operation.PUT_ROOT].calls


async def test_after_a_clean_stop_claim_and_reservation_are_one_write() -> None:
    """Both are due when a reservation was given back; together they halve what a start asks of the bucket."""
    house = House()
    await (await opened(house, house.memory, new=True)).stop()
    store = MeteredStore(house.memory, FastClock())
    life = await opened(house, store)
    assert root_writes(store) == PARTITIONS
    for partition in range(PARTITIONS):
        manifest = await house.manifest(partition)
        assert manifest.leader_epoch == life.epoch
        assert manifest.reserved_end_offset == life.opened[partition].log.reserved_end == BLOCK
    await life.stop()


async def test_tiering_waits_until_all_logs_are_open() -> None:
    """Claims of the first partitions would only slow down the opening of the last: nobody is served before."""
    house = House()
    await (await opened(house, house.memory, new=True)).kill()
    store = MeteredStore(house.memory, FastClock())
    life = await house.start(store=store)
    with life.service.deferring_starts(is_start=True):
        for partition in range(PARTITIONS):
            await life.open(partition=partition)
            await asyncio.sleep(60)
        assert root_writes(store) == 0
    await asyncio.sleep(60)
    assert root_writes(store) == PARTITIONS
    late = await life.open(new=True, partition=PARTITIONS)
    await asyncio.sleep(60)
    assert late.tier.partition_state.claimed, "one that comes later starts by itself"
    await life.stop()


async def test_tiers_that_are_opened_while_others_are_begin_when_all_are() -> None:
    """A restore elects a thousand leaders at once on brokers that serve: copies took half of what opening needs. A
    config that comes meanwhile, or what was declared a gap, wakes no job, either."""
    house = House()
    first = await opened(house, house.memory, new=True)
    for partition in range(PARTITIONS):
        await first.fill(30, partition=partition)
    await asyncio.sleep(60)
    await first.lose_disk()
    life = await house.start()
    held = [len(house.objects(partition=partition)) for partition in range(PARTITIONS)]
    with life.service.deferring_starts():
        for partition in range(PARTITIONS):
            with life.service.deferring_starts():
                tier = (await life.open(partition=partition)).tier
            assert tier.lost is not None
            tier.reconfigure(replace(TIER, retention_ms=86_400_000))
            tier.rolled()
            tier.expire_soon()
            await asyncio.sleep(DEFER_S_MAX / PARTITIONS / 2)
        assert held == [len(house.objects(partition=partition)) for partition in range(PARTITIONS)]
    await asyncio.sleep(5)
    assert all(len(house.objects(partition=partition)) > held[partition] for partition in range(PARTITIONS))
    await life.stop()


async def test_one_that_does_not_open_keeps_others_from_their_work_for_a_while_only() -> None:
    """R23: a new leader claims within a minute, whatever happens to its neighbours."""
    house = House()
    await (await opened(house, house.memory, new=True)).kill()
    life = await house.start()
    with life.service.deferring_starts():
        tier = (await life.open()).tier
        await asyncio.sleep(DEFER_S_MAX - 1)
        assert not tier.partition_state.claimed
        await asyncio.sleep(2)
        assert tier.partition_state.claimed
    await life.stop()


async def test_one_that_was_detached_while_it_was_held_back_does_not_begin() -> None:
    """Its place belongs to another tier by then."""
    house = House()
    await (await opened(house, house.memory, new=True)).kill()
    store = MeteredStore(house.memory, FastClock())
    life = await house.start(store=store)
    with life.service.deferring_starts():
        tier = (await life.open()).tier
        await life.service.detach(tier, give_back=False)
    await asyncio.sleep(60)
    assert root_writes(store) == 0 and not tier.partition_state.claimed
    await life.kill()


async def test_a_log_that_nobody_wrote_to_is_closed_without_syncs() -> None:
    """Its files beside the segment are there and say the same: only their names are made sure of."""
    house = House()
    first = await opened(house, house.memory, new=True)
    await first.fill(3)
    await first.stop()
    life = await opened(house, house.memory)
    logs = [opened.log for opened in life.opened.values()]
    house.disk.hits.clear()
    for log in logs:
        log.close(True)
    assert house.disk.hits["sync"] == house.disk.hits["rename"] == 0
    assert house.disk.hits["sync_dir"] == PARTITIONS
    await life.kill()
