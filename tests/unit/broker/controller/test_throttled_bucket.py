"""A bucket that takes one write of a key a second, and answers 429 to the next, as Cloudflare R2 and GCS do (R13)."""

from __future__ import annotations

import asyncio
from collections import Counter

from coldstore.keys import cluster_key
from coldstore.object_store import StoreThrottled
from coldstore.roots.root import THROTTLED_S
from seams.rng import SeededRng
from tests.support.brokers.house import House
from tests.support.store.faulty_store import FaultyStore


class OneWriteASecond(FaultyStore):
    """Of each root; `refused` counts what came too early, by key."""

    def __init__(self, house: House) -> None:
        super().__init__(house.place.memory, SeededRng("slow"))
        self._now_s = asyncio.get_running_loop().time
        self._written_s: dict[str, float] = {}
        self.refused: Counter[str] = Counter()

    async def put_root(self, key: str, data: bytes, if_match: str | None) -> str:
        now_s = self._now_s()
        if now_s - self._written_s.get(key, -1.0) < 1.0:
            self.refused[key] += 1
            raise StoreThrottled(f"put_root {key}: 429 TooManyRequests")
        self._written_s[key] = now_s
        return await super().put_root(key, data, if_match)


async def test_cluster_d61_a_store_that_answers_429_is_asked_less_often_and_takes_every_commit() -> None:
    """One refusal is enough to know; afterwards changes that wait together are one commit, and none is refused."""
    it = House()
    it.stores[1] = store = OneWriteASecond(it)
    await it.start(1)
    await asyncio.sleep(5)
    controller = it.lives[1].context.controller
    for number in range(3):
        await controller.create_topic(f"before-{number}", 1, {})
    assert store.refused[cluster_key()] == 1
    began_s = it.place.loop.time()
    for number in range(5):
        await asyncio.gather(*[controller.create_topic(f"{number}-{i}", 1, {}) for i in range(20)])
    took_s = it.place.loop.time() - began_s
    assert store.refused[cluster_key()] == 1
    assert 5 * THROTTLED_S - 0.5 < took_s < 2 * 5 * THROTTLED_S
    assert len(it.lives[1].context.metadata.image.topics) == 103
    await it.kill(1)
