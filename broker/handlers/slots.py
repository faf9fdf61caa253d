"""Slots of large requests: bounds the number that are in work at once, because their objects take up to sixty times the
bytes of a frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker.net.dispatch import ANONYMOUS, CloseConnection, Peer
from seams.loop.slots import Slots

_WAIT_S: Final = 60.0


def owner_of(peer: Peer) -> str:
    """The user for whom a slot is taken. Users take slots in turn, so more connections give a user no more slots.
    Clients without a user name count as one user per address."""
    return peer.host if peer.principal == ANONYMOUS else peer.principal


class RequestSlots:
    """The number of large requests that are in work at once. Brokers have separate slots, so that clients cannot delay
    replicas. If there are several, one user cannot hold all of them: a request may hold its slot while it waits."""

    def __init__(self, at_once: int) -> None:
        self._of = {of_brokers: Slots(at_once, max(1, at_once - 1)) for of_brokers in (False, True)}

    @asynccontextmanager
    async def take(self, peer: Peer, *, of_brokers: bool) -> AsyncIterator[None]:
        """Raises CloseConnection if there is no slot for `_WAIT_S`, or if the connection was closed meanwhile: its
        client may have sent the request again, and a late marker or DeleteTopics would end what began since."""
        slots, owner = self._of[of_brokers], owner_of(peer)
        try:
            await slots.take(1, asyncio.get_running_loop().time() + _WAIT_S, owner)
        except TimeoutError:
            raise CloseConnection(f"other large requests took all places for {_WAIT_S:.0f} s") from None
        try:
            if peer.is_gone:
                raise CloseConnection("the client is gone")
            yield
        finally:
            slots.give_back(1, owner)
