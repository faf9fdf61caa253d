"""How often a partition is collected: a listing of everything it has is not for each election."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.store.memory_store import upload_of
from tests.support.tier.tier_kit import TOPIC_ID, House
from tiering.expiry.collector import AGAIN_S, Collector


@pytest.mark.virtual_s(14 * 24 * 3600)
async def test_a_partition_is_collected_again_after_six_hours() -> None:
    """Another one at once; what is remembered of old collections goes."""
    life = await House().start()
    await life.open(new=True)
    await life.open(new=True, partition=1)
    collector = Collector(life.house.memory, life.world, 10.0)
    assert collector.wait_s(TOPIC_ID, 0) == 0
    await collector.collect(TOPIC_ID, 0, lambda epoch, end_offset: True)
    assert AGAIN_S - 1 < collector.wait_s(TOPIC_ID, 0) <= AGAIN_S
    assert collector.wait_s(TOPIC_ID, 1) == 0
    await asyncio.sleep(AGAIN_S)
    assert collector.wait_s(TOPIC_ID, 0) == 0
    await collector.collect(TOPIC_ID, 1, lambda epoch, end_offset: True)
    assert len(collector._collected_s) == 1
    await life.kill()


@pytest.mark.virtual_s(14 * 24 * 3600)
async def test_a_new_partition_is_not_listed_before_it_has_an_earlier_epoch() -> None:
    """Objects of earlier epochs are all that may go: thousands of new partitions had nothing but a listing each."""
    house = House()
    life = await house.start()
    life.epoch = 0
    await life.open(new=True)
    listed = house.memory.list
    lists: list[str] = []

    def counting(prefix: str):  # type: ignore[no-untyped-def]
        lists.append(prefix)
        return listed(prefix)

    house.memory.list = counting  # type: ignore[method-assign]
    await asyncio.sleep(3600)
    assert life.opened[0].tier.partition_state.claimed and lists == []
    await life.detach()
    life.epoch += 1
    await life.open()
    await asyncio.sleep(60)
    assert len(lists) == 1
    await life.kill()


@pytest.mark.virtual_s(14 * 24 * 3600)
async def test_a_partition_that_is_claimed_again_waits_for_its_turn() -> None:
    """Led again in the same process: nothing is listed until the six hours are over, then it is."""
    house = House()
    life = await house.start()
    await life.open(new=True)
    lists = 0
    whole_list = house.memory.list

    def counting(prefix: str):  # type: ignore[no-untyped-def]
        nonlocal lists
        lists += 1
        return whole_list(prefix)

    house.memory.list = counting  # type: ignore[method-assign]
    await asyncio.sleep(60)
    assert lists == 1
    await life.detach()
    life.epoch += 1
    await life.open()
    await asyncio.sleep(3600)
    assert lists == 1
    await asyncio.sleep(AGAIN_S)
    assert lists == 2
    await life.kill()


@pytest.mark.virtual_s(14 * 24 * 3600)
async def test_a_rebuilt_cluster_lists_nothing_before_an_operator_says_that_all_is_there() -> None:
    """R29: it would delete nothing, and look again at once."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    state = opened.tier.partition_state
    state.is_complete = lambda: False
    lists = 0
    whole_list = house.memory.list

    def counting(prefix: str):  # type: ignore[no-untyped-def]
        nonlocal lists
        lists += 1
        return whole_list(prefix)

    house.memory.list = counting  # type: ignore[method-assign]
    left = f"topics/{TOPIC_ID}/0/snapshots/{0:020d}-0-{TOPIC_ID}.log"
    await house.memory.put_segment(left, upload_of(b"left"))
    await asyncio.sleep(AGAIN_S)
    assert lists == 0 and left in house.memory.objects
    state.is_complete = lambda: True
    await asyncio.sleep(AGAIN_S)
    assert lists == 1 and left not in house.memory.objects
    await life.kill()
