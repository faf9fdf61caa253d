"""An asyncio loop in virtual time that knows which simulated process each callback belongs to.

Owns time and scheduling. Always true: callbacks run in FIFO order as asyncio promises; when nothing is ready the clock
jumps to the next timer; when nothing is scheduled either, that is a deadlock and raises. A callback belongs to the
`Process` of its context: those of a killed process never run again (no `finally` runs, as under SIGKILL), those of a
paused one wait, in order, until it is resumed (SIGSTOP). Threads, sockets and subprocesses do not exist here.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from contextvars import Context, ContextVar
from typing import Any, NoReturn

TURNS_AT_ONE_TIME_MAX = 200_000  # callbacks without the clock moving: a livelock, not a load


CLOSES_MAX = 10_000  # of one coroutine: suspensions of it and of those that it awaits


class Deadlock(RuntimeError):
    """Every task waits and no timer is set."""


class Livelock(RuntimeError):
    """Callbacks run for ever without time passing."""


class PowerCut(KeyboardInterrupt):
    """Ends a process in the middle of a system call; only the loop catches it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.name)
        self.process = process


class Process:
    """A simulated process: alive, paused or dead. `context` is where its code runs; `place` names its end of links."""

    def __init__(self, name: str, place: str = "") -> None:
        self.name = name
        self.place = place or name
        self.dead = False
        self.unplugged = False  # dead, and its machine's kernel with it
        self.paused = False
        self.held: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = Context()
        self.context.run(PROCESS.set, self)


PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)


def close_coroutine(coroutine: Any) -> None:
    """End a suspended coroutine that nobody will resume: its `finally` blocks run, without the loop.

    The innermost coroutine is closed first. Closed from outside, one that awaits in its `finally`, or in the exit of a
    TaskGroup, ignores GeneratorExit, and the one that awaits it gets a RuntimeError of which no program knows."""
    for _ in range(CLOSES_MAX):
        inner, one = None, coroutine
        while getattr(one, "cr_frame", None) is not None:
            inner, one = one, one.cr_await
        if inner is None:
            return
        with contextlib.suppress(BaseException):  # it may be suspended again, further on
            inner.close()
    raise AssertionError(f"{coroutine!r} cannot be closed")


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `time()` is seconds of virtual time from 0."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = itertools.count()
        self._turns = 0
        self.callbacks = 0
        self.over = False
        """Nothing runs any more: an async generator that is freed now gets no task."""

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.tasks.append(task)
            if len(process.tasks) > 4096:
                process.tasks = [known for known in process.tasks if not known.done()]
        return task

    def resume(self, process: Process) -> None:
        """SIGCONT: what came due meanwhile runs now, in order."""
        process.paused = False
        self._ready.extend(process.held)  # type: ignore[attr-defined]
        process.held.clear()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers leave the heap when they come due."""

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready:
            if not timers:
                raise Deadlock(f"at {self._now:.3f} s: every task waits and no timer is set")
            if timers[0][0] > self._now:
                self._now = timers[0][0]
                self._turns = 0
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        self._turns += len(ready)
        if self._turns > TURNS_AT_ONE_TIME_MAX:
            raise Livelock(f"at {self._now:.3f} s: {self._turns} callbacks without time passing; next: {ready[0]!r}")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is not None:
                if process.dead:
                    continue
                if process.paused:
                    process.held.append(handle)
                    continue
            self.callbacks += 1
            try:
                handle._run()
            except PowerCut:
                continue

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        self._asyncgens.discard(agen)  # type: ignore[attr-defined]
        process = PROCESS.get()
        if not (self.over or self.is_closed()) and (process is None or not process.dead):
            self.create_task(agen.aclose())

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no threads in the simulation: use workers.run")

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("no threads in the simulation")
