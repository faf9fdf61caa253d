"""A fixed number of slots, granted to owners in turn, and to the callers of one owner in the order of their requests.

A caller requests all its slots at once and holds none while it waits, so no two callers wait for each other. For one
loop.
"""

from __future__ import annotations

import asyncio


class Slots:
    """`count` slots; callers return them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = count
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}  # by owner; whose turn is next is first

    @property
    def taken(self) -> int:
        return self._count - self._free

    async def take(self, count: int, until_s: float, owner: str = "") -> None:
        """Wait for `count` slots until the loop's time `until_s`. Raises TimeoutError. After TimeoutError or a
        cancellation the caller holds no slot.
        """
        assert 0 < count <= self._count, (count, self._count)
        if not self._waiting and self._free >= count:
            self._free -= count
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, {})[given] = count
        try:
            async with asyncio.timeout_at(until_s):
                await asyncio.shield(given)  # a cancelled future could not be given slots before its caller runs
        except BaseException:
            if given.done():
                self.give_back(count)
            else:
                self._remove(owner, given)
                self._give()
            raise

    def give_back(self, count: int) -> None:
        self._free += count
        assert self._free <= self._count, (self._free, self._count)
        self._give()

    def _give(self) -> None:
        while self._waiting:
            owner, callers = next(iter(self._waiting.items()))
            given, count = next(iter(callers.items()))
            if count > self._free:
                return
            self._free -= count
            self._remove(owner, given)
            if callers:
                self._waiting[owner] = self._waiting.pop(owner)  # behind the other owners
            given.set_result(None)

    def _remove(self, owner: str, given: asyncio.Future[None]) -> None:
        callers = self._waiting[owner]
        del callers[given]
        if not callers:
            del self._waiting[owner]
