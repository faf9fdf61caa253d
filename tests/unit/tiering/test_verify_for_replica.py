"""Replicas that wait while their leader verifies the bucket's objects: never for long, whatever the store does."""

from __future__ import annotations

import asyncio
from typing import Any

from coldstore.object_store import ObjectInfo
from tests.support.store.memory_store import MemoryStore
from tests.support.tier.tier_kit import House, settle


class SlowHead:
    """A store that takes 8 s to answer a HEAD of one object, and answers damage."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.slow = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def head(self, key: str) -> ObjectInfo:
        if key == self.slow:
            await asyncio.sleep(8.0)
            return ObjectInfo(key, 1, "")
        return await self._inner.head(key)


async def test_a_replica_does_not_wait_for_an_object_that_stays_unverified() -> None:
    """Segments are copied faster than the damaged object is looked at: each remote end was a new reason to wait, so a
    lagging replica got no record."""
    house = House()
    life = await house.start()
    opened = await life.open(new=True)
    await life.fill(60)
    await settle(lambda: opened.tier.remote_end_offset == opened.log.active_info().base_offset)
    await life.kill()
    store = SlowHead(house.memory)
    store.slow = house.objects()[0]
    life = await house.start(store=store)  # type: ignore[arg-type]
    opened = await life.open()
    await settle(lambda: opened.tier.partition_state.claimed)
    waits = longest = asked = 0
    for _ in range(1_200):
        life.append()
        if opened.tier.is_verifying():
            waits, asked = waits + 1, asked + 1
        else:
            waits = 0
        longest = max(longest, waits)
        await asyncio.sleep(0.1)
    assert opened.tier.remote_end_offset > 500, "copying went on"
    assert longest <= 100, f"a replica waited for {longest / 10} s, longer than a store time-out"
    assert asked < 400, f"a replica waited for {asked / 12:.0f} % of the time"
    await life.kill()
