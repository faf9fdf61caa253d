"""Decisions of the coordinator about one transactional id.

Pure: each function takes the durable state and returns an answer, or the state to write before the answer. `is_pending`
means that an earlier change is being written to the log.

Source: Kafka 4.3's `TransactionCoordinator`. The differences are: A fence is one step and uses exactly one epoch. A
fence or an end that uses the last epoch takes a new producer id. Only an end that used an epoch (version 2) can be
retried with the previous epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.transaction import (
    EPOCH_MAX,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    TV_0,
    TV_2,
    Transaction,
    TransactionState,
    is_exhausted,
)

PARTITIONS_MAX: Final = 10_000
"""Most partitions of one transaction. Each change writes the whole record, at 1 µs a partition on the loop."""

State = TransactionState
GiveId: TypeAlias = Callable[[], int]


class Reply(msgspec.Struct, frozen=True):
    """An answer without a change. Successful answers to InitProducerId and EndTxn have the producer id and epoch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class Change(msgspec.Struct, frozen=True):
    """The caller writes `to`, and answers with `reply` when it is durable."""

    to: Transaction
    reply: Reply


Step: TypeAlias = Reply | Change


class Expected(msgspec.Struct, frozen=True):
    """The id and epoch with which a producer wants to continue (KIP-360)."""

    producer_id: int
    producer_epoch: int


# ---- InitProducerId --------------------------------------------------------------------------------------------------


def init(
    transaction: Transaction | None,
    transactional_id: str,
    timeout_ms: int,
    expected: Expected | None,
    now_ms: int,
    give_id: GiveId,
    *,
    is_pending: bool,
) -> Step:
    """Give the next epoch to a producer that starts (InitProducerId). An open transaction is aborted first, and the
    client asks again."""
    if is_pending:
        return Reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction is None:
        return _initialized(Transaction(transactional_id, give_id(), 0, timeout_ms, now_ms))
    if expected is not None and not _may_continue(transaction, expected):
        return Reply(ErrorCode.PRODUCER_FENCED)
    match transaction.state:
        case State.PREPARE_COMMIT | State.PREPARE_ABORT:
            return Reply(ErrorCode.CONCURRENT_TRANSACTIONS)
        case State.ONGOING:
            return Change(fence(transaction, now_ms, give_id).to, Reply(ErrorCode.CONCURRENT_TRANSACTIONS))
    if transaction.needs_fresh_id:
        if expected is not None:  # an earlier process of this id, perhaps not the last one
            return Reply(ErrorCode.PRODUCER_FENCED)
        return _initialized(fresh(transaction, give_id(), now_ms, timeout_ms=timeout_ms))
    if transaction.is_exhausted and (expected is None or expected.producer_epoch == transaction.producer_epoch):
        last = NO_PRODUCER_EPOCH if expected is None else transaction.producer_epoch
        return _initialized(_begun(transaction, give_id(), 0, last, timeout_ms, now_ms))
    return _next_epoch(transaction, expected, timeout_ms, now_ms)


def _may_continue(transaction: Transaction, expected: Expected) -> bool:
    """Whether the producer has the transaction's producer id, or the previous one after a rotation, because the answer
    to the rotation may be lost."""
    return expected.producer_id == transaction.producer_id or (
        expected.producer_id == transaction.previous_producer_id and is_exhausted(expected.producer_epoch)
    )


def _next_epoch(transaction: Transaction, expected: Expected | None, timeout_ms: int, now_ms: int) -> Step:
    epoch, last = transaction.producer_epoch, NO_PRODUCER_EPOCH
    if expected is not None:
        if expected.producer_epoch == epoch:
            last = epoch
        elif expected.producer_epoch == transaction.last_producer_epoch:
            # This is a retry, because another producer's InitProducerId would have cleared the last epoch.
            again = _begun(
                transaction, transaction.producer_id, epoch, transaction.last_producer_epoch, timeout_ms, now_ms
            )
            return _initialized(again)
        else:
            return Reply(ErrorCode.PRODUCER_FENCED)
    return _initialized(_begun(transaction, transaction.producer_id, epoch + 1, last, timeout_ms, now_ms))


def _begun(
    transaction: Transaction, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
) -> Transaction:
    return replace(
        transaction,
        producer_id=producer_id,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        timeout_ms=timeout_ms,
        state=State.EMPTY,
        partitions=frozenset(),
        started_ms=NO_TIME,
        updated_ms=now_ms,
    )


def _initialized(to: Transaction) -> Change:
    return Change(to, Reply(ErrorCode.NONE, to.producer_id, to.producer_epoch))


def fresh(transaction: Transaction, producer_id: int, now_ms: int, *, timeout_ms: int | None = None) -> Transaction:
    """The state after a restore or a gap. It has a new producer id that no process has and that has no link to the old
    one (TX36)."""
    return Transaction(
        transaction.transactional_id,
        producer_id,
        0,
        transaction.timeout_ms if timeout_ms is None else timeout_ms,
        now_ms,
    )


def keeps_outcome(transaction: Transaction) -> bool:
    """Whether a complete transaction has an outcome that a partition with a lost marker may ask for (TX10). In version
    2 the epoch distinguishes the transaction from later ones. An unknown transaction is aborted, so only commits count.
    """
    return transaction.state is State.COMPLETE_COMMIT and transaction.client_version >= TV_2


# ---- partitions ------------------------------------------------------------------------------------------------------


def _is_next(transaction: Transaction, producer_id: int, producer_epoch: int) -> bool:
    """Whether the markers of `transaction` are being sent, and these are the producer id and epoch for the next
    transaction."""
    if not transaction.state.is_prepared:
        return False
    if transaction.next_producer_id != NO_PRODUCER_ID:
        return (producer_id, producer_epoch) == (transaction.next_producer_id, 0)
    return (producer_id, producer_epoch) == (transaction.producer_id, transaction.producer_epoch)


def _refused(transaction: Transaction | None, producer_id: int, producer_epoch: int) -> ErrorCode:
    if transaction is not None and _is_next(transaction, producer_id, producer_epoch):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if transaction is None or transaction.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.needs_fresh_id and transaction.state.is_idle:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if transaction.producer_epoch != producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


def add_partitions(
    transaction: Transaction | None,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TransactionalPartition],
    client_version: int,
    now_ms: int,
    *,
    is_pending: bool,
) -> Step:
    """Add partitions to the transaction. The first partitions begin it."""
    refusal = _refused(transaction, producer_id, producer_epoch)
    if refusal is not ErrorCode.NONE:
        return Reply(refusal)
    assert transaction is not None
    if is_pending or transaction.state.is_prepared:
        return Reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    is_ongoing = transaction.state is State.ONGOING
    held = transaction.partitions if is_ongoing else frozenset[TransactionalPartition]()
    wanted = held.union(partitions)
    if is_ongoing and len(wanted) == len(held):
        return Reply(ErrorCode.NONE)
    if len(wanted) > PARTITIONS_MAX:
        return Reply(ErrorCode.POLICY_VIOLATION)
    begun = replace(
        transaction,
        state=State.ONGOING,
        previous_producer_id=transaction.producer_id,
        partitions=wanted,
        started_ms=transaction.started_ms if is_ongoing else _start_of_next(transaction, now_ms),
        updated_ms=now_ms,
        client_version=client_version,
    )
    return Change(begun, Reply(ErrorCode.NONE))


def _start_of_next(transaction: Transaction, now_ms: int) -> int:
    """A start time that differs from that of the previous transaction. Start time and epoch together identify a
    transaction, because the epoch alone may be equal.
    """
    return now_ms if now_ms != transaction.started_ms else now_ms + 1


def verify(
    transaction: Transaction | None,
    producer_id: int,
    producer_epoch: int,
    partitions: Iterable[TransactionalPartition],
) -> ErrorCode | Mapping[TransactionalPartition, ErrorCode]:
    """Whether partitions belong to the transaction: one error for all, or one for each. A change that is being written
    does not count, because the partition's leader checks again when it appends."""
    refusal = _refused(transaction, producer_id, producer_epoch)
    if refusal is not ErrorCode.NONE:
        return refusal
    assert transaction is not None
    if transaction.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    held = transaction.partitions if transaction.state is State.ONGOING else frozenset[TransactionalPartition]()
    return {at: ErrorCode.NONE if at in held else ErrorCode.TRANSACTION_ABORTABLE for at in partitions}


# ---- the end ---------------------------------------------------------------------------------------------------------


def end(
    transaction: Transaction | None,
    producer_id: int,
    producer_epoch: int,
    client_version: int,
    now_ms: int,
    give_id: GiveId,
    *,
    is_commit: bool,
    is_pending: bool,
    started_ms: int = NO_TIME,
) -> Step:
    """End the transaction by EndTxn of a client, or of a broker that names the transaction by `started_ms`. An answer
    with NONE has the producer id and epoch for the next transaction.
    """
    if transaction is None:
        return Reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if started_ms != NO_TIME and (transaction.state is not State.ONGOING or transaction.started_ms != started_ms):
        return Reply(ErrorCode.INVALID_TXN_STATE)
    if transaction.needs_fresh_id and (transaction.state.is_idle or (is_commit and not transaction.state.is_prepared)):
        # After a loss an ongoing transaction is only aborted: the lost records may have added partitions to it, or
        # ended it.
        return Reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if client_version < TV_2:
        return _end_1(transaction, producer_id, producer_epoch, now_ms, is_commit=is_commit, is_pending=is_pending)
    return _end_2(transaction, producer_id, producer_epoch, now_ms, give_id, is_commit=is_commit, is_pending=is_pending)


def _end_1(
    transaction: Transaction, producer_id: int, epoch: int, now_ms: int, *, is_commit: bool, is_pending: bool
) -> Step:
    """An end before transaction version 2. Epochs do not change, so only the state shows that a request is a retry."""
    if transaction.producer_id != producer_id:
        return Reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if transaction.producer_epoch != epoch:
        return Reply(ErrorCode.PRODUCER_FENCED)
    if is_pending:
        return Reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    match transaction.state:
        case State.ONGOING:
            to = _prepared(
                transaction,
                is_commit=is_commit,
                epoch=epoch,
                last_epoch=transaction.last_producer_epoch,
                next_id=NO_PRODUCER_ID,
                client_version=TV_0,
                now_ms=now_ms,
            )
            return Change(to, Reply(ErrorCode.NONE))
        case State.COMPLETE_COMMIT | State.COMPLETE_ABORT | State.PREPARE_COMMIT | State.PREPARE_ABORT:
            return Reply(_same_outcome(transaction.state, is_commit=is_commit))
    return Reply(ErrorCode.INVALID_TXN_STATE)


def _end_2(
    transaction: Transaction,
    producer_id: int,
    epoch: int,
    now_ms: int,
    give_id: GiveId,
    *,
    is_commit: bool,
    is_pending: bool,
) -> Step:
    """An end in transaction version 2. Each end uses an epoch, so a retry has the previous epoch, or the last epoch of
    the previous producer id."""
    if _is_next(transaction, producer_id, epoch):
        return Reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    state = transaction.state
    is_complete = state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    is_rotated = (
        is_complete
        and transaction.previous_producer_id == producer_id != transaction.producer_id
        and epoch == EPOCH_MAX - 1
        and transaction.producer_epoch == 0
    )
    if transaction.producer_id != producer_id and not is_rotated:
        return Reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    # An end before version 2 used no epoch. A producer with the previous epoch was thus fenced, and must not get the
    # epoch of its successor.
    is_ended = (state.is_prepared or is_complete) and transaction.client_version >= TV_2
    is_retry = is_rotated or (is_ended and transaction.producer_epoch == epoch + 1)
    is_current = not state.is_prepared and not is_rotated and transaction.producer_epoch == epoch
    if not is_retry and not is_current:
        return Reply(ErrorCode.PRODUCER_FENCED)
    if is_pending:
        return Reply(ErrorCode.CONCURRENT_TRANSACTIONS)
    if is_retry:
        error = _same_outcome(state, is_commit=is_commit)
        if error is ErrorCode.NONE:
            return Reply(error, transaction.producer_id, transaction.producer_epoch)
        return Reply(error)
    if state is not State.ONGOING and is_commit:
        return Reply(ErrorCode.INVALID_TXN_STATE)
    # An abort without a partition is accepted, because the client does not know which partitions the leaders added.
    return _prepared_2(transaction, now_ms, give_id, is_commit=is_commit)


def _same_outcome(state: State, *, is_commit: bool) -> ErrorCode:
    """The answer to a repeated end of an ended transaction."""
    if is_commit != (state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)):
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if state.is_prepared else ErrorCode.NONE


def _prepared_2(transaction: Transaction, now_ms: int, give_id: GiveId, *, is_commit: bool) -> Change:
    next_id = give_id() if transaction.is_exhausted else NO_PRODUCER_ID
    to = _prepared(
        transaction,
        is_commit=is_commit,
        epoch=min(transaction.producer_epoch + 1, EPOCH_MAX),
        last_epoch=transaction.producer_epoch,
        next_id=next_id,
        client_version=TV_2,
        now_ms=now_ms,
    )
    shown = Reply(ErrorCode.NONE, to.producer_id, to.producer_epoch)
    return Change(to, shown if next_id == NO_PRODUCER_ID else Reply(ErrorCode.NONE, next_id, 0))


def fence(transaction: Transaction, now_ms: int, give_id: GiveId) -> Change:
    """Abort the open transaction under the next epoch, so that its producer is fenced (TX3)."""
    return _prepared_2(transaction, now_ms, give_id, is_commit=False)


def _prepared(
    transaction: Transaction,
    *,
    is_commit: bool,
    epoch: int,
    last_epoch: int,
    next_id: int,
    client_version: int,
    now_ms: int,
) -> Transaction:
    is_ongoing = transaction.state is State.ONGOING
    return replace(
        transaction,
        state=State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT,
        previous_producer_id=transaction.producer_id,
        next_producer_id=next_id,
        producer_epoch=epoch,
        last_producer_epoch=last_epoch,
        partitions=transaction.partitions if is_ongoing else frozenset(),
        started_ms=transaction.started_ms if is_ongoing else now_ms,
        updated_ms=now_ms,
        client_version=client_version,
    )


def complete(transaction: Transaction, now_ms: int) -> Transaction:
    """The state after all markers are written."""
    is_commit = transaction.state is State.PREPARE_COMMIT
    has_next = transaction.next_producer_id != NO_PRODUCER_ID
    return replace(
        transaction,
        state=State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT,
        producer_id=transaction.next_producer_id if has_next else transaction.producer_id,
        producer_epoch=0 if has_next else transaction.producer_epoch,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
        updated_ms=now_ms,
    )


# ---- time ------------------------------------------------------------------------------------------------------------


def is_timed_out(transaction: Transaction, now_ms: int, age_ms: int) -> bool:
    """Whether an ongoing transaction is open for longer than its time-out, by its start, or by `age_ms`, the time for
    which it has been known here. After the clock was set back, its start may be in the future."""
    is_over = transaction.started_ms + transaction.timeout_ms < now_ms or age_ms > transaction.timeout_ms
    return transaction.state is State.ONGOING and is_over


def is_expired(transaction: Transaction, now_ms: int, expiration_ms: int) -> bool:
    return transaction.state.is_idle and transaction.updated_ms <= now_ms - expiration_ms
