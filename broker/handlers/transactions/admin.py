"""DescribeTransactions, ListTransactions (KIP-664, KIP-994, KIP-1152).

Thermocline's additional fields are for brokers: the transaction's epoch, the client's version, whether the transaction
has a given partition, its start, and its previous producer id. The previous producer id finds a transaction whose end
took a new id. The answer also lists the partitions of `__transaction_state` that the answer covers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.handlers.transactions.coordinator import named
from broker.handlers.transactions.id_pattern import STEPS_MAX, IdPattern
from broker.internal_topics.partitioning import rows_of
from broker.security.authorizer.access import Unrestricted
from broker.security.authorizer.kinds import Operation, ResourceType
from broker.transactions.coordinator import Listed, TransactionCoordinator
from broker.transactions.transaction import STATE_BY_TITLE, Transaction, TransactionState
from broker.wire import messages as wire
from seams.loop.turns import Turns, next_turn

ANSWER_BYTES_MAX: Final = 32 << 20
_STEPS_PER_ROW: Final = 5_000  # steps of a match that take as long as a row
_HIDDEN: Final = (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)


async def handle_describe_transactions(
    context: Context, request: wire.DescribeTransactionsRequest, call: Call
) -> wire.DescribeTransactionsResponse:
    """Describe transactions. An id that is named twice is answered once."""
    coordinator = context.transactions
    answer = wire.DescribeTransactionsResponse()
    turns, room = Turns(), ANSWER_BYTES_MAX
    for transactional_id in dict.fromkeys(request.transactional_ids):
        error, found = _described_by(coordinator, transactional_id)
        if found is not None and 8 * len(found.partitions) + 500 > room:
            error, found = ErrorCode.COORDINATOR_NOT_AVAILABLE, None  # clients should request fewer at a time
        if found is None:
            answer.transaction_states.append(
                wire.DescribeTransactionsResponseState(error_code=error, transactional_id=transactional_id)
            )
        else:
            room -= 8 * len(found.partitions) + 500
            answer.transaction_states.append(_described(found))
        if turns.over(rows_of(transactional_id) + (len(found.partitions) if found else 0)):
            await next_turn()
    return answer


def _described_by(
    coordinator: TransactionCoordinator | None, transactional_id: str
) -> tuple[ErrorCode, Transaction | None]:
    """The error, or the transaction. A read-only broker (`coordinator` None) has no transactions."""
    if coordinator is None:
        return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, None
    return coordinator.describe(transactional_id)


def _described(found: Transaction) -> wire.DescribeTransactionsResponseState:
    return wire.DescribeTransactionsResponseState(
        transactional_id=found.transactional_id,
        transaction_state=found.state.title,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[
            wire.DescribeTransactionsResponseTopic(topic=topic, partitions=indexes, topic_id=topic_id)
            for (topic, topic_id), indexes in named(found.partitions).items()
        ],
    )


async def handle_list_transactions(
    context: Context, request: wire.ListTransactionsRequest, call: Call
) -> wire.ListTransactionsResponse:
    """List transactions. Unknown state names match no transaction, and the response lists them."""
    coordinator = context.transactions
    if coordinator is None:
        return wire.ListTransactionsResponse()
    states = frozenset(request.state_filters)
    ids = frozenset(request.producer_id_filters)
    unknown = sorted(states - STATE_BY_TITLE.keys())
    for_broker = request.partition_index >= 0
    now_ms = context.world.clock.wall_ms()
    try:
        pattern = IdPattern(text) if (text := request.transactional_id_pattern) else None
    except re.error:
        return wire.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)

    def is_wanted(transaction: Transaction) -> bool:
        is_named = transaction.producer_id in ids or (
            for_broker and transaction.state.is_idle and transaction.previous_producer_id in ids
        )
        if (ids and not is_named) or (states and transaction.state.title not in states):
            return False
        if transaction.state in _HIDDEN:
            return False
        return request.duration_filter < 0 or (
            transaction.state is TransactionState.ONGOING and now_ms - transaction.started_ms > request.duration_filter
        )

    error, found, led = await coordinator.listed(is_wanted)
    if pattern is not None:
        error, found = await _matching(pattern, call.access, error, found)
    if sum(len(one.transaction.transactional_id) + 40 for one in found) > ANSWER_BYTES_MAX:
        error, found = ErrorCode.POLICY_VIOLATION, ()
    answer = wire.ListTransactionsResponse(error_code=error, unknown_state_filters=unknown)
    if for_broker:
        answer.led_partitions = list(led)
    turns = Turns()
    for transaction, _ in found:
        row = wire.ListTransactionsResponseState(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            transaction_state=transaction.state.title,
        )
        if for_broker:
            row.producer_epoch, row.client_version = transaction.producer_epoch, transaction.client_version
            row.has_partition, row.started_ms = _has(transaction, request), transaction.started_ms
            row.previous_producer_id = transaction.previous_producer_id
        answer.transaction_states.append(row)
        if turns.over():
            await next_turn()
    return answer


async def _matching(
    pattern: IdPattern, access: Unrestricted, error: ErrorCode, listed: Sequence[Listed]
) -> tuple[ErrorCode, Sequence[Listed]]:
    """The transactions whose ids match, among those that the client may describe. Neither the error nor the time of the
    response depends on other ids. POLICY_VIOLATION if a match may take too long."""
    found: list[Listed] = []
    turns = Turns()
    for one in listed:
        transactional_id = one.transaction.transactional_id
        steps = 0
        if access.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, audited=False):
            steps = pattern.steps(transactional_id)
            if steps > STEPS_MAX:
                return ErrorCode.POLICY_VIOLATION, ()
            if pattern.matches(transactional_id):
                found.append(one)
        if turns.over(1 + steps // _STEPS_PER_ROW):
            await next_turn()
    return error, found


def _has(transaction: Transaction, request: wire.ListTransactionsRequest) -> bool:
    at = (request.partition_topic_id, request.partition_index)
    return any((one.topic_id, one.partition) == at for one in transaction.partitions)
