"""Tasks that may not start: whoever waits for a callback hears of it."""

from __future__ import annotations

import asyncio

from seams.loop.tasks import Tasks, failure_of_task


async def _seven() -> int:
    return 7


async def _told(tasks: Tasks) -> asyncio.Future[int]:
    heard: asyncio.Future[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
    tasks.spawn_with_callback("seven", _seven(), heard.set_result)
    assert not heard.done(), "never before the call returned"
    return await asyncio.wait_for(heard, 5)


def test_a_callback_hears_of_the_end_of_its_task() -> None:
    assert asyncio.run(_told(Tasks())).result() == 7


def test_a_callback_hears_that_its_task_may_not_start() -> None:
    async def scene() -> None:
        full = await _told(Tasks(bound=0))
        assert isinstance(failure_of_task(full), RuntimeError)
        closed = Tasks()
        await closed.close()
        refused = await _told(closed)
        assert "owner closed" in str(failure_of_task(refused)) and len(closed) == 0

    asyncio.run(scene())
