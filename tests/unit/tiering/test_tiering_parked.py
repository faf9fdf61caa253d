"""`tier seal` gives the reservation of a log back that is wholly in the bucket: a disk that is lost then costs nothing,
and no offset is ever given twice, whatever happens to the release (ADR 13)."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from coldstore.stores.operations import Operation
from hotstore.errors import ReservationExhausted
from seams.rng import SeededRng
from tests.support.store.faulty_store import Fault, FaultyStore
from tests.support.tier.tier_kit import BLOCK, LIMITS, TIER, House, Life, Opened, read_everything, settle

BROAD = replace(LIMITS, reservation_offsets=10_000)


async def append_again(life: Life, opened: Opened, partition: int = 0) -> int:
    """As a producer's batch comes in: refused for a moment, while the reservation is raised."""
    with pytest.raises(ReservationExhausted):
        life.append(partition=partition)
    opened.tier.reserve_soon()
    await settle(lambda: opened.log.reserved_end > opened.log.log_end_offset)
    return life.append(partition=partition)


async def test_a_disk_lost_after_a_seal_costs_no_record_no_gap_and_no_offset() -> None:
    """Also of a partition that nobody ever wrote to. What comes next goes on at the log's end."""
    house = House()
    life = await house.start()
    for partition in range(3):
        await life.open(new=True, partition=partition)
    await life.fill(60)
    await life.fill(7, partition=1)
    await life.service.seal_all(None)
    await asyncio.sleep(20)  # nothing that runs now and then raises it again
    for partition, end in ((0, 60), (1, 7), (2, 0)):
        assert (await house.manifest(partition)).reserved_end_offset == end
    await life.lose_disk()

    life = await house.start()
    for partition, end in ((0, 60), (1, 7), (2, 0)):
        opened = await life.open(partition=partition)
        assert opened.lost is None and opened.log.log_end_offset == end
        assert opened.tier.status().gaps == ()
        assert sorted(await read_everything(house, opened, partition)) == list(range(end))
        await settle(lambda log=opened.log: log.reserved_end > log.log_end_offset)  # type: ignore[misc]
        assert life.append(partition=partition) == end
    await life.stop()


async def test_what_is_appended_after_the_seal_is_declared_when_it_is_lost() -> None:
    """The first append raises the reservation in the root before it gets its offset."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    await life.service.seal_all(None)
    assert await append_again(life, opened) == 60
    await opened.flusher.flush()
    reserved = (await house.manifest()).reserved_end_offset
    assert reserved >= 60 + BLOCK
    await life.lose_disk()
    life = await house.start()
    opened = await life.open()
    assert opened.lost == (60, reserved)
    assert life.append() >= reserved
    await life.kill()


async def test_a_log_that_is_written_to_meanwhile_keeps_its_reservation() -> None:
    """Appends during the seal never meet an end."""
    house = House()
    life = await house.start(limits=BROAD)
    await life.open(new=True)
    await life.fill(60)
    sealing = asyncio.ensure_future(life.service.seal_all(None))
    while not sealing.done():
        life.append()
        await asyncio.sleep(0)
    await sealing
    life.append()
    assert (await house.manifest()).reserved_end_offset >= 10_000
    await life.kill()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LOST, Fault.LATE])
async def test_a_release_of_unknown_outcome_never_lowers_what_was_given(fault: Fault) -> None:
    """It was not made, it was made and the answer is lost, or it lands much later: whoever appends next raises the
    root above it for good, also where the root, as it was last seen, is high enough (its blocks were larger once)."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(limits=BROAD)
    await life.open(new=True)
    await life.kill()
    life = await house.start(store=store)
    opened = await life.open()
    await life.fill(60)
    opened.log.roll()
    opened.tier.rolled()
    await settle(lambda: opened.tier.remote_end_offset == 60)
    store.script(Operation.PUT_ROOT, fault, times=10**6)
    for operation in (Operation.GET, Operation.GET_IF_CHANGED):
        store.script(operation, Fault.BEFORE, times=10**6)
    sealing = asyncio.ensure_future(life.service.seal_all(None))
    await settle(lambda: opened.log.reserved_end == 60)
    await asyncio.sleep(1)
    sealing.cancel()
    await asyncio.gather(sealing, return_exceptions=True)
    store.calm()
    assert await append_again(life, opened) == 60
    await asyncio.sleep(120)  # whatever is late arrives
    assert (await house.manifest()).reserved_end_offset > 60
    await opened.flusher.flush()
    await life.lose_disk()
    life = await house.start()
    opened = await life.open()
    assert opened.lost is not None and opened.lost[0] == 60
    assert life.append() > 60
    await life.kill()


@pytest.mark.parametrize("is_released", [True, False], ids=["after the root", "before the root"])
async def test_a_kill_around_the_release_leaves_a_log_that_serves(is_released: bool) -> None:
    """The local copy is lowered first, and is believed: no offset below the root's end is given without asking it."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True)
    await life.fill(60)
    opened.log.roll()
    opened.tier.rolled()
    await settle(lambda: opened.tier.remote_end_offset == 60)
    if not is_released:
        store.script(Operation.PUT_ROOT, Fault.BEFORE, times=10**6)
    sealing = asyncio.ensure_future(life.service.seal_all(None))
    await settle(lambda: opened.log.reserved_end == 60)
    await asyncio.sleep(0.5)
    sealing.cancel()
    await asyncio.gather(sealing, return_exceptions=True)
    await life.kill()
    assert ((await house.manifest()).reserved_end_offset == 60) is is_released
    store.calm()
    life = await house.start()
    opened = await life.open()
    assert opened.lost is None
    await settle(lambda: opened.log.reserved_end > 60)
    assert life.append() == 60
    assert (await house.manifest()).reserved_end_offset > 60
    await life.kill()


async def test_appends_wait_for_the_store_after_a_seal_in_an_outage() -> None:
    """The price (ADR 13): a log that gave its offsets back takes no appends until the store answers; others go on."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    sealed, other = await life.open(new=True), await life.open(new=True, partition=1, tier=TIER)
    await life.fill(10)
    await life.fill(10, partition=1)
    await sealed.tier.seal_and_copy()
    await sealed.tier.park()
    for operation in Operation:
        store.script(operation, Fault.BEFORE, times=10**6)
    with pytest.raises(ReservationExhausted):
        life.append()
    sealed.tier.reserve_soon()
    await settle(lambda: sealed.tier.status().blocked_by == "reservation")
    assert life.append(partition=1) == 10 and other.log.reserved_end >= BLOCK
    store.calm()
    await settle(lambda: sealed.log.reserved_end > 10)
    assert life.append() == 10
    await life.kill()


async def test_nothing_is_given_back_when_others_are_assigned_the_log_while_that_waits() -> None:
    """It asked who else is there before it waited for its turn, and for the claim (D29)."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(10)
    await opened.tier.seal_and_copy()
    before, partition = opened.log.reserved_end, opened.tier.partition_state
    async with partition._reserving:
        giving = asyncio.ensure_future(opened.tier.partition_state.give_back())
        await asyncio.sleep(0)
        opened.tier.partition_state.is_alone = False
    assert not await giving
    assert opened.log.reserved_end == before == (await house.manifest()).reserved_end_offset
    await life.kill()
