"""Syncs of many logs in rounds: who comes together goes together, each hears of its own."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, TypeVarTuple

import pytest

from hotstore.flush.durability import SyncJob
from hotstore.flush.sync_rounds import ALONE_BYTES, TOGETHER_MAX, Begin, SyncRounds
from seams.files.disk import File
from seams.files.syncs import CutOff, Synced, WorkerSyncs
from seams.loop.workers import Lane
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import SteppedWorkers, settle
from tests.support.disk.syncs_in_hand import InHand
from tests.support.scenario import by

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def play(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))


Answer = asyncio.Future[SyncJob | None]


def ask(rounds: SyncRounds, begin: Begin, dirty_bytes: int) -> Answer:
    """What `synced` is told; asyncio complains where it is told twice."""
    answer: Answer = asyncio.get_running_loop().create_future()

    def synced(job: SyncJob | None, failure: OSError | None) -> None:
        if failure is None:
            answer.set_result(job)
        else:
            answer.set_exception(failure)

    rounds.ask(begin, dirty_bytes, synced)
    return answer


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

    def ask(self, name: str, dirty_bytes: int = 10) -> Answer:
        file = self.file(name)

        def begin() -> SyncJob:
            self.began.append(name)
            return SyncJob(1, dirty_bytes, (file,), 0, None)

        return ask(self.rounds, begin, dirty_bytes)


@by(play)
async def test_who_comes_in_one_turn_of_the_loop_shares_a_round() -> None:
    stage = Stage()
    asked = [stage.ask(name) for name in "abc"]
    await settle()
    assert stage.workers.waiting == 1 and stage.began == ["a", "b", "c"]
    await stage.workers.step()
    assert all(task.done() for task in asked) and stage.disk.hits["sync"] == 3


@by(play)
async def test_what_comes_during_a_round_is_sampled_when_the_next_begins() -> None:
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


@by(play)
async def test_each_hears_of_its_own_failure() -> None:
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


@by(play)
async def test_much_is_synced_beside_the_rounds() -> None:
    stage = Stage()
    much, little = stage.ask("a", ALONE_BYTES + 1), stage.ask("b")
    await settle()
    assert stage.workers.waiting == 2
    await stage.workers.step()
    assert much.done() and not little.done()
    await stage.workers.step()
    assert little.done()


@by(play)
async def test_a_round_has_a_bound() -> None:
    stage = Stage()
    asked = [stage.ask(f"f{at}") for at in range(TOGETHER_MAX + 1)]
    await settle()
    await stage.workers.step()
    assert [task.done() for task in asked] == [True] * TOGETHER_MAX + [False]
    await stage.workers.step()
    assert asked[-1].done()


@by(play)
async def test_who_has_nothing_to_sync_waits_for_nobody() -> None:
    stage = Stage()
    assert await ask(stage.rounds, lambda: None, 0) is None
    assert stage.workers.waiting == 0


class Unstartable(SteppedWorkers):
    """Threads that cannot be started (a pids limit) for the calls that `doomed` picks."""

    def __init__(self, doomed: Lane) -> None:
        super().__init__(immediate=True)
        self.doomed: Lane | None = doomed

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        if lane is self.doomed:
            raise RuntimeError("can't start new thread")
        return await super().run(function, *args, lane=lane)


@pytest.mark.parametrize(("lane", "dirty_bytes"), [(Lane.FLUSH, 10), (Lane.BULK_FLUSH, ALONE_BYTES + 1)])
@by(play)
async def test_a_sync_that_got_no_answer_has_failed(lane: Lane, dirty_bytes: int) -> None:
    """Found in review: it was taken for cancelled, and the log's next sync was believed (C10)."""
    workers, reported = Unstartable(lane), []
    stage = Stage()
    rounds = SyncRounds(WorkerSyncs(workers), workers, lambda name, failure: reported.append(name))
    file = stage.file("a")
    job = SyncJob(1, 10, (file,), 0, stage.disk.open_dir("/d"))
    asked = [ask(rounds, lambda: job, dirty_bytes), ask(rounds, lambda: job, dirty_bytes)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in answers] == [CutOff, CutOff], answers
    assert "can't start new thread" in str(answers[0])
    assert reported == (["sync rounds"] if lane is Lane.FLUSH else []), "an operator sees why rounds ended"
    workers.doomed = None
    assert await ask(rounds, lambda: job, dirty_bytes) is job, "the rounds go on"


@by(play)
async def test_who_cannot_be_sampled_strands_nobody() -> None:
    """Found in review: those of the same round would have waited for ever."""
    stage = Stage()
    reported: list[str] = []
    stage.rounds = SyncRounds(WorkerSyncs(stage.workers), stage.workers, lambda name, _: reported.append(name))
    before = stage.ask("a")

    def begin() -> SyncJob:
        raise MemoryError

    asked = ask(stage.rounds, begin, 10)
    await settle()
    after = stage.ask("b")
    await settle()
    assert isinstance(asked.exception(), OSError) and reported == ["sync rounds"]
    await stage.workers.step()
    await stage.workers.step()
    assert before.exception() is None and after.exception() is None


@by(play)
async def test_who_waits_for_the_next_round_is_not_told_of_this_ones_end() -> None:
    """Found in review: one thread that could not be started took logs offline that had begun nothing."""

    class OnceCutOff:
        def sync(self, files: Sequence[File], synced: Synced) -> None:
            stage.rounds._syncs = WorkerSyncs(stage.workers)
            later.append(stage.ask("b"))
            raise RuntimeError("can't start new thread")

    later: list[Answer] = []
    stage = Stage()
    stage.rounds = SyncRounds(OnceCutOff(), stage.workers, lambda *_: None)
    with pytest.raises(OSError, match="can't start new thread"):
        await stage.ask("a")
    await settle()
    await stage.workers.step()
    assert (await later[0]) is not None


@by(play)
async def test_names_that_got_no_answer_are_nobody_elses_failure() -> None:
    """A round's files are durable; only of the log with a new name nobody knows."""
    stage = Stage()
    stage.workers.immediate = True
    rounds = SyncRounds(WorkerSyncs(stage.workers), Unstartable(Lane.FLUSH), lambda *_: None)
    jobs = [
        SyncJob(1, 10, (stage.file(name),), 0, stage.disk.open_dir("/d") if name == "b" else None) for name in "abc"
    ]
    begins = [iter([job]).__next__ for job in jobs]
    answers = await asyncio.gather(*(ask(rounds, begin, 10) for begin in begins), return_exceptions=True)
    assert [type(answer) for answer in answers] == [SyncJob, CutOff, SyncJob]


@by(play)
async def test_the_next_round_begins_in_the_turn_in_which_the_answers_came() -> None:
    """Those who waited are told first, and whoever asks while being told comes along."""
    stage, syncs = Stage(), InHand()
    stage.rounds = SyncRounds(syncs, stage.workers)
    first = stage.ask("a")
    await settle()
    again: list[Answer] = []
    job = SyncJob(1, 10, (stage.file("c"),), 0, None)

    def told(_: SyncJob | None, failure: OSError | None) -> None:
        again.append(stage.ask("d"))

    stage.rounds.ask(lambda: job, 10, told)
    waiting = stage.ask("b")
    assert stage.began == ["a"] and not first.done()
    syncs.answer()
    assert first.done() and stage.began == ["a", "b"] and len(syncs.asked) == 1, "no turn of the loop between"
    syncs.answer()
    assert waiting.done() and stage.began == ["a", "b", "d"] and len(syncs.asked) == 1
    syncs.answer()
    assert again[0].done() and not syncs.asked


@by(play)
async def test_who_fails_over_hearing_keeps_nobody_from_hearing() -> None:
    """Neither those of its round nor those of the next; an operator sees it."""
    stage, syncs = Stage(), InHand()
    reported: list[str] = []
    stage.rounds = SyncRounds(syncs, stage.workers, lambda name, bug: reported.append(f"{name}: {bug}"))
    job = SyncJob(1, 10, (stage.file("x"),), 0, None)

    def broken(_: SyncJob | None, failure: OSError | None) -> None:
        raise RuntimeError("a bug of ours")

    stage.rounds.ask(lambda: job, 10, broken)
    behind = stage.ask("a")
    await settle()
    after = stage.ask("b")
    syncs.answer()
    assert behind.done() and reported == ["sync rounds: a bug of ours"]
    syncs.answer()
    assert after.done()


@pytest.mark.parametrize("dirty_bytes", [10, ALONE_BYTES + 1])
@by(play)
async def test_a_sync_that_may_not_start_is_told_as_a_failed_one(dirty_bytes: int) -> None:
    """Of new names, in a round; of much, beside the rounds. The next ones have their turn."""
    stage, syncs = Stage(), InHand()
    reported: list[str] = []
    stage.rounds = SyncRounds(syncs, stage.workers, lambda name, bug: reported.append(f"{name}: {bug}"))
    await stage.rounds._tasks.close()
    named = SyncJob(1, 10, (stage.file("c"),), 0, stage.disk.open_dir("/d"))
    answer = ask(stage.rounds, lambda: named, dirty_bytes)
    await settle()
    if dirty_bytes <= ALONE_BYTES:
        syncs.answer()
    with pytest.raises(CutOff, match="owner closed"):
        await asyncio.wait_for(answer, 5)
    assert len(reported) == (1 if dirty_bytes <= ALONE_BYTES else 0), "a log says what its own failed of"
    after = stage.ask("d")
    await settle()
    syncs.answer()
    assert after.done()


@by(play)
async def test_who_has_nothing_and_asks_again_holds_nobody_up() -> None:
    """A turn of the loop lies between: no recursion, however often."""
    stage, syncs = Stage(), InHand()
    stage.rounds = SyncRounds(syncs, stage.workers)
    heard = 0

    def again(job: SyncJob | None, failure: OSError | None) -> None:
        nonlocal heard
        heard += 1
        if heard < 5_000:
            stage.rounds.ask(lambda: None, 10, again)

    again(None, None)
    async with asyncio.timeout(5):
        while heard < 5_000:
            await asyncio.sleep(0)
    other = stage.ask("a")
    await settle()
    syncs.answer()
    assert other.done()
