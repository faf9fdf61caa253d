"""A `TransactionWorld` whose partitions are a ledger's, with producers, coordinators that move, and faults of requests.

Always true: a coordinator whose epoch is over writes nothing (its log is fenced); a marker request reaches its broker
within the sender's time-out, or is lost. `plan` holds what happens to the next marker requests, one each. A request is
later than its time-out only in version 2, where the epoch tells it: before, nothing can (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from broker.error_codes import ErrorCode
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.machine import Reply
from broker.transactions.transaction import TV_2
from broker.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from logformat.errors import Fenced
from logformat.transaction_marker import TransactionMarker
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog, MemoryPartition
from tests.support.transactions.ledger import ClientTransaction, Ledger
from tests.support.transactions.transaction_world import LINK_TIMEOUT_S, TransactionWorld, errors_by_row

TIMEOUT_MS: Final = 15_000
PLANS: Final = ("slow", "unsent", "lost", "late", "half", "stalled")
_RETRIED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_GIVES_UP_S: Final = 8.0


class _FencedPartition(MemoryPartition):
    """Of one leader epoch: a later one ends its writes."""

    def __init__(self, log: MemoryOffsetsLog, index: int, leader_epoch: int, world: MarkedWorld) -> None:
        super().__init__(log, index, leader_epoch)
        self._world = world

    def _write(self, batch: bytes) -> int:
        if self.leader_epoch < self._world.epoch:
            raise Fenced(f"leader epoch {self.leader_epoch} is over")
        return super()._write(batch)


class MarkedWorld(TransactionWorld):
    def __init__(self) -> None:
        super().__init__(partitions=1, request_timeout_ms=3_000, abort_interval_ms=5_000)
        self.ledger = Ledger()
        self.plan: list[str] = []
        self.epoch = 0
        self.all = [self.coordinator]
        self.zombie: TransactionCoordinator | None = None

    # ---- coordinators ----------------------------------------------------------------------------------------------

    def move(self, *, same: bool, late: bool) -> None:
        """Another leader epoch: of the same process or a new one. `late`: the one before does not know it yet."""
        before = self.coordinator
        self.bury()
        if late and not same:
            self.zombie = before
        else:
            before.log.resign(0)
        if not same:
            self.coordinator = self.make()
            self.all.append(self.coordinator)
        self.epoch += 1
        self.coordinator.log.lead(_FencedPartition(self.memory, 0, self.epoch, self))

    def bury(self) -> None:
        if self.zombie is not None:
            self.zombie.log.resign(0)
            self.zombie = None

    def image_changed(self) -> None:
        for one in self.all:
            one.sender.image_changed()

    async def take(self, node_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        plan = self.plan.pop(0) if self.plan else ""
        if plan == "late" and any(marker.transaction_version < TV_2 for marker in request.markers):
            plan = "unsent"
        await asyncio.sleep(4.0 if plan == "slow" else 0.001)
        if plan in ("unsent", "late"):
            await asyncio.sleep(LINK_TIMEOUT_S)
            if plan == "late":
                asyncio.get_running_loop().call_later(1.0, self._marked, node_id, request, plan)
            raise TimeoutError(f"broker {node_id}: no answer")
        answer = self._marked(node_id, request, plan)
        if plan == "lost":
            await asyncio.sleep(LINK_TIMEOUT_S)
            raise TimeoutError(f"broker {node_id}: no answer")
        if plan == "stalled":
            await asyncio.sleep(5.0)
        return answer

    def _marked(self, node_id: int, request: WriteTxnMarkersRequest, plan: str) -> WriteTxnMarkersResponse:
        def mark(at: TransactionalPartition, marker: TransactionMarker) -> ErrorCode:
            if self.leader_of(at) != node_id:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            if plan == "half" and at.partition % 2:
                return ErrorCode.NOT_ENOUGH_REPLICAS
            error = self.ledger.mark(at, marker)
            return ErrorCode.REQUEST_TIMED_OUT if plan == "stalled" and error is ErrorCode.NONE else error

        return errors_by_row(request, mark)

    async def bury_all(self) -> None:
        for one in self.all:
            if one is not self.coordinator:
                await one.close()
        await self.close()


class Producer:
    """A client of one transactional id: one step at a time. It commits only what was appended, and begins anew after
    an answer that ends it, or none for long."""

    def __init__(self, world: MarkedWorld, transactional_id: str, version: int, pause_s: float) -> None:
        self.world = world
        self.id = transactional_id
        self.version = version
        self.pause_s = pause_s
        self.transaction: ClientTransaction | None = None
        self.is_alive = False
        self.must_abort = False
        self.pid = self.epoch = -1

    async def _answer(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _GIVES_UP_S
        while True:
            answer = await ask()
            error = answer.error if isinstance(answer, Reply) else answer
            if error not in _RETRIED or loop.time() > until_s:
                return answer
            await asyncio.sleep(self.pause_s)

    async def begin_anew(self) -> None:
        self.transaction, self.must_abort = None, False
        reply = await self._answer(lambda: self.world.coordinator.init_producer_id(self.id, TIMEOUT_MS, None))
        self.is_alive = reply.error is ErrorCode.NONE
        self.pid, self.epoch = reply.producer_id, reply.producer_epoch

    async def produce(self, at: TransactionalPartition) -> None:
        if not self.is_alive:
            await self.begin_anew()
        if not self.is_alive or self.must_abort:
            return
        if self.transaction is None:
            self.transaction = self.world.ledger.begin()
        self.must_abort = not await self._append(at, self.transaction)

    async def _append(self, at: TransactionalPartition, transaction: ClientTransaction) -> bool:
        world, ledger = self.world, self.world.ledger
        if self.version < TV_2 and await self._answer(lambda: self._add(at)) is not ErrorCode.NONE:
            return False
        guard = ledger.guard(at, self.pid)

        async def verify() -> ErrorCode:
            nonlocal guard
            guard = ledger.guard(at, self.pid)
            if ledger.has_open(at, self.pid, self.epoch):
                return ErrorCode.NONE
            if self.version >= TV_2:
                return await self._add(at)
            return world.coordinator.verify_partitions(self.id, self.pid, self.epoch, [at])[at]

        if await self._answer(verify) is not ErrorCode.NONE:
            return False
        await asyncio.sleep(0.002)
        return ledger.append(at, self.pid, self.epoch, transaction, guard)

    async def _add(self, at: TransactionalPartition) -> ErrorCode:
        return await self.world.coordinator.add_partitions(self.id, self.pid, self.epoch, [at], self.version)

    async def end(self, *, is_commit: bool) -> None:
        transaction = self.transaction
        if not self.is_alive or transaction is None:
            return
        is_commit = is_commit and not self.must_abort
        transaction.asked.add(is_commit)
        reply = await self._answer(
            lambda: self.world.coordinator.end(self.id, self.pid, self.epoch, self.version, is_commit=is_commit)
        )
        self.transaction, self.must_abort = None, False
        if reply.error is not ErrorCode.NONE:
            self.is_alive = False
            return
        self.world.ledger.told(transaction, is_commit=is_commit)
        if self.version >= TV_2:
            self.pid, self.epoch = cast(int, reply.producer_id), cast(int, reply.producer_epoch)
