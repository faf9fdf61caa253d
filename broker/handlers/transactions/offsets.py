"""TxnOffsetCommit: offsets that are committed with a transaction (KIP-98, KIP-447, KIP-890).

The group coordinator asks the transaction coordinator whether the group's partition of `__consumer_offsets` belongs to
the transaction. From version 5 on the partition is added. Source: Kafka 4.3's
`GroupCoordinatorService.commitTransactionalOffsets`.
"""

from __future__ import annotations

from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.groups.machine.events import AdmitCommit
from broker.groups.offset_requests import CommitRow
from broker.handlers.transactions.coordinator import offsets_partition
from broker.internal_topics.batches import Producer
from broker.wire import messages as wire
from seams.loop.turns import Turns, next_turn

_ADDS_SINCE: Final = 5
_ABORTABLE_SINCE: Final = 4


async def handle_txn_offset_commit(
    context: Context, request: wire.TxnOffsetCommitRequest, call: Call
) -> wire.TxnOffsetCommitResponse:
    """One answer a row. Rows with NONE are durable, and committed with the transaction's marker."""
    groups = context.groups
    rows: list[CommitRow] = []
    turns = Turns()
    for topic in request.topics:
        topic_id = groups.topic_id(topic.name)
        for row in topic.partitions:
            metadata = row.committed_metadata or ""
            partition, offset, epoch = row.partition_index, row.committed_offset, row.committed_leader_epoch
            rows.append(CommitRow(topic.name, partition, offset, epoch, metadata, topic_id))
            if turns.over():
                await next_turn()
        if turns.over():  # a topic without partitions also counts as a row
            await next_turn()
    producer = Producer(request.producer_id, request.producer_epoch)
    member = AdmitCommit(None, request.member_id, request.generation_id, request.group_instance_id)
    until_s = groups.deadline()

    async def verify() -> ErrorCode:
        at = offsets_partition(context, request.group_id)
        if at is None or context.verifier is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        answers = await context.verifier.verify(
            request.transactional_id, *producer, [at], add=call.version >= _ADDS_SINCE
        )
        return _shown(answers.get(at, ErrorCode.COORDINATOR_NOT_AVAILABLE), call.version)

    if request.group_id:
        answered = await groups.offsets.commit_in_transaction(
            request.group_id, member, rows, producer, verify, until_s=until_s
        )
    else:  # OffsetCommit accepts the empty group id, TxnOffsetCommit does not
        answered = [ErrorCode.INVALID_GROUP_ID] * len(rows)
    codes = iter(answered)
    answer = wire.TxnOffsetCommitResponse()
    for topic in request.topics:
        answered_rows: list[wire.TxnOffsetCommitResponsePartition] = []
        answer.topics.append(wire.TxnOffsetCommitResponseTopic(name=topic.name, partitions=answered_rows))
        for row in topic.partitions:
            error = _row_error(next(codes), call.version)
            answered_rows.append(
                wire.TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=error)
            )
            if turns.over():
                await next_turn()
        if turns.over():
            await next_turn()
    return answer


def _shown(error: ErrorCode, version: int) -> ErrorCode:
    """The transaction coordinator's error, translated to an error that clients of this API know."""
    if error in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_COORDINATOR):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # every client repeats the request after this error
    if error is ErrorCode.CONCURRENT_TRANSACTIONS and version < _ADDS_SINCE:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return _row_error(error, version)


def _row_error(error: ErrorCode, version: int) -> ErrorCode:
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.UNKNOWN_TOPIC_ID:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return error
