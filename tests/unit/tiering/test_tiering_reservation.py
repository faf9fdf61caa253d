"""Reservations at work: raised in the background at half, believed only when root and disk both have them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from coldstore.stores.operations import Operation
from hotstore.errors import ReservationExhausted
from seams.rng import SeededRng
from tests.support.store.faulty_store import Fault, FaultPlan, FaultyStore
from tests.support.tier.tier_kit import BLOCK, LIMITS, LOG, TIER, TOPIC_ID, House, settle
from tiering.opening.reservation import RESERVATION_FILE, read_reservation

QUIET = replace(TIER, enabled=False)
BIG = replace(LOG, segment_bytes=1 << 30)


async def test_it_is_raised_at_half_and_appends_never_wait() -> None:
    """A steady writer crosses many blocks and meets no reserved end; the copy on disk always covers the log."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=QUIET, log=BIG)
    for _ in range(50):
        for _ in range(10):
            life.append(10)
        await asyncio.sleep(0.05)
    assert opened.log.log_end_offset == 5 * BLOCK
    copy = read_reservation(house.disk.open_dir(opened.log.path), TOPIC_ID, 0)
    root = (await house.manifest()).reserved_end_offset
    assert copy is not None and opened.log.log_end_offset < copy.reserved_end == opened.log.reserved_end == root
    await life.power_cut()
    life = await house.start(store=FaultyStore(house.memory, SeededRng(1)))
    opened = await life.open(tier=QUIET, log=BIG)
    assert opened.log.reserved_end == root, "the local copy was durable before it was believed"
    await life.kill()


async def test_the_end_is_not_believed_before_the_local_copy_is_durable() -> None:
    """The root was raised, the disk refused the copy: appends stop at the old end (crash point reserve.committed)."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=QUIET, log=BIG)
    await settle(lambda: opened.tier.partition_state.claimed)
    house.disk.inject("sync", 28, suffix=f"{RESERVATION_FILE}.tmp", times=10**6)
    life.append(BLOCK - 100)
    await asyncio.sleep(5)
    assert (await house.manifest()).reserved_end_offset > BLOCK
    assert opened.log.reserved_end == BLOCK
    with pytest.raises(ReservationExhausted):
        life.append(101)
    house.disk.heal()
    await settle(lambda: opened.log.reserved_end > BLOCK)
    life.append(101)
    await life.kill()


async def test_a_log_that_uses_up_its_block_while_the_store_is_away_says_so() -> None:
    """G12: it stops with `blocked_by=reservation` and goes on by itself."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=QUIET, log=BIG)
    await settle(lambda: opened.tier.partition_state.claimed)
    store.down = True
    life.append(BLOCK)
    await settle(lambda: opened.tier.status().blocked_by == "reservation", within_s=120)
    with pytest.raises(ReservationExhausted):
        life.append()
    store.down = False
    await settle(lambda: opened.log.reserved_end > BLOCK)
    assert opened.tier.status().blocked_by is None
    assert life.append() == BLOCK
    await life.kill()


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.OWN_412, Fault.LATE, Fault.CONFLICT, Fault.BEFORE])
async def test_an_answer_that_lies_about_a_reservation_gives_no_offset_twice(fault: Fault) -> None:
    """Each way a CAS can end: the root's reserved end is never below what the log may give."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(2), FaultPlan(late_s=(0.5, 3.0)))
    life = await house.start(store=store)
    opened = await life.open(new=True, tier=QUIET, log=BIG)
    await settle(lambda: opened.tier.partition_state.claimed)
    store.script(Operation.PUT_ROOT, fault, times=2)
    for _ in range(100):
        life.append(8)
        await asyncio.sleep(0.1)
        assert (await house.manifest()).reserved_end_offset >= opened.log.reserved_end
    assert opened.log.reserved_end > BLOCK and store.hits[fault] >= 1
    await store.close()
    await life.kill()


async def test_blocks_grow_with_the_appends_of_the_last_hour() -> None:
    """A busy log asks the bucket rarely."""
    house = House()
    life = await house.start(limits=replace(LIMITS, interval_ms_max=60_000))
    opened = await life.open(new=True, tier=QUIET, log=BIG)
    for _ in range(60):
        life.append(400)
        opened.tier.written_to()
        await asyncio.sleep(30)
    assert opened.log.reserved_end - opened.log.log_end_offset > 8 * BLOCK
    await life.kill()


async def test_a_clean_stop_keeps_the_reservation_of_a_log_that_is_not_all_in_the_bucket() -> None:
    """Giving it back would let a replacement give those offsets again."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    await life.fill(33)
    await life.stop(seal=False)
    assert (await house.manifest()).reserved_end_offset == BLOCK
    house.lose_disk()
    life = await house.start()
    opened = await life.open()
    assert opened.log.log_end_offset == BLOCK
    await life.kill()


async def test_a_stop_with_the_store_down_costs_one_deadline_not_one_a_partition() -> None:
    """Reservations that cannot be given back are kept."""
    house = House()
    store = FaultyStore(house.memory, SeededRng(1))
    life = await house.start(store=store)
    for partition in range(5):
        await life.open(new=True, partition=partition)
    store.down = True
    started = asyncio.get_running_loop().time()
    await life.stop()
    assert asyncio.get_running_loop().time() - started < 2 * LIMITS.store_timeout_s
    store.down = False
    life = await house.start()
    opened = await life.open()
    life.append()
    assert opened.log.log_end_offset == 1
    await life.kill()


async def test_one_batch_may_need_more_than_a_block() -> None:
    """A batch with more records than a block has offsets was refused for ever: the reservation never grew past it."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True, tier=QUIET, log=BIG)
    await settle(lambda: opened.tier.partition_state.claimed)
    with pytest.raises(ReservationExhausted) as short:
        life.append(3 * BLOCK)
    opened.tier.reserve_soon(short.value.end_offset)
    await settle(lambda: opened.log.reserved_end >= 3 * BLOCK)
    assert life.append(3 * BLOCK) == 0
    assert (await house.manifest()).reserved_end_offset >= 3 * BLOCK
    await life.kill()
