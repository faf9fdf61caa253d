"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: messages to the transaction coordinator and back, by
version.

Before version 2 of a request (version 4 of InitProducerId), clients get INVALID_PRODUCER_EPOCH instead of
PRODUCER_FENCED. Source: Kafka 4.3's `KafkaApis`; KIP-98, 360, 588, 890."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.security.rules.transactions import partitions_added
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.machine import Expected
from broker.transactions.transaction import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TV_0, TV_2
from broker.wire import messages as wire
from broker.wire.primitives import ZERO_UUID
from seams.loop.turns import Turns, next_turn

_FENCED_SINCE: Final = 2
_INIT_FENCED_SINCE: Final = 4
_BATCHED_SINCE: Final = 4  # AddPartitionsToTxn that brokers send
_EPOCH_BUMP_SINCE: Final = 5  # EndTxn of transaction version 2
PARTITIONS_MAX: Final = 100_000  # most partitions of one AddPartitionsToTxn, 3 µs each; a transaction takes fewer


def _coordinator(context: Context) -> TransactionCoordinator:
    assert context.transactions is not None  # without a coordinator these APIs are not served
    return context.transactions


def _shown(error: ErrorCode, version: int, fenced_since: int = _FENCED_SINCE) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


async def handle_init_producer_id(
    context: Context, request: wire.InitProducerIdRequest, call: Call
) -> wire.InitProducerIdResponse:
    """Answer with a new id for an idempotent producer, or with the next epoch of a transactional producer."""
    has_id, has_epoch = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH
    if has_id != has_epoch:
        return wire.InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    if request.transactional_id is None:
        return wire.InitProducerIdResponse(producer_id=context.producer_ids.give(), producer_epoch=0)
    reply = await _coordinator(context).init_producer_id(
        request.transactional_id,
        request.transaction_timeout_ms,
        Expected(request.producer_id, request.producer_epoch) if has_id else None,
    )
    return wire.InitProducerIdResponse(
        error_code=_shown(reply.error, call.version, _INIT_FENCED_SINCE),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


# ---- AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4 ---------------------------------------------------------------------

_Topics = Sequence[wire.AddPartitionsToTxnRequestTopic | wire.AddPartitionsToTxnRequestTransactionTopic]


async def handle_add_partitions_to_txn(
    context: Context, request: wire.AddPartitionsToTxnRequest, call: Call
) -> wire.AddPartitionsToTxnResponse:
    """AddPartitionsToTxn. Requests of version 4 and later come from brokers, for several transactions. With
    `verify_only` no partition is added."""
    if call.version < _BATCHED_SINCE:
        topics = request.v3_and_below_topics
        errors = await _add(
            context,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            topics,
            TV_0,
        )
        shown = {at: _shown(error, call.version) for at, error in errors.items()}
        return partitions_added(topics, lambda topic, index: shown[topic.name, index])
    answer = wire.AddPartitionsToTxnResponse()
    for transaction in request.transactions:
        errors = await _add(
            context,
            transaction.transactional_id,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.topics,
            TV_2,
            verify_only=transaction.verify_only,
        )
        answer.results_by_transaction.append(_result(transaction, errors))
    return answer


def _result(
    transaction: wire.AddPartitionsToTxnRequestTransaction, errors: dict[tuple[str, int], ErrorCode]
) -> wire.AddPartitionsToTxnResponseResult:
    topics = []
    for topic in transaction.topics:
        rows = []
        for index in topic.partitions:
            rows.append(
                wire.AddPartitionsToTxnResponseResultPartition(
                    partition_index=index, partition_error_code=errors[topic.name, index]
                )
            )
        topics.append(wire.AddPartitionsToTxnResponseResultTopic(name=topic.name, results_by_partition=rows))
    return wire.AddPartitionsToTxnResponseResult(transactional_id=transaction.transactional_id, topic_results=topics)


async def _add(
    context: Context,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    topics: _Topics,
    client_version: int,
    *,
    verify_only: bool = False,
) -> dict[tuple[str, int], ErrorCode]:
    """The error of each partition. Either all partitions are added or none: if a partition does not exist, the other
    partitions get OPERATION_NOT_ATTEMPTED."""
    keys = [(topic.name, index) for topic in topics for index in topic.partitions]
    if len(keys) > PARTITIONS_MAX:
        return dict.fromkeys(keys, ErrorCode.POLICY_VIOLATION)
    found: list[TransactionalPartition] = []
    unknown: set[tuple[str, int]] = set()
    turns = Turns()
    for topic in topics:
        meant = topic.topic_id if isinstance(topic, wire.AddPartitionsToTxnRequestTransactionTopic) else ZERO_UUID
        for index in topic.partitions:
            at = _partition(context, topic.name, meant, index)
            if at is None:
                unknown.add((topic.name, index))
            else:
                found.append(at)
            if turns.over():
                await next_turn()
    if unknown:
        return {
            key: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if key in unknown else ErrorCode.OPERATION_NOT_ATTEMPTED
            for key in keys
        }
    coordinator = _coordinator(context)
    if verify_only:
        verified = coordinator.verify_partitions(transactional_id, producer_id, producer_epoch, found)
        return {(at.topic, at.partition): error for at, error in verified.items()}
    error = await coordinator.add_partitions(transactional_id, producer_id, producer_epoch, found, client_version)
    return dict.fromkeys(keys, error)


def _partition(context: Context, name: str, meant: UUID, index: int) -> TransactionalPartition | None:
    """The partition of the current topic of the name; None: the partition does not exist, or the name belongs to
    another topic now."""
    facts = context.metadata.facts(name)
    if facts is None or not 0 <= index < facts.partitions or meant not in (ZERO_UUID, facts.topic_id):
        return None
    return TransactionalPartition(name, facts.topic_id, index)


async def handle_add_offsets_to_txn(
    context: Context, request: wire.AddOffsetsToTxnRequest, call: Call
) -> wire.AddOffsetsToTxnResponse:
    """The group's partition of `__consumer_offsets` joins the transaction."""
    error = await context.groups.find(request.group_id)
    at = offsets_partition(context, request.group_id)
    if error is ErrorCode.NONE and at is None:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error is ErrorCode.NONE and at is not None:
        error = await _coordinator(context).add_partitions(
            request.transactional_id, request.producer_id, request.producer_epoch, [at], TV_0
        )
    return wire.AddOffsetsToTxnResponse(error_code=_shown(error, call.version))


def offsets_partition(context: Context, group_id: str) -> TransactionalPartition | None:
    return _partition(context, OFFSETS_TOPIC, ZERO_UUID, context.groups.partition_of(group_id))


# ---- EndTxn 0-5 ------------------------------------------------------------------------------------------------------


async def handle_end_txn(context: Context, request: wire.EndTxnRequest, call: Call) -> wire.EndTxnResponse:
    """EndTxn, answered when the decision is durable. From version 5 on each end bumps the epoch, and the response has
    the new epoch."""
    bumps = call.version >= _EPOCH_BUMP_SINCE
    reply = await _coordinator(context).end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        TV_2 if bumps else TV_0,
        is_commit=request.committed,
        started_ms=request.started_ms,
    )
    return wire.EndTxnResponse(
        error_code=_shown(reply.error, call.version),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )


def named(partitions: Iterable[TransactionalPartition]) -> dict[tuple[str, UUID], list[int]]:
    """Indexes by topic, in order."""
    by_topic: dict[tuple[str, UUID], list[int]] = {}
    for topic, topic_id, index in sorted(partitions):
        by_topic.setdefault((topic, topic_id), []).append(index)
    return by_topic
