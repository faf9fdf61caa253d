"""A transaction coordinator over a log in memory and brokers that take markers, in virtual time.

Owns what each partition took, in order. Always true: a marker is in `taken` before its answer; a stalled partition
answers REQUEST_TIMED_OUT after the leader's wait; while a broker is `silent` its requests end with TimeoutError.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from broker.config.transactions import TransactionConfig
from broker.error_codes import ErrorCode
from broker.metadata.records import NO_LEADER, Node
from broker.peers.links import Links
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.marker_sender import MarkerSender
from broker.transactions.pending_markers import DELETED
from broker.transactions.transaction import Transaction
from broker.wire.codec import decode_request, encode_request
from broker.wire.messages import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseMarker,
    WriteTxnMarkersResponsePartition,
    WriteTxnMarkersResponseTopic,
)
from logformat.transaction_marker import TransactionMarker
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.fast_loop import FastClock
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog

WRITE_TXN_MARKERS = 27
LEADER_WAIT_S = 10.0
LINK_TIMEOUT_S = 15.0


class _Link:
    def __init__(self, world: TransactionWorld, node_id: int) -> None:
        self._world = world
        self._node_id = node_id
        self.in_flight = 0

    async def ask(self, request: WriteTxnMarkersRequest, version: int, timeout_s: float) -> WriteTxnMarkersResponse:
        # Through the bytes, so that only what the version carries arrives.
        sent = decode_request(WRITE_TXN_MARKERS, version, memoryview(encode_bytes(request, version)))
        return await self._world.take(self._node_id, cast(WriteTxnMarkersRequest, sent))


def encode_bytes(request: WriteTxnMarkersRequest, version: int) -> bytes:
    return b"".join(bytes(part) for part in _parts(encode_request(WRITE_TXN_MARKERS, version, request)))


def _parts(encoded: Any) -> Sequence[Any]:
    return [encoded] if isinstance(encoded, bytes | bytearray | memoryview) else encoded


class TransactionWorld:
    """`nodes`: brokers by id. Partitions of `topic` are led as `leaders` says; the coordinator is broker 1."""

    def __init__(self, partitions: int = 2, **limits: int) -> None:
        self.memory = MemoryOffsetsLog(partitions)
        self.failures: list[BaseException] = []
        self.tasks = Tasks(lambda _, failure: self.failures.append(failure))
        self.leaders: dict[TransactionalPartition, int] = {}
        self.deleted: set[UUID] = set()
        self.taken: dict[TransactionalPartition, list[TransactionMarker]] = defaultdict(list)
        self.errors: dict[TransactionalPartition, ErrorCode] = {}
        self.stalled: set[TransactionalPartition] = set()
        self.silent: set[int] = set()
        self.held: asyncio.Event | None = None
        """While it is set requests wait here before their markers are taken."""
        self.requests: list[WriteTxnMarkersRequest] = []
        self.next_id = 1_000
        self.session = True
        self.config = TransactionConfig(**limits)
        self.clock = FastClock()
        self.coordinator = self.make()

    def make(self) -> TransactionCoordinator:
        """Another process over the same log."""
        links = cast(Links, SimpleNamespace(to=lambda node, _: _Link(self, node)))
        coordinator = TransactionCoordinator(
            self.memory,
            self.clock,
            SeededRng(1),
            self.config,
            self.tasks,
            self.give_id,
            lambda ended: MarkerSender(
                links, lambda node: cast(Node, node), self.leader_of, self.clock, self.tasks, ended
            ),
            topic_id_of=lambda _: UUID(int=0),
            in_session=lambda: self.session,
        )
        coordinator.start()
        return coordinator

    def give_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def leader_of(self, partition: TransactionalPartition) -> int:
        return DELETED if partition.topic_id in self.deleted else self.leaders.get(partition, NO_LEADER)

    def partition(self, index: int, topic: int = 1, leader: int = 1) -> TransactionalPartition:
        made = TransactionalPartition(f"t{topic}", UUID(int=topic), index)
        self.leaders.setdefault(made, leader)
        return made

    async def led(self, epoch: int = 1, coordinator: TransactionCoordinator | None = None) -> None:
        coordinator = coordinator or self.coordinator
        for index in range(self.memory.partitions):
            coordinator.log.lead(self.memory.shard_log(index, epoch))
        await coordinator.log.wait_loaded()

    def resign(self) -> None:
        for index in range(self.memory.partitions):
            self.coordinator.log.resign(index)

    async def take(self, node_id: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.requests.append(request)
        await asyncio.sleep(0.001)
        if node_id in self.silent:
            await asyncio.sleep(LINK_TIMEOUT_S)
            raise TimeoutError(f"broker {node_id}: no answer")
        if self.held is not None:
            await self.held.wait()
        waits = False

        def mark(at: TransactionalPartition, marker: TransactionMarker) -> ErrorCode:
            nonlocal waits
            error = self.errors.get(at, ErrorCode.NONE)
            if self.leader_of(at) != node_id:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if error is ErrorCode.NONE:
                self.taken[at].append(marker)
                if at in self.stalled:
                    error, waits = ErrorCode.REQUEST_TIMED_OUT, True
            return error

        answer = errors_by_row(request, mark)
        if waits:
            await asyncio.sleep(LEADER_WAIT_S)
        return answer

    # ---- as a client -----------------------------------------------------------------------------------------------

    async def begin(
        self, transactional_id: str, *partitions: TransactionalPartition, timeout_ms: int = 60_000
    ) -> tuple[int, int]:
        """Start the id, and add partitions; its producer id and epoch."""
        reply = await self.coordinator.init_producer_id(transactional_id, timeout_ms, None)
        assert reply.error is ErrorCode.NONE, reply
        await self.add(transactional_id, reply.producer_id, reply.producer_epoch, *partitions)
        return reply.producer_id, reply.producer_epoch

    async def add(self, transactional_id: str, pid: int, epoch: int, *partitions: TransactionalPartition) -> None:
        error = await self.coordinator.add_partitions(transactional_id, pid, epoch, partitions, 2)
        assert error is ErrorCode.NONE, error

    def state(self, transactional_id: str) -> str:
        error, found = self.coordinator.describe(transactional_id)
        return found.state.title if found is not None else error.name

    def known(self, transactional_id: str) -> Transaction:
        found = self.coordinator.describe(transactional_id)[1]
        assert found is not None
        return found

    async def settle(self, seconds: float = 0.2) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self.coordinator.close()
        await self.tasks.close()
        assert not self.failures, self.failures


def errors_by_row(
    request: WriteTxnMarkersRequest, mark: Callable[[TransactionalPartition, TransactionMarker], ErrorCode]
) -> WriteTxnMarkersResponse:
    """The answer of a broker: what `mark` says of each row, asked in order."""
    answer = WriteTxnMarkersResponse()
    for sent in request.markers:
        marker, row = _marker(sent), WriteTxnMarkersResponseMarker(producer_id=sent.producer_id)
        for topic in sent.topics:
            rows = [
                WriteTxnMarkersResponsePartition(
                    partition_index=index,
                    error_code=mark(TransactionalPartition(topic.name, topic.topic_id, index), marker),
                )
                for index in topic.partition_indexes
            ]
            row.topics.append(WriteTxnMarkersResponseTopic(name=topic.name, partitions=rows))
        answer.markers.append(row)
    return answer


def _marker(sent: Any) -> TransactionMarker:
    return TransactionMarker(
        sent.producer_id,
        sent.producer_epoch,
        sent.transaction_result,
        sent.coordinator_epoch,
        sent.transaction_version,
    )
