"""Background tasks with an owner.

A task is spawned into a `Tasks`, which counts it, and cancels and awaits it when it closes. A failed task is reported.
`supervise` restarts a service after any exception.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from seams.rng import Rng

log = logging.getLogger(__name__)

T = TypeVar("T")

FailureReport = Callable[[str, BaseException], None]


class Tasks:
    """Owner of a set of tasks. At most `bound` tasks run at once. `spawn` raises RuntimeError for one more, because so
    many tasks are a leak.
    """

    def __init__(self, report: FailureReport | None = None, bound: int = 100_000) -> None:
        self._report = report or log_failure
        self._bound = bound
        self._running: dict[asyncio.Task[Any], None] = {}  # a set's order would differ from run to run
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, Any], *, awaited: bool = False) -> asyncio.Task[Any]:
        """Start a task. Its exception is reported. With `awaited`, the exception is raised in the task that awaits it
        instead."""
        if self._closed or len(self._running) >= self._bound:
            coroutine.close()
            raise RuntimeError(f"cannot start {name!r}: " + ("owner closed" if self._closed else "too many tasks"))
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._forget if awaited else self._done)
        return task

    def spawn_with_callback(
        self, name: str, coroutine: Coroutine[Any, Any, T], told: Callable[[asyncio.Future[T]], None]
    ) -> None:
        """Start a task. When the task has ended, `told` is called once with it, in a later turn of the loop. If the
        task cannot start, `told` gets the RuntimeError of `spawn`.
        """
        task: asyncio.Future[T]
        try:
            task = self.spawn(name, coroutine, awaited=True)
        except RuntimeError as refused:
            task = asyncio.get_running_loop().create_future()
            task.set_exception(refused)
        task.add_done_callback(told)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._report(task.get_name(), failure)

    async def close(self) -> None:
        """Cancel running tasks and wait until they ended."""
        self._closed = True
        running = [task for task in self._running if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def tell(told: Callable[[Exception | None], None], failure: Exception | None, whom: str) -> None:
    """Call one of many waiting callbacks. An exception is reported like the exception of a loop callback, so the other
    callbacks are called too. `whom`: the waiter, for the report."""
    try:
        told(failure)
    except Exception as bug:  # noqa: BLE001 - reported, not carried
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"the callback of {whom} failed", "exception": bug}
        )


def failure_of_task(task: asyncio.Future[Any]) -> BaseException | None:
    """The exception or cancellation that ended a done task; None if it has a result."""
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def supervise(
    name: str,
    service: Callable[[], Awaitable[None]],
    rng: Rng,
    report: FailureReport,
    *,
    backoff_s: float = 0.5,
    backoff_max_s: float = 30.0,
) -> None:
    """Run `service` again after any exception (even MemoryError), with backoff and jitter.

    Returns only when `service` returns; cancellation passes through."""
    wait_s = backoff_s
    while True:
        try:
            await service()
            return
        except Exception as failure:  # noqa: BLE001 - a service must survive any failure
            report(name, failure)
        await asyncio.sleep(wait_s * rng.uniform(0.8, 1.2))
        wait_s = min(wait_s * 2, backoff_max_s)


def log_failure(name: str, failure: BaseException) -> None:
    log.error("background task %s failed: %s", name, failure, exc_info=failure)
