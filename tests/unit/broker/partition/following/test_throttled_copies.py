"""Throttled replicas of three whole brokers in virtual time (KIP-73): at their rate, and nobody falls out by it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from broker.config.api.alterations import Alteration, AlterOperation, altered_overrides
from broker.config.topic.changes import altered_configs
from tests.support.brokers.house import House, house
from tests.support.waiting import until

RATE = "follower.replication.throttled.rate"
REPLICAS = "follower.replication.throttled.replicas"
PIECE = 50_000
LOCAL = "remote.log.storage.system.enable=false"  # else the bucket has it, and only what is hot is copied


async def set_rate(it: House, rate: int | None) -> None:
    """Of all brokers; None: taken back."""
    change = alteration(RATE, rate)
    life = it.lives[it.controllers[0]]

    def changed(existing: Mapping[str, str]) -> Mapping[str, str]:
        return altered_overrides(life.context.config, existing, [change], own=False)

    await life.context.controller.set_broker_configs(None, changed)


async def set_replicas(it: House, text: str | None) -> None:
    life = it.lives[it.controllers[0]]
    change = alteration(REPLICAS, text)
    await life.context.controller.set_configs(
        "log", lambda topic: altered_configs(life.context.config, topic.configs, [change])
    )


def alteration(name: str, value: object) -> Alteration:
    is_set = value is not None
    return Alteration(name, AlterOperation.SET if is_set else AlterOperation.DELETE, str(value) if is_set else None)


async def write(it: House, pieces: int, index: int = 0) -> None:
    """50 kB each, that no codec makes smaller."""
    for _ in range(pieces):
        leader = it.lives[it.row(index).leader]
        assert (await leader.produce("log", os.urandom(PIECE), index=index)).error_code == 0


def here(it: House, node_id: int, index: int = 0) -> int:
    """Bytes of the copy there."""
    followed = it.lives[node_id].context.registry.followed.get(("log", index))
    return 0 if followed is None else followed.log.local_bytes


async def test_who_comes_back_catches_up_at_the_rate_and_writes_go_on() -> None:
    """2 MB at 100 kB/s take 20 s; what is produced meanwhile to those in sync waits for nobody. Lifted, the rest is
    there at once."""
    async with house(1, LOCAL) as it:
        late = next(node for node in (2, 3) if node != it.row().leader)
        it.watched = it.row().leader
        await it.kill(late)
        await until(lambda: it.row().in_sync == tuple(n for n in (1, 2, 3) if n != late), 60)
        await write(it, 40)
        await set_replicas(it, f"0:{late}")
        await set_rate(it, 100_000)
        await it.start(late)
        await until(lambda: here(it, late) > 0, 10)
        for second in range(1, 11):
            before_s = asyncio.get_running_loop().time()
            await write(it, 1)
            assert asyncio.get_running_loop().time() - before_s < 1.0, "acks=all"
            await asyncio.sleep(1 - (asyncio.get_running_loop().time() - before_s))
            assert here(it, late) <= 100_000 * (second + 3) + (1 << 20), second
        assert late not in it.row().in_sync and here(it, late) < 2_200_000
        await set_rate(it, None)
        assert await until(lambda: late in it.row().in_sync, 10) < 4
        assert here(it, late) >= 50 * PIECE


async def test_the_rate_is_kept_over_all_leaders_together() -> None:
    """Six partitions, two leaders: the broker that comes back asks both, and has what one rate lets."""
    async with house(6, LOCAL) as it:
        late = 3
        it.watched = 1
        await it.kill(late)
        await until(lambda: all(late not in it.row(index).in_sync for index in range(6)), 60)
        for index in range(6):
            await write(it, 20, index)
        assert {it.row(index).leader for index in range(6)} == {1, 2}
        await set_replicas(it, "*")
        await set_rate(it, 200_000)
        await it.start(late)
        began_s = asyncio.get_running_loop().time()

        def copied() -> int:
            return sum(here(it, late, index) for index in range(6))

        while (now := copied()) < 6 * 20 * PIECE:
            took_s = asyncio.get_running_loop().time() - began_s
            assert now <= 200_000 * (took_s + 1) + (4 << 20), (now, took_s)  # two answers of each leader at most
            assert took_s < 60
            await asyncio.sleep(0.5)
        assert took_s > 18, "6 MB, less what came with the first answers"
        await until(lambda: all(late in it.row(index).in_sync for index in range(6)), 20)


async def test_who_is_in_sync_stays_so_under_any_rate() -> None:
    """1 kB/s for all replicas, and fifty times as much is written: each write is on all three, for a minute and more
    than replica.lag.time.max.ms."""
    async with house(1, LOCAL, "replica.lag.time.max.ms=10000") as it:
        await set_replicas(it, "*")
        await set_rate(it, 1_000)
        for _ in range(60):
            await write(it, 1)
            await asyncio.sleep(1)
            assert len(it.row().in_sync) == 3
        await until(lambda: min(here(it, n) for n in (1, 2, 3) if n != it.row().leader) >= 60 * PIECE, 3)
