"""Deleted topics: what a wide deletion may take of the bucket, and who keeps at it until nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from coldstore.stores.operations import Operation
from tests.support.brokers.broker_kit import Place
from tests.support.store.faulty_store import Fault, FaultPlan
from tiering.service import TierService


async def test_a_wide_deletion_takes_a_few_turns_at_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty deleted topics listed and deleted their objects all at once; copies and reads got what was left."""
    purge_topic, at_once, most = TierService.purge_topic, 0, 0

    async def counted(self: TierService, topic_id: UUID, partitions: int, may_delete: Callable[[], bool]) -> bool:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await purge_topic(self, topic_id, partitions, may_delete)
        finally:
            at_once -= 1

    monkeypatch.setattr(TierService, "purge_topic", counted)
    place = Place()
    life = await place.start()
    names = [f"t{at}" for at in range(40)]
    await asyncio.gather(*map(life.create, names))
    place.store.plan = FaultPlan(latency_s=(0.1, 0.2))
    await asyncio.gather(*map(life.context.controller.delete_topic, names))
    async with asyncio.timeout(300.0):
        while life.context.metadata.image.deleted:
            await asyncio.sleep(0.1)
    assert 1 < most <= 4
    assert not any(key.startswith("topics/") for key in place.memory.objects)
    await life.stop()


async def test_a_purge_that_was_refused_is_tried_again_also_by_the_next_start() -> None:
    """A deleted topic is remembered in the image until its objects are gone, whoever is there to delete them."""
    place = Place()
    life = await place.start()
    await life.create("log")
    place.store.plan = FaultPlan({(Operation.DELETE, Fault.BEFORE): 1.0})
    await life.context.controller.delete_topic("log")
    await asyncio.sleep(60.0)
    assert [topic.name for topic in life.context.metadata.image.deleted.values()] == ["log"]
    assert any(key.startswith("topics/") for key in place.memory.objects)
    assert any("purge log" in told for told in life.broker.health.failures)
    await life.crash()
    place.store.calm()
    life = await place.start()
    async with asyncio.timeout(60.0):
        while life.context.metadata.image.deleted:
            await asyncio.sleep(0.1)
    assert not any(key.startswith("topics/") for key in place.memory.objects)
    await life.stop()
