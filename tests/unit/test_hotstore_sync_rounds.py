"""Syncs of many logs in rounds: who comes together goes together, each hears of its own."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from hotstore.durability import SyncJob
from hotstore.sync_rounds import ALONE_BYTES, TOGETHER_MAX, SyncRounds
from seams.disk import File
from seams.syncs import WorkerSyncs
from tests.support.crash_disk import CrashDisk
from tests.support.hotstore_kit import SteppedWorkers, settle


def play(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


class Stage:
    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.disk.make_dirs("/d")
        self.workers = SteppedWorkers()
        self.rounds = SyncRounds(WorkerSyncs(self.workers), self.workers)
        self.began: list[str] = []

    def file(self, name: str) -> File:
        file = self.disk.open(f"/d/{name}", write=True, create=True)
        file.write_at(0, [name.encode()])
        return file

    def ask(self, name: str, dirty_bytes: int = 10) -> asyncio.Task[SyncJob | None]:
        file = self.file(name)

        def begin() -> SyncJob:
            self.began.append(name)
            return SyncJob(1, dirty_bytes, (file,), 0, self.disk, None)

        return asyncio.get_running_loop().create_task(self.rounds.run(begin, dirty_bytes))


def test_who_comes_in_one_turn_of_the_loop_shares_a_round() -> None:
    async def scene() -> None:
        stage = Stage()
        asked = [stage.ask(name) for name in "abc"]
        await settle()
        assert stage.workers.waiting == 1 and stage.began == ["a", "b", "c"]
        await stage.workers.step()
        assert all(task.done() for task in asked) and stage.disk.hits["sync"] == 3

    play(scene)


def test_what_comes_during_a_round_is_sampled_when_the_next_begins() -> None:
    async def scene() -> None:
        stage = Stage()
        first = stage.ask("a")
        await settle()
        later = [stage.ask(name) for name in "bc"]
        await settle()
        assert stage.workers.waiting == 1 and stage.began == ["a"], "one round at a time"
        await stage.workers.step()
        assert first.done() and not later[0].done() and stage.began == ["a", "b", "c"]
        await stage.workers.step()
        assert all(task.done() for task in later)

    play(scene)


def test_each_hears_of_its_own_failure() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.disk.inject("sync", errno.EIO, "b")
        good, bad, after = stage.ask("a"), stage.ask("b"), stage.ask("c")
        await settle()
        await stage.workers.step()
        assert good.exception() is None and after.exception() is None
        with pytest.raises(OSError, match="injected"):
            await bad
        assert (again := stage.ask("d")) is not None
        await settle()
        await stage.workers.step()
        assert again.done(), "the rounds go on"

    play(scene)


def test_much_is_synced_beside_the_rounds() -> None:
    async def scene() -> None:
        stage = Stage()
        much, little = stage.ask("a", ALONE_BYTES + 1), stage.ask("b")
        await settle()
        assert stage.workers.waiting == 2
        await stage.workers.step()
        assert much.done() and not little.done()
        await stage.workers.step()
        assert little.done()

    play(scene)


def test_a_round_has_a_bound() -> None:
    async def scene() -> None:
        stage = Stage()
        asked = [stage.ask(f"f{at}") for at in range(TOGETHER_MAX + 1)]
        await settle()
        await stage.workers.step()
        assert [task.done() for task in asked] == [True] * TOGETHER_MAX + [False]
        await stage.workers.step()
        assert asked[-1].done()

    play(scene)


def test_who_has_nothing_to_sync_waits_for_nobody() -> None:
    async def scene() -> None:
        stage = Stage()
        assert await stage.rounds.run(lambda: None, 0) is None
        assert stage.workers.waiting == 0

    play(scene)


def test_who_stopped_waiting_before_its_round_is_passed_over() -> None:
    async def scene() -> None:
        stage = Stage()
        first = stage.ask("a")
        await settle()
        gone, stays = stage.ask("b"), stage.ask("c")
        await settle()
        gone.cancel()
        await stage.workers.step()
        await stage.workers.step()
        assert first.done() and stays.done() and stage.began == ["a", "c"]

    play(scene)


def test_who_stopped_waiting_takes_nobody_along() -> None:
    async def scene() -> None:
        stage = Stage()
        gone, stays = stage.ask("a"), stage.ask("b")
        await settle()
        gone.cancel()
        await stage.workers.step()
        assert stays.done() and stays.exception() is None

    play(scene)
