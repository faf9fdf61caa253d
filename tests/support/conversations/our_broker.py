"""Our broker as the other side of a recorded conversation with Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.config.network.listeners import BROKERS
from broker.metadata.records import Node
from broker.net.dispatch import Peer
from broker.transactions.marker_sender import MarkerSender
from broker.wire.apis import ApiKey
from broker.wire.message import Message
from tests.support.brokers.broker_kit import Life, Place

_BATCHED_SINCE = 4  # AddPartitionsToTxn


class OurBroker:
    """A whole broker in virtual time, and its next lives; a connection a request."""

    held_node = 1

    def __init__(self, place: Place, life: Life) -> None:
        self._place = place
        self._life = life
        self._peers = 1
        self._node_of: Callable[[int], Node | None] | None = None

    @classmethod
    async def start(cls, *settings: str) -> OurBroker:
        place = Place(*settings)
        return cls(place, await place.start())

    def now_ms(self) -> int:
        return self._life.clock.wall_ms()

    async def ask(self, api: ApiKey, version: int, request: Message) -> Message:
        self._peers += 1
        is_brokers = api is ApiKey.ADD_PARTITIONS_TO_TXN and version >= _BATCHED_SINCE  # only they may ask it
        peer = Peer(self._peers, "127.0.0.1:50000", BROKERS if is_brokers else "PLAINTEXT")
        answer: Message = await self._life.call(api, request, version, peer)
        return answer

    async def settle(self) -> None:
        await asyncio.sleep(0.3)

    async def hold(self) -> None:
        """No broker can be reached with markers."""
        sender = self._sender
        self._node_of = sender._node_of
        sender._node_of = lambda _: None

    async def release(self) -> None:
        assert self._node_of is not None
        self._sender._node_of = self._node_of

    @property
    def _sender(self) -> MarkerSender:
        coordinator = self._life.context.transactions
        assert coordinator is not None
        return coordinator.sender

    async def restart(self) -> None:
        await self._life.stop()
        self._life = await self._place.start()

    async def stop(self) -> None:
        await self._life.stop()
