"""Asks the coordinator before the first batch of a transaction is appended (TX4, KIP-890).

From Produce 12 on the broker adds the partition to the transaction. In earlier versions the client added the partition,
and the broker only verifies this. The coordinator is not asked about a transaction that is open here. The answer is
valid for an append in the same turn of the event loop; the partition's guard shows whether a marker was written
meanwhile. While markers of the previous transaction are in flight, the coordinator is asked again for a while, because
otherwise the client would wait for its `retry.backoff.ms`. Source: Kafka's AddPartitionsToTxnManager and
ReplicaManager.handleProduceAppend."""

from __future__ import annotations

import asyncio
from typing import Final

from broker.context import Call, Context
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.verification import VerificationGuard
from broker.transactions.interfaces import TransactionalPartition
from broker.wire.messages import ProduceRequest, ProduceRequestPartition
from logformat.errors import ThermoclineError
from logformat.record_batch import HEADER_SIZE, MAGIC, read_header

ADDS_SINCE: Final = 12
_ABORTABLE_SINCE: Final = 11
_PAUSE_S: Final = 0.002  # about the time of a marker; each further pause is twice as long, up to the configured pause
# The coordinator is unavailable: clients repeat a produce after these errors.
_AWAY: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


Unverified = list[tuple[ProduceRequestPartition, LeaderReplica]]
_Wanted = list[tuple[ProduceRequestPartition, TransactionalPartition]]


class Verification:
    """The guards and refusals of one request, by `id` of its partitions. Call `end` afterwards."""

    __slots__ = ("_guards", "_refused")

    def __init__(self) -> None:
        self._guards: dict[int, tuple[LeaderReplica, VerificationGuard]] = {}
        self._refused: dict[int, ApiError] = {}

    def guard(self, data: ProduceRequestPartition) -> VerificationGuard | None:
        """The guard of a verified batch. Raises ApiError if its transaction is not confirmed."""
        if (refused := self._refused.get(id(data))) is not None:
            raise refused
        found = self._guards.get(id(data))
        return None if found is None else found[1]

    def take(self, data: ProduceRequestPartition, partition: LeaderReplica, guard: VerificationGuard) -> None:
        self._guards[id(data)] = partition, guard

    def take_again(self, data: ProduceRequestPartition) -> None:
        """The coordinator is asked again: markers until now belong to the previous transaction."""
        partition, guard = self._guards[id(data)]
        partition.guards.end(guard)
        self.take(data, partition, partition.guards.begin(guard.producer_id, guard.producer_epoch, adds=guard.adds))

    def refuse(self, data: ProduceRequestPartition, why: ApiError) -> None:
        self._refused[id(data)] = why

    def end(self) -> None:
        """End the guards: the request is appended, or given up."""
        for partition, guard in self._guards.values():
            partition.guards.end(guard)


def unverified(context: Context, request: ProduceRequest) -> Unverified:
    """The batches of the request that would begin a transaction here. Batches are not checked yet."""
    if request.transactional_id is None or context.verifier is None:
        return []
    found = []
    for topic in request.topic_data:
        for data in topic.partition_data:
            partition = context.registry.partitions.get((topic.name, data.index))
            if partition is None or data.records is None or len(data.records) < HEADER_SIZE:
                continue
            header = read_header(data.records)
            is_transactional = header.magic == MAGIC and header.is_transactional and header.producer_id >= 0
            if is_transactional and partition.needs_verification(header.producer_id, header.producer_epoch):
                found.append((data, partition))
    return found


async def verify(context: Context, call: Call, request: ProduceRequest, found: Unverified) -> Verification:
    """Ask about the batches that `unverified` found in this turn, once per producer. The caller appends in the turn in
    which this call returns, and then calls `end` on the result."""
    verification = Verification()
    adds = call.version >= ADDS_SINCE
    asked: dict[tuple[int, int], _Wanted] = {}
    for data, partition in found:
        assert data.records is not None
        header = read_header(data.records)
        guard = partition.guards.begin(header.producer_id, header.producer_epoch, adds=adds)
        verification.take(data, partition, guard)
        of = TransactionalPartition(partition.topic, partition.topic_id, partition.index)
        asked.setdefault((header.producer_id, header.producer_epoch), []).append((data, of))
    try:
        for producer, wanted in asked.items():
            await _ask(context, call, request, producer, wanted, verification)
    except BaseException:
        verification.end()
        raise
    return verification


async def _ask(
    context: Context,
    call: Call,
    request: ProduceRequest,
    producer: tuple[int, int],
    wanted: _Wanted,
    verification: Verification,
) -> None:
    """Ask about one producer's batches, and refuse batches that may not be appended."""
    assert context.verifier is not None and request.transactional_id is not None
    adds, limits = call.version >= ADDS_SINCE, context.config.transactions
    loop = asyncio.get_running_loop()
    until_s = loop.time() + (limits.add_retry_backoff_max_ms / 1000 if adds else 0)
    longest_s = limits.add_retry_backoff_ms / 1000
    pause_s = min(_PAUSE_S, longest_s)
    while True:
        try:
            answers = await context.verifier.verify(
                request.transactional_id, *producer, [of for _, of in wanted], add=adds
            )
        except (ThermoclineError, OSError, TimeoutError) as away:
            for data, _ in wanted:
                verification.refuse(data, _unreachable(str(away)))
            return
        early: _Wanted = []
        for data, of in wanted:
            code = answers.get(of, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if code == ErrorCode.CONCURRENT_TRANSACTIONS and loop.time() < until_s:
                early.append((data, of))
            elif code != ErrorCode.NONE:
                verification.refuse(data, refusal(code, call.version))
        if not early:
            return
        await context.verifier.settled(request.transactional_id, pause_s)
        pause_s = min(2 * pause_s, longest_s)
        for data, _ in early:
            verification.take_again(data)
        wanted = early


def refusal(code: ErrorCode, version: int) -> ApiError:
    """A coordinator's error, as clients of this Produce version know it."""
    if code in _AWAY or (code == ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_SINCE):
        return _unreachable(code.name)
    if code == ErrorCode.PRODUCER_FENCED:
        return ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "a newer producer has this transactional id")
    if code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
        return not_verified(version, "the partition is not part of an open transaction of this producer")
    return ApiError(code, "the transaction's coordinator refused the partition")


def not_verified(version: int, why: str) -> ApiError:
    """The refusal of a batch outside a verified transaction: abortable if clients of this version know that error."""
    abortable = version >= _ABORTABLE_SINCE
    return ApiError(ErrorCode.TRANSACTION_ABORTABLE if abortable else ErrorCode.INVALID_TXN_STATE, why)


def _unreachable(why: str) -> ApiError:
    return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction's coordinator does not answer: {why}; try again")
