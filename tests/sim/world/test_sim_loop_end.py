"""The end of a simulated world: suspended coroutines are closed without an error that no program knows."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.sim.run import simulate
from tests.sim.world.loop import close_coroutine


def test_a_coroutine_that_awaits_on_its_way_out_is_closed_from_within() -> None:
    """Regression: `session.keep`, a TaskGroup, ignored GeneratorExit; whoever awaited it saw a RuntimeError."""
    seen: list[str] = []

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    async def inner() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(forever())
                await forever()
        finally:
            await asyncio.sleep(1)
            seen.append("not reached")

    async def outer() -> None:
        try:
            await inner()
        except Exception as error:  # noqa: BLE001 - as `supervise` does
            seen.append(repr(error))
        finally:
            seen.append("closed")

    async def world() -> None:
        task = asyncio.ensure_future(outer())
        await asyncio.sleep(0.1)
        close_coroutine(task.get_coro())
        assert task.get_coro().cr_frame is None  # type: ignore[union-attr]
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    asyncio.run(asyncio.wait_for(world(), 5))
    assert seen == ["closed"]


@pytest.mark.parametrize("seed", [3, 7])
def test_a_run_ends_without_complaints(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    simulate(seed, duration_s=10.0)
    ended = [record for record in caplog.records if record.exc_info and "GeneratorExit" in str(record.exc_info[1])]
    assert ended == []
