"""Commits over stops, kills and new disks, with rewrites of many batches: what was acknowledged is there.

The simulation has too few groups for a rewrite of several batches, so here each batch has two records. A disk is
replaced only after a seal, which leaves nothing on it alone."""

from __future__ import annotations

import asyncio
import random

import pytest

from broker.error_codes import ErrorCode as E
from broker.internal_topics import led_shard, rewriting
from tests.support.brokers.broker_kit import Life, Place
from tests.unit.broker.internal_topics.test_led_partition import commit, committed

ACTS = ["commit"] * 6 + ["delete", "wait", "wait", "wait", "seal", "stop", "kill", "kill", "replace", "replace"]
LOOK_S = 0.5
AROUND_A_LOOK_S = (0.3, 0.5, 0.501, 0.503, 0.505, 0.51, 0.52, 0.55, 0.6)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        settings = "offsets.topic.num.partitions=1", "offsets.topic.segment.bytes=20000"
        self.place = Place(*settings, "thermocline.offsets.snapshot.interval.ms=2000", seed=seed)
        self.life: Life
        self.model: dict[str, int | None] = {}
        self.number = 0

    async def begin(self) -> None:
        self.life = await self.place.start()
        await self.life.create("log")
        assert await self.life.context.groups.find("g") is E.NONE

    async def act(self, act: str) -> None:
        group = f"g{self.rng.randrange(16)}"
        match act:
            case "commit":
                for _ in range(self.rng.randint(1, 30)):
                    group, self.number = f"g{self.rng.randrange(16)}", self.number + 1
                    assert await commit(self.life, self.number, group=group) is E.NONE
                    self.model[group] = self.number
            case "delete":
                if (await self.life.context.groups.admin.forget(group, [("log", 0)]))[0] is E.NONE:
                    self.model[group] = None
            case "wait":
                await asyncio.sleep(self.rng.choice([0.001, 0.003, 0.01, 0.03, 0.4, 0.52, 3, 30]))
            case "seal":
                await self.life.broker.views.seal(None)
            case _:
                await self.restart(act)

    async def restart(self, act: str) -> None:
        if act == "replace":
            await self.life.broker.views.seal(None)
        if act == "stop":
            await self.life.stop()
        else:
            await self.life.crash()
            self.place.kill()
        if act == "replace":
            self.place.lose_disk()
        self.life = await self.place.start()
        await self.check()
        await asyncio.sleep(self.rng.choice(AROUND_A_LOOK_S))

    async def check(self) -> None:
        await self.life.context.groups.log.wait_loaded()
        assert {group: await committed(self.life, group) for group in self.model} == self.model


@pytest.mark.parametrize("seed", range(20))
async def test_no_acknowledged_commit_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "_RECORDS_PER_BATCH", 2)
    monkeypatch.setattr(rewriting, "_LOOK_S", LOOK_S)
    monkeypatch.setattr(led_shard, "GROWTH_BYTES", 1500)
    world = World(seed)
    await world.begin()
    for _ in range(25):
        await world.act(world.rng.choice(ACTS))
    await world.check()
    await world.life.crash()
