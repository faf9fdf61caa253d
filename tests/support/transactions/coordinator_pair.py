"""Two brokers that coordinate one partition of `__transaction_state` each, and ask each other as brokers do.

Broker 1 is here: `coordinators` is its view. A request to broker 2 goes through its bytes and the real handler. Always
true: `arrived` is awaited between a request's arrival and its handler; the answers of a broker in `lost` are lost after
the handler; a broker in `gone` has no session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

from broker.context import Call, Context
from broker.handlers.transactions.admin import handle_list_transactions
from broker.handlers.transactions.coordinator import handle_add_partitions_to_txn, handle_end_txn
from broker.metadata.records import NO_LEADER, Node
from broker.peers.links import Links
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.peers import CoordinatorOutcomes, Coordinators, CoordinatorVerifier
from broker.wire import messages as wire
from broker.wire.codec import decode_request, decode_response, encode_request, encode_response
from broker.wire.message import Message
from tests.support.transactions.transaction_world import TransactionWorld

Handler = Callable[[Any, Any, Call], Awaitable[Message]]
_HANDLERS: Final[dict[type[Message], tuple[int, Handler]]] = {
    wire.AddPartitionsToTxnRequest: (24, handle_add_partitions_to_txn),
    wire.EndTxnRequest: (26, handle_end_txn),
    wire.ListTransactionsRequest: (66, handle_list_transactions),
}
AT_1, AT_2 = "id-b", "id-a"
"""Ids that broker 1 and broker 2 coordinate."""


class _PeerLink:
    def __init__(self, pair: CoordinatorPair, node_id: int) -> None:
        self._pair = pair
        self._node_id = node_id
        self.in_flight = 0

    async def ask(self, request: Message, version: int, timeout_s: float) -> Message:
        api, handler = _HANDLERS[type(request)]
        sent = decode_request(api, version, _joined(encode_request(api, version, request)))
        await self._pair.arrived(request)
        call = Call(version, cast(Any, None), "broker")
        answer = await handler(self._pair.context_of(self._node_id), sent, call)
        if self._node_id in self._pair.lost:
            raise TimeoutError(f"broker {self._node_id}: no answer")
        return decode_response(api, version, _joined(encode_response(api, version, answer)))


def _joined(parts: list[Any]) -> memoryview:
    return memoryview(b"".join(bytes(part) for part in parts))


class CoordinatorPair:
    def __init__(self) -> None:
        self.world = TransactionWorld(partitions=2)
        self.by_node: dict[int, TransactionCoordinator] = {1: self.world.coordinator, 2: self.world.make()}
        self.led = {0: 1, 1: 2}
        self.lost: set[int] = set()
        self.gone: set[int] = set()
        self.asked: list[Message] = []
        self.when_arrived: Callable[[Message], Awaitable[None]] | None = None
        memory = cast(Any, self.world.memory)
        memory.leader = lambda index: self.led.get(index, NO_LEADER)
        memory.leaders = lambda: sorted(set(self.led.values())) if len(self.led) == 2 else None
        links = cast(Links, SimpleNamespace(to=lambda node, _: _PeerLink(self, node.node_id)))
        self.coordinators = Coordinators(self.by_node[1], links, 1, self._node_of)
        self.verifier = CoordinatorVerifier(self.coordinators)
        self.outcomes = CoordinatorOutcomes(self.coordinators)

    async def ready(self) -> None:
        for index, node_id in self.led.items():
            coordinator = self.by_node[node_id]
            coordinator.log.lead(self.world.memory.shard_log(index, 1))
            await coordinator.log.wait_loaded()

    def _node_of(self, node_id: int) -> Node | None:
        return None if node_id in self.gone else cast(Node, SimpleNamespace(node_id=node_id))

    async def arrived(self, request: Message) -> None:
        self.asked.append(request)
        await asyncio.sleep(0.001)
        if self.when_arrived is not None:
            await self.when_arrived(request)

    def context_of(self, node_id: int) -> Context:
        """What the handlers read. Topics have the ids that `TransactionWorld.partition` gives them."""
        facts = {f"t{topic}": SimpleNamespace(topic_id=UUID(int=topic), partitions=10) for topic in (1, 2)}
        parts = SimpleNamespace(
            transactions=self.by_node[node_id],
            metadata=SimpleNamespace(facts=facts.get),
            world=SimpleNamespace(clock=self.world.clock),
        )
        return cast(Context, parts)

    def of(self, transactional_id: str) -> TransactionCoordinator:
        return self.by_node[self.by_node[1].node_of(transactional_id)]

    async def begin(self, transactional_id: str, at: TransactionalPartition, version: int) -> tuple[int, int]:
        """An open transaction of the id's producer: its producer id and epoch."""
        coordinator = self.of(transactional_id)
        reply = await coordinator.init_producer_id(transactional_id, 60_000, None)
        pid, epoch = reply.producer_id, reply.producer_epoch
        assert await coordinator.add_partitions(transactional_id, pid, epoch, [at], version) == 0
        return pid, epoch

    def state(self, transactional_id: str) -> str:
        error, found = self.of(transactional_id).describe(transactional_id)
        return found.state.title if found is not None else error.name

    async def close(self) -> None:
        await self.by_node[2].close()
        await self.world.close()
