"""Slots of large requests: bounds the number that are in work at once, because their objects take up to sixty times the
bytes of a frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker.net.dispatch import CloseConnection

_WAIT_S: Final = 60.0


class Slots:
    """The number of large requests that are in work at once. Brokers have separate slots, so that clients cannot delay
    replicas."""

    def __init__(self, at_once: int) -> None:
        self._of = {of_brokers: asyncio.Semaphore(at_once) for of_brokers in (False, True)}

    @asynccontextmanager
    async def take(self, *, of_brokers: bool) -> AsyncIterator[None]:
        """Raises CloseConnection if there is no slot for `_WAIT_S`."""
        slots = self._of[of_brokers]
        try:
            async with asyncio.timeout(_WAIT_S):
                await slots.acquire()
        except TimeoutError:
            raise CloseConnection(f"other large requests were in work for {_WAIT_S:.0f} s") from None
        try:
            yield
        finally:
            slots.release()
