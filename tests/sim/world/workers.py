"""`Workers` in virtual time: a blocking call takes a while before its effect, and is heard of a while after it.

Owns the lanes. Always true: a lane runs at most as many calls as it has threads; a call that began is not undone when
its caller is cancelled; it runs in its caller's context, also where it waited for a thread; the function itself runs in
one step, and other events run between it and its answer, as with a thread that finishes later than it worked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from seams.loop.workers import Lane
from seams.rng import SeededRng
from tests.sim.world.late import LaneLate
from tests.support.disk.in_place import must_be_in_a_place

BEFORE_MS = {Lane.FLUSH: (0.2, 6.0), Lane.BULK_FLUSH: (0.2, 6.0), Lane.STORE: (0.5, 15.0), Lane.COPY: (0.1, 2.0)}
SLOW = 100.0  # a slow disk is so many times slower

_Call = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]", Context]
"""What to call with what, who waits for it, and the context in which it was asked for."""


class SimWorkers:
    """`slow` makes every flush a hundred times slower while set (fault D9); `late`: which calls are late, if any."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: SeededRng, late: LaneLate | None = None) -> None:
        self._loop = loop
        self._rng = rng
        self._waiting: dict[Lane, deque[_Call]] = {lane: deque() for lane in Lane}
        self._running = dict.fromkeys(Lane, 0)
        self.late = late
        self.slow = False
        self.slowed = 0

    async def run(self, function: Callable[..., Any], *args: Any, lane: Lane = Lane.FILES) -> Any:
        must_be_in_a_place(function, args)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[lane].append((function, args, future, copy_context()))
        self._start(lane)
        return await future

    @property
    def is_idle(self) -> bool:
        """Whether no thread of it works, nor waits to be heard of."""
        return not any(self._running.values())

    def _start(self, lane: Lane) -> None:
        waiting = self._waiting[lane]
        while waiting and self._running[lane] < lane.value[1]:
            function, args, future, context = waiting.popleft()
            if future.cancelled():
                continue
            self._running[lane] += 1
            low, high = BEFORE_MS.get(lane, (0.05, 1.0))
            delay_s = self._rng.uniform(low, high) / 1000
            if self.slow and lane in (Lane.FLUSH, Lane.BULK_FLUSH):
                delay_s *= SLOW
                self.slowed += 1
            begins_s = 0.0 if self.late is None else self.late.begins_s(lane)
            work = partial(self._work, lane, function, args, future, begins_s > 0.0)
            if begins_s == 0.0 or self.late is None:
                self._loop.call_later(delay_s, work, context=context)
            else:
                self.late.late.after(delay_s + begins_s, work, context)

    def _work(
        self,
        lane: Lane,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        future: asyncio.Future[Any],
        is_late: bool,
    ) -> None:
        result, failure = None, None
        try:
            result = function(*args)
        except Exception as raised:  # noqa: BLE001 - handed to whoever awaits it, as a thread pool does
            failure = raised
        after_s = self._rng.uniform(0.0, 0.001)
        heard_s = 0.0 if self.late is None else self.late.is_heard_s(lane, is_late=is_late)
        finish = partial(self._finish, lane, future, result, failure, is_late or heard_s > 0.0)
        if heard_s == 0.0 or self.late is None:
            self._loop.call_later(after_s, finish)
        else:
            self.late.late.after(after_s + heard_s, finish)

    def _finish(
        self, lane: Lane, future: asyncio.Future[Any], result: Any, failure: Exception | None, was_late: bool
    ) -> None:
        self._running[lane] -= 1
        if was_late and self.late is not None:
            self.late.over(lane)
        if not future.done():
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)
        self._start(lane)
