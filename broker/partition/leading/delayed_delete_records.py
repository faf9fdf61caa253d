"""Who waits until the replicas of one partition know where its log starts: DeleteRecords (R7).

Always true: each is told once, on the loop, when every active member of the union fetched with that start, or when the
leadership ends. Must not know who moves the start, nor how replicas report.
"""

from __future__ import annotations

import asyncio

from broker.replication.leader import Leader


class DelayedDeleteRecords:
    """Of one partition; false while nobody waits."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, offset: int) -> asyncio.Future[None]:
        """Done when all know a start at or above `offset`; whoever waits no longer cancels it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((offset, future))
        return future

    def look(self, leader: Leader) -> None:
        """A replica reported, or the image has another row."""
        left = []
        for offset, future in self._waiting:
            if future.done():
                continue
            if leader.all_know_start(offset):
                future.set_result(None)
            else:
                left.append((offset, future))
        self._waiting = left

    def fail(self, why: Exception) -> None:
        """It is led no more."""
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(why)
