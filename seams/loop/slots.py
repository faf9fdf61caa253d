"""A fixed number of slots, granted to owners in turn, and to the callers of one owner in the order of their requests.

A caller requests all its slots at once and holds none while it waits, so no two callers wait for each other. For one
loop.
"""

from __future__ import annotations

import asyncio


class Slots:
    """`count` slots; callers return them. One owner holds at most `owner_max` of them, by default all."""

    def __init__(self, count: int, owner_max: int | None = None) -> None:
        self._count = count
        self._free = count
        self._owner_max = owner_max or count
        self._held: dict[str, int] = {}  # by owner
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}  # by owner; whose turn is next is first

    @property
    def taken(self) -> int:
        return self._count - self._free

    async def take(self, count: int, until_s: float, owner: str = "") -> None:
        """Wait for `count` slots until the loop's time `until_s`. Raises TimeoutError. After TimeoutError or a
        cancellation the caller holds no slot.
        """
        assert 0 < count <= self._owner_max <= self._count, (count, self._owner_max, self._count)
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, {})[given] = count
        self._give()
        if given.done():
            return
        try:
            async with asyncio.timeout_at(until_s):
                await asyncio.shield(given)  # a cancelled future could not be given slots before its caller runs
        except BaseException:
            if given.done():
                self.give_back(count, owner)
            else:
                self._remove(owner, given)
                self._give()
            raise

    def give_back(self, count: int, owner: str = "") -> None:
        self._free += count
        self._held[owner] -= count
        assert self._held[owner] >= 0, (owner, self._held[owner])
        if not self._held[owner]:
            del self._held[owner]
        self._give()

    def _give(self) -> None:
        while (owner := self._next_owner()) is not None:
            callers = self._waiting[owner]
            given, count = next(iter(callers.items()))
            self._free -= count
            self._held[owner] = self._held.get(owner, 0) + count
            self._remove(owner, given)
            if callers:
                self._waiting[owner] = self._waiting.pop(owner)  # behind the other owners
            given.set_result(None)

    def _next_owner(self) -> str | None:
        """The owner whose turn is next, if there are slots for its first caller. Owners that hold `owner_max` are
        skipped. A caller that wants few slots does not overtake one that wants more."""
        for owner, callers in self._waiting.items():
            count = next(iter(callers.values()))
            if self._held.get(owner, 0) + count <= self._owner_max:
                return owner if count <= self._free else None
        return None

    def _remove(self, owner: str, given: asyncio.Future[None]) -> None:
        callers = self._waiting[owner]
        del callers[given]
        if not callers:
            del self._waiting[owner]
