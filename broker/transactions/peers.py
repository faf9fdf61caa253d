"""Queries of partition leaders to transaction coordinators, on this broker or others.

- `CoordinatorVerifier` asks whether a partition belongs to the open transaction (TX4), by one request to the id's
  coordinator.
- `CoordinatorOutcomes` asks for the outcome of a transaction (TX10), by one request to each coordinator. The answer is
  used only if every partition of `__transaction_state` answered, and only for exactly this transaction (TX31)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from broker.error_codes import ErrorCode
from broker.metadata.records import NO_LEADER, Node
from broker.peers.links import Links
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.interfaces import Decision, TransactionalPartition
from broker.transactions.transaction import EPOCH_MAX, STATE_BY_TITLE, TV_2, Transaction, TransactionState
from broker.wire.message import Message
from broker.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTransaction,
    AddPartitionsToTxnRequestTransactionTopic,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

log = logging.getLogger(__name__)

ADD_VERSION: Final = 5
LIST_VERSION: Final = 2
END_VERSION: Final = 5
_TIMEOUT_S: Final = 12.0  # a coordinator waits up to 10 s for its log
_LANES: Final = 4  # connections: answers come in order, so a slow one delays those behind it


@dataclass(slots=True, eq=False, repr=False)
class Coordinators:
    """Requests to the coordinators of other brokers. `node_of`: the session of a node, by this broker's image."""

    local: TransactionCoordinator
    links: Links
    node_id: int
    node_of: Callable[[int], Node | None]

    async def ask(self, node_id: int, request: Message, version: int) -> Message:
        """Ask the broker `node_id`. Raises ConnectionError, TimeoutError."""
        node = self.node_of(node_id)
        if node is None:
            raise ConnectionError(f"broker {node_id} has no session")
        lanes = [self.links.to(node, f"transactions-{lane}") for lane in range(_LANES)]
        return await min(lanes, key=lambda lane: lane.in_flight).ask(request, version, _TIMEOUT_S)


class CoordinatorVerifier:
    """A `TransactionVerifier` that asks the coordinator on this or another broker."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TransactionalPartition],
        *,
        add: bool,
    ) -> Mapping[TransactionalPartition, ErrorCode]:
        local = self._coordinators.local
        node_id = local.node_of(transactional_id)
        if node_id == self._coordinators.node_id:
            if not add:
                return local.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
            error = await local.add_partitions(transactional_id, producer_id, producer_epoch, partitions, TV_2)
            return dict.fromkeys(partitions, error)
        if node_id == NO_LEADER:
            return dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        request = _add_request(transactional_id, producer_id, producer_epoch, partitions, add=add)
        try:
            answer = await self._coordinators.ask(node_id, request, ADD_VERSION)
        except (ConnectionError, TimeoutError) as unanswered:
            log.debug("the coordinator of %r, broker %d: %s", transactional_id, node_id, unanswered)
            return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
        return _add_errors(cast(AddPartitionsToTxnResponse, answer), partitions)

    async def settled(self, transactional_id: str, timeout_s: float) -> None:
        """Wait until a retry may succeed. A local coordinator ends the wait early. A remote one is not asked, because a
        waiting request would delay the requests behind it."""
        local = self._coordinators.local
        if local.node_of(transactional_id) == self._coordinators.node_id:
            await local.settled(transactional_id, timeout_s)
        else:
            await asyncio.sleep(timeout_s)


def _add_request(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    partitions: Sequence[TransactionalPartition],
    *,
    add: bool,
) -> AddPartitionsToTxnRequest:
    by_topic: dict[str, AddPartitionsToTxnRequestTransactionTopic] = {}
    for topic, topic_id, partition in partitions:
        row = by_topic.get(topic)
        if row is None:
            row = by_topic[topic] = AddPartitionsToTxnRequestTransactionTopic(name=topic, topic_id=topic_id)
        row.partitions.append(partition)
    transaction = AddPartitionsToTxnRequestTransaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        verify_only=not add,
        topics=list(by_topic.values()),
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def _add_errors(
    answer: AddPartitionsToTxnResponse, partitions: Sequence[TransactionalPartition]
) -> Mapping[TransactionalPartition, ErrorCode]:
    if answer.error_code != ErrorCode.NONE:
        return dict.fromkeys(partitions, ErrorCode(answer.error_code))
    found = {
        (topic.name, row.partition_index): ErrorCode(row.partition_error_code)
        for result in answer.results_by_transaction
        for topic in result.topic_results
        for row in topic.results_by_partition
    }
    return {at: found.get((at.topic, at.partition), ErrorCode.UNKNOWN_SERVER_ERROR) for at in partitions}


class _Found(NamedTuple):
    """The part of a coordinator's state of a transaction that decides the outcome."""

    node_id: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    client_version: int
    has_partition: bool
    started_ms: int
    previous_producer_id: int


def decision_of(found: _Found, producer_id: int, producer_epoch: int) -> Decision:
    """The outcome of the transaction that a producer opened with `producer_epoch` in a partition, by the state of its
    transactional id (TX31). In transaction version 2 the epoch identifies the transaction. Before version 2 only an
    unfinished transaction that lists the partition can be the same one. If a transaction had the last epoch, its end
    changed the producer id. Pure."""
    state = found.state
    is_complete = state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    if found.producer_id != producer_id:
        is_rotated = is_complete and found.previous_producer_id == producer_id and found.producer_epoch == 0
        if not is_rotated or producer_epoch != EPOCH_MAX - 1:
            return Decision.UNKNOWN
        return Decision.COMMITTED if state is TransactionState.COMPLETE_COMMIT else Decision.ABORTED
    if state is TransactionState.ONGOING:
        is_same = found.producer_epoch == producer_epoch and found.has_partition
        return Decision.ONGOING if is_same else Decision.UNKNOWN
    is_ended_2 = found.client_version >= TV_2 and found.producer_epoch == producer_epoch + 1
    is_ended_1 = found.client_version < TV_2 and found.producer_epoch == producer_epoch and found.has_partition
    if state.is_prepared and ((is_ended_2 and found.has_partition) or is_ended_1):
        is_commit = state is TransactionState.PREPARE_COMMIT
        return Decision.COMMITTED if is_commit else Decision.ABORTED
    if is_ended_2 and is_complete:
        return Decision.COMMITTED if state is TransactionState.COMPLETE_COMMIT else Decision.ABORTED
    return Decision.UNKNOWN


class CoordinatorOutcomes:
    """A `TransactionOutcomes` that asks all coordinators."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators

    async def decide(
        self, partition: TransactionalPartition, producer_id: int, producer_epoch: int, *, aborts: bool
    ) -> Decision | None:
        rows = await self._list(partition, [producer_id], [])
        if rows is None:
            return None
        decisions = {decision_of(row, producer_id, producer_epoch): row for row in rows}
        if (ongoing := decisions.get(Decision.ONGOING)) is not None:
            if not aborts:
                return Decision.ONGOING
            return Decision.ABORTED if await self._abort(ongoing) else None
        return next((known for known in decisions if known is not Decision.UNKNOWN), Decision.UNKNOWN)

    async def abort_ongoing(self, partition: TransactionalPartition) -> bool:
        rows = await self._list(partition, [], [TransactionState.ONGOING.title])
        if rows is None:
            return False
        aborted = [await self._abort(row) for row in rows if row.has_partition]
        return all(aborted)

    async def _abort(self, found: _Found) -> bool:
        """Abort the transaction by an EndTxn, which uses the producer's epoch, so the producer can no longer write in
        this transaction. The request names the start time, because before version 2 the next transaction may have the
        same epoch."""
        local = self._coordinators.local
        args = found.transactional_id, found.producer_id, found.producer_epoch
        if found.node_id == self._coordinators.node_id:
            error = (await local.end(*args, TV_2, is_commit=False, started_ms=found.started_ms)).error
        else:
            try:
                request = EndTxnRequest(*args, False, found.started_ms)
                answer = await self._coordinators.ask(found.node_id, request, END_VERSION)
            except (ConnectionError, TimeoutError) as unanswered:
                log.warning(
                    "the abort of %r by broker %d failed: %s", found.transactional_id, found.node_id, unanswered
                )
                return False
            error = ErrorCode(cast(EndTxnResponse, answer).error_code)
        return error is ErrorCode.NONE

    async def _list(
        self, partition: TransactionalPartition, producer_ids: list[int], states: list[str]
    ) -> list[_Found] | None:
        """The matching transactions of all coordinators. None if some partition of `__transaction_state` gave no
        answer."""
        local = self._coordinators.local
        nodes = local.coordinators()
        if nodes is None:
            return None
        if not nodes:
            return []  # no client has used a transactional id
        request = ListTransactionsRequest(
            state_filters=states,
            producer_id_filters=producer_ids,
            partition_topic_id=partition.topic_id,
            partition_index=partition.partition,
        )
        answers = await asyncio.gather(*[self._list_at(node, request, partition) for node in nodes])
        found: list[_Found] = []
        led: set[int] = set()
        for answer in answers:
            if answer is None:
                return None
            rows, partitions = answer
            found += rows
            led.update(partitions)
        return found if led >= set(range(local.partitions)) else None

    async def _list_at(
        self, node_id: int, request: ListTransactionsRequest, partition: TransactionalPartition
    ) -> tuple[list[_Found], Sequence[int]] | None:
        local = self._coordinators.local
        if node_id == self._coordinators.node_id:
            wanted_ids, wanted_states = frozenset(request.producer_id_filters), frozenset(request.state_filters)

            def is_wanted(transaction: Transaction) -> bool:
                of_id = not wanted_ids or transaction.producer_id in wanted_ids
                of_id = of_id or (transaction.state.is_idle and transaction.previous_producer_id in wanted_ids)
                return of_id and (not wanted_states or transaction.state.title in wanted_states)

            listing = await local.listed(is_wanted)
            if listing.error is not ErrorCode.NONE:
                return None
            rows = [
                _Found(
                    node_id,
                    one.transactional_id,
                    one.producer_id,
                    one.producer_epoch,
                    one.state,
                    one.client_version,
                    partition in one.partitions,
                    one.started_ms,
                    one.previous_producer_id,
                )
                for one, _ in listing.found
            ]
            return rows, listing.partitions
        try:
            answer = cast(ListTransactionsResponse, await self._coordinators.ask(node_id, request, LIST_VERSION))
        except (ConnectionError, TimeoutError) as unanswered:
            log.debug("transactions of broker %d: %s", node_id, unanswered)
            return None
        if answer.error_code != ErrorCode.NONE:
            return None
        if any(row.transaction_state not in STATE_BY_TITLE for row in answer.transaction_states):
            return None  # a newer broker sent a state that is unknown here
        rows = [
            _Found(
                node_id,
                row.transactional_id,
                row.producer_id,
                row.producer_epoch,
                STATE_BY_TITLE[row.transaction_state],
                row.client_version,
                row.has_partition,
                row.started_ms,
                row.previous_producer_id,
            )
            for row in answer.transaction_states
        ]
        return rows, answer.led_partitions
