"""Errors of a local log.

An append that raises one of them has written nothing to the log. `broker.errors` maps them to Kafka's error codes,
which the docstrings name.
"""

from __future__ import annotations

import errno
from typing import Final

from logformat.errors import Corrupt, Fenced, InvalidRequest, Retryable, StorageFailed
from seams.files.disk import is_full


class OffsetOutOfRange(InvalidRequest):
    """The offset lies outside [local log start, log end]. OFFSET_OUT_OF_RANGE, unless the bucket has the offset."""


class RecordListTooLarge(InvalidRequest):
    """One append is larger than a segment. RECORD_LIST_TOO_LARGE."""


class RunCrossesSegments(InvalidRequest):
    """A segment ends before or within the run. Nothing was written. The caller then appends each batch alone, so
    clients never get this error."""


class OutOfOrderSequence(InvalidRequest):
    """Batches before this one are missing. OUT_OF_ORDER_SEQUENCE_NUMBER."""


class DuplicateSequence(InvalidRequest):
    """The batch was appended before the producer's five remembered batches, so its offset is unknown.
    DUPLICATE_SEQUENCE_NUMBER, which clients treat as success without an offset."""


class InvalidProducerEpoch(Fenced):
    """A newer epoch of this producer has written. INVALID_PRODUCER_EPOCH."""


class CoordinatorFenced(Fenced):
    """A newer leader of the transaction's coordinator partition has written a marker of this producer (TX2).
    TRANSACTION_COORDINATOR_FENCED."""


class InvalidTransactionState(InvalidRequest):
    """A batch that does not belong to its producer's open transaction. INVALID_TXN_STATE."""


class TransactionNotVerified(InvalidRequest):
    """The first batch of a transaction was not verified: the coordinator did not confirm it, or a marker was written
    after the confirmation (TX4). INVALID_TXN_STATE; TRANSACTION_ABORTABLE from Produce 11 on.
    """


class TooManyTransactions(Retryable):
    """The log has the maximum number of open transactions. CONCURRENT_TRANSACTIONS."""


class TransactionUndecided(Retryable):
    """The producer's transaction has a declared gap, and its outcome is not known yet (TX34).
    CONCURRENT_TRANSACTIONS."""


class LeaderEpochFenced(Fenced):
    """The log holds batches of a later leader epoch than the append's."""


class DivergingAppend(InvalidRequest):
    """A follower's batches do not continue its log: wrong base offset, a gap between batches, or a lower epoch. Nothing
    was written. The follower compares epochs with the leader, truncates and fetches again (KIP-101)."""


class LogFull(StorageFailed):
    """The disk is full. Nothing was written, and the next append tries again. KAFKA_STORAGE_ERROR."""


class LogFailed(StorageFailed):
    """A write or a sync failed. The log is offline until recovery opens it again (C10, fsyncgate)."""


class ReservationExhausted(StorageFailed):
    """The append would exceed the reserved end offset. Nothing was written (design 6, `blocked_by=reservation`).
    `end_offset`: the end offset of the refused append."""

    def __init__(self, message: str, end_offset: int) -> None:
        super().__init__(message)
        self.end_offset = end_offset


class DataDirLocked(StorageFailed):
    """Another process holds the data directory."""


class ForeignLog(Corrupt):
    """The directory has the log of an earlier topic of the same name. The deletion of that topic moves it away."""


class DamagedLog(Corrupt):
    """A log that must not be opened in its present state. The error has the file, byte position and offset of the
    damage, and the remedy.

    It is raised for damage below the recovery point or in a sealed segment. These bytes were durable, so a truncation
    would lose acknowledged records, and an operator has to decide."""

    def __init__(self, file: str, position: int, offset: int, what: str, hint: str) -> None:
        super().__init__(f"{file}: position {position}, offset {offset}: {what}; {hint}")
        self.file = file
        self.position = position
        self.offset = offset
        self.what = what
        self.hint = hint


class MissingSegments(DamagedLog):
    """The log's first segments are missing. `first`: base offset of the oldest remaining segment, above the log start.
    The bucket may have the missing segments if tiering of the topic was switched off (`tiering.opening.attach`)."""

    def __init__(self, directory: str, log_start: int, first: int, hint: str) -> None:
        super().__init__(directory, 0, log_start, f"segments below offset {first} are missing", hint)
        self.first = first


_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def may_pass(refused: BaseException) -> bool:
    """Whether an error is a temporary lack of descriptors, memory or space. The disk is then sound, and the call may be
    repeated later."""
    if isinstance(refused, OSError):
        return is_full(refused) or refused.errno in _PASSING
    return isinstance(refused, LogFull)
