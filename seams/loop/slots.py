"""A fixed number of slots, granted in the order of requests.

A caller requests all its slots at once and holds none while it waits, so no two callers wait for each other. For one
loop.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """`count` slots; callers return them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def taken(self) -> int:
        return self._count - self._free

    async def take(self, count: int, until_s: float) -> None:
        """Wait for `count` slots until the loop's time `until_s`, after earlier callers. Raises TimeoutError. After
        TimeoutError or a cancellation the caller holds no slot.
        """
        assert 0 < count <= self._count, (count, self._count)
        if not self._waiting and self._free >= count:
            self._free -= count
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = count, given
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout_at(until_s):
                await given
        except BaseException:
            if given.done() and not given.cancelled():
                self.give_back(count)
            else:
                self._waiting.remove(waiting)
                self._give()
            raise

    def give_back(self, count: int) -> None:
        self._free += count
        assert self._free <= self._count, (self._free, self._count)
        self._give()

    def _give(self) -> None:
        while self._waiting and self._free >= self._waiting[0][0]:
            count, given = self._waiting.popleft()
            self._free -= count
            given.set_result(None)
