"""Who waits for an acknowledgement: told once, in order, in the turn in which the high watermark moved."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.partition.waiters import Acked, Waiters
from logformat.errors import StorageFailed

FAR_S = 1e9


class Told:
    """What the loop's exception handler and those who wait were told, in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, str]] = []
        self.bugs: list[str] = []

    def by(self, name: int) -> Acked:
        return lambda failure: self.heard.append((name, "" if failure is None else str(failure)))


def play(test: Callable[[Waiters, Told], None]) -> None:
    async def scene() -> None:
        told = Told()

        def note(_: object, context: dict[str, Any]) -> None:
            told.bugs.append(repr(context["exception"]))

        asyncio.get_running_loop().set_exception_handler(note)
        test(Waiters(), told)

    asyncio.run(scene())


def test_what_is_committed_is_told_at_once_and_in_order() -> None:
    def test(waiters: Waiters, told: Told) -> None:
        for end_offset in (1, 2, 3):
            waiters.ack(end_offset, FAR_S, told.by(end_offset))
        waiters.moved(2)
        assert told.heard == [(1, ""), (2, "")] and waiters.has_acks
        waiters.moved(3)
        waiters.moved(9)
        assert told.heard == [(1, ""), (2, ""), (3, "")] and not waiters.has_acks

    play(test)


def test_who_fails_over_being_told_keeps_nobody_else_from_it() -> None:
    """Neither of those behind it, nor the readers; and it is reported."""

    def test(waiters: Waiters, told: Told) -> None:
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

    def test(waiters: Waiters, told: Told) -> None:
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
    def test(waiters: Waiters, told: Told) -> None:
        waiters.ack(1, FAR_S, lambda _: waiters.ack(2, FAR_S, told.by(2)))
        waiters.fail(StorageFailed("gone"))
        assert waiters.has_acks and not told.heard
        waiters.moved(2)
        assert told.heard == [(2, "")]

    play(test)


def test_an_ack_past_its_deadline_is_told_once() -> None:
    """Not again when it comes true after all."""

    def test(waiters: Waiters, told: Told) -> None:
        waiters.ack(1, 5.0, told.by(1))
        waiters.ack(2, 3.0, told.by(2))
        waiters.expire(4.0)
        assert [name for name, _ in told.heard] == [2] and "not committed" in told.heard[0][1]
        waiters.moved(2)
        assert [name for name, _ in told.heard] == [2, 1]

    play(test)
