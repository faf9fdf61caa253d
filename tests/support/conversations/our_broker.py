"""Our broker as the other side of a recorded conversation with Kafka."""

from __future__ import annotations

import asyncio

from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.message import Message
from tests.support.brokers.broker_kit import Life, Place


class OurBroker:
    """A whole broker in virtual time, and its next lives; a connection a request."""

    def __init__(self, place: Place, life: Life) -> None:
        self._place = place
        self._life = life
        self._peers = 1

    @classmethod
    async def start(cls) -> OurBroker:
        place = Place()
        return cls(place, await place.start())

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message:
        self._peers += 1
        peer = Peer(self._peers, "127.0.0.1:50000", "PLAINTEXT")
        answer: Message = await self._life.call(api, request, version, peer)
        return answer

    async def settle(self) -> None:
        await asyncio.sleep(0.3)

    async def restart(self) -> None:
        await self._life.stop()
        self._life = await self._place.start()

    async def stop(self) -> None:
        await self._life.stop()
