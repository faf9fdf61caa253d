"""What a chain of callbacks leads to: once, at its end, in the same turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from seams.loop.afterwards import Afterwards


def play(test: Callable[[Afterwards, list[str]], None]) -> list[str]:
    """What was done by the end of the turn, then `|`, then what the loop's next turns did."""
    done: list[str] = []

    async def scene() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: done.append(repr(context["exception"])))
        test(Afterwards(), done)
        done.append("|")
        await asyncio.sleep(0)

    asyncio.run(scene())
    return done


def test_the_end_of_the_outermost_chain_is_the_end() -> None:
    def test(afterwards: Afterwards, done: list[str]) -> None:
        with afterwards:
            afterwards.do(lambda: done.append("first"))
            with afterwards:
                afterwards.do(lambda: done.append("second"))
            done.append("the chain")

    assert play(test) == ["the chain", "first", "second", "|"]


def test_outside_of_a_chain_it_is_the_next_turn() -> None:
    """Never now: whoever asks is in the middle of something. So is what is asked for at the end of a chain."""

    def test(afterwards: Afterwards, done: list[str]) -> None:
        afterwards.do(lambda: done.append("alone"))
        with afterwards:
            afterwards.do(lambda: afterwards.do(lambda: done.append("by one of them")))

    assert play(test) == ["|", "alone", "by one of them"]


def test_one_that_raises_keeps_no_other_from_its_turn() -> None:
    def test(afterwards: Afterwards, done: list[str]) -> None:
        def broken() -> None:
            raise RuntimeError("a bug of ours")

        with afterwards:
            afterwards.do(broken)
            afterwards.do(lambda: done.append("other"))

    assert play(test) == ["RuntimeError('a bug of ours')", "other", "|"]


def test_what_was_asked_for_is_done_where_the_chain_itself_raises() -> None:
    def test(afterwards: Afterwards, done: list[str]) -> None:
        try:
            with afterwards:
                afterwards.do(lambda: done.append("all the same"))
                raise RuntimeError("a bug of ours")
        except RuntimeError:
            done.append("told")

    assert play(test) == ["all the same", "told", "|"]
