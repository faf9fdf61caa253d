"""Who waits for an acknowledgement: told once, in order, in the turn in which the high watermark moved."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

from broker.error_codes import ErrorCode
from broker.net.dispatch import Later
from broker.partition.leading.delayed_operations import Acked, DelayedOperations
from broker.wire.apis import ApiKey
from logformat.errors import StorageFailed
from tests.support.brokers.broker_kit import Life, Place, batch_of, decoded, produce_request
from tests.support.disk.syncs_in_hand import InHand
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.scenario import by

FAR_S = 1e9


class Told:
    """What the loop's exception handler and those who wait were told, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, str]] = []
        self.bugs: list[str] = []

    def by(self, name: int) -> Acked:
        return lambda failure: self.heard.append((name, "" if failure is None else str(failure)))


def play(test: Callable[[DelayedOperations, Told], None]) -> None:
    async def scene() -> None:
        told = Told()

        def note(_: object, context: dict[str, Any]) -> None:
            told.bugs.append(repr(context["exception"]))

        asyncio.get_running_loop().set_exception_handler(note)
        test(DelayedOperations(), told)

    asyncio.run(scene())


def test_what_is_committed_is_told_at_once_and_in_order() -> None:
    def test(waiters: DelayedOperations, told: Told) -> None:
        for end_offset in (1, 2, 3):
            waiters.ack(end_offset, FAR_S, told.by(end_offset))
        waiters.moved(2)
        assert told.heard == [(1, ""), (2, "")] and waiters.has_acks
        waiters.moved(3)
        waiters.moved(9)
        assert told.heard == [(1, ""), (2, ""), (3, "")] and not waiters.has_acks

    play(test)


def test_a_resend_that_asks_behind_newer_ones_is_told_by_its_own_offset() -> None:
    """It waited for the newest one's commit, and could be too late although it was committed itself."""

    def test(waiters: DelayedOperations, told: Told) -> None:
        for end_offset in (5, 10, 5, 7):
            waiters.ack(end_offset, FAR_S, told.by(end_offset))
        waiters.moved(7)
        assert told.heard == [(5, ""), (5, ""), (7, "")] and waiters.has_acks
        waiters.moved(10)
        assert told.heard[3:] == [(10, "")] and not waiters.has_acks

    play(test)


def test_who_fails_over_being_told_keeps_nobody_else_from_it() -> None:
    """Neither of those behind it, nor the readers; and it is reported."""

    def test(waiters: DelayedOperations, told: Told) -> None:
        def broken(_: Exception | None) -> None:
            raise RuntimeError("a bug of ours")

        for at, tell in enumerate((waiters.moved, waiters.fail, waiters.expire)):
            told.heard, told.bugs = [], []
            woken: list[int] = []
            waiters.watch(lambda to=woken: to.append(1))  # type: ignore[misc]
            waiters.ack(1, 0.0, broken)
            waiters.ack(2, 0.0, told.by(2))
            tell({0: 2, 1: StorageFailed("gone"), 2: 1.0}[at])  # type: ignore[operator]
            assert [name for name, _ in told.heard] == [2] and told.bugs == ["RuntimeError('a bug of ours')"]
            assert woken == ([] if at == 2 else [1]) and not waiters.has_acks

    play(test)


def test_who_appends_while_being_told_is_told_by_the_same_call() -> None:
    """As a connection does whose next request stood behind its answers: ten thousand of them are no recursion."""

    def test(waiters: DelayedOperations, told: Told) -> None:
        end = 1

        def again(failure: Exception | None) -> None:
            nonlocal end
            assert failure is None
            if end < 10_000:
                end += 1
                waiters.ack(end, FAR_S, again)
                waiters.moved(end)

        waiters.ack(1, FAR_S, again)
        waiters.ack(1, FAR_S, told.by(1))
        waiters.moved(1)
        assert end == 10_000 and not waiters.has_acks and told.heard == [(1, "")]

    play(test)


def test_who_asks_again_while_it_fails_waits_for_what_comes() -> None:
    def test(waiters: DelayedOperations, told: Told) -> None:
        waiters.ack(1, FAR_S, lambda _: waiters.ack(2, FAR_S, told.by(2)))
        waiters.fail(StorageFailed("gone"))
        assert waiters.has_acks and not told.heard
        waiters.moved(2)
        assert told.heard == [(2, "")]

    play(test)


def test_an_ack_past_its_deadline_is_told_once() -> None:
    """Not again when it comes true after all."""

    def test(waiters: DelayedOperations, told: Told) -> None:
        waiters.ack(1, 5.0, told.by(1))
        waiters.ack(2, 3.0, told.by(2))
        waiters.expire(4.0)
        assert [name for name, _ in told.heard] == [2] and "not committed" in told.heard[0][1]
        waiters.moved(2)
        assert [name for name, _ in told.heard] == [2, 1]

    play(test)


def in_a_broker(scene: Callable[[Life, InHand], Awaitable[None]], topics: int = 1) -> None:
    """With topics `t0`…, whose syncs the test answers from now on; the first record of each is committed."""

    async def whole() -> None:
        life = await Place().start()
        for at in range(topics):
            await life.create(f"t{at}")
            await life.produce(f"t{at}", b"first")
        syncs, rounds = InHand(), life.partition("t0").flusher._sync_rounds
        real, rounds._syncs = rounds._syncs, syncs
        await scene(life, syncs)
        rounds._syncs = real
        while syncs.asked:
            syncs.answer()
        await life.stop()

    run_fast(whole(), timeout_s=HOUR_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


@by(in_a_broker)
async def test_the_answer_is_there_in_the_turn_in_which_the_disks_is(life: Life, syncs: InHand, /) -> None:
    """And the next sync has begun: before, it was four turns of the loop, in each of which others had their work."""
    waits = life.dispatch(ApiKey.PRODUCE, produce_request("t0", batch_of(b"a")))
    assert isinstance(waits, Later)
    await until(lambda: bool(syncs.asked))
    behind = life.dispatch(ApiKey.PRODUCE, produce_request("t0", batch_of(b"b")))
    assert isinstance(behind, Later) and len(syncs.asked) == 1
    syncs.answer()
    assert waits.is_done and not behind.is_done and len(syncs.asked) == 1
    assert decoded(ApiKey.PRODUCE, 9, waits.parts).responses[0].partition_responses[0].base_offset == 1
    syncs.answer()
    assert behind.is_done


@by(in_a_broker, topics=3)
async def test_what_was_put_off_to_the_end_of_the_chain_is_done_once_for_all_logs(life: Life, syncs: InHand, /) -> None:
    """A connection that waits for several answers sends them together, after the next sync began."""
    done: list[tuple[str, int]] = []
    waits = [life.dispatch(ApiKey.PRODUCE, produce_request(f"t{at}", batch_of(b"a"))) for at in range(3)]
    for at, answer in enumerate(waits):
        assert isinstance(answer, Later)
        answer.when_done(
            lambda _, at=at: life.broker._world.afterwards.do(  # type: ignore[misc]
                lambda: done.append((f"t{at}", sum(isinstance(one, Later) and one.is_done for one in waits)))
            )
        )
    await until(lambda: bool(syncs.asked))
    syncs.answer()
    assert done == [("t0", 3), ("t1", 3), ("t2", 3)]


@by(in_a_broker)
async def test_a_sync_that_failed_is_told_in_the_same_turn(life: Life, syncs: InHand, /) -> None:
    waits = life.dispatch(ApiKey.PRODUCE, produce_request("t0", batch_of(b"a")))
    assert isinstance(waits, Later)
    await until(lambda: bool(syncs.asked))
    syncs.answer(OSError(errno.EIO, "injected"))
    assert waits.is_done
    part = decoded(ApiKey.PRODUCE, 9, waits.parts).responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR and not syncs.asked
