"""Maps exceptions to Kafka error codes.

An unmapped exception is UNKNOWN_SERVER_ERROR and is reported, because it is a bug.
"""

from __future__ import annotations

import logging

from broker.config.topic.topic_config import InvalidTopicName
from broker.config.values import InvalidConfig
from broker.error_codes import ErrorCode
from broker.wire.errors import MalformedFrame
from coldstore.object_store import AccessRefused, ObjectMissing
from hotstore.errors import (
    CoordinatorFenced,
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordListTooLarge,
    TooManyTransactions,
    TransactionNotVerified,
    TransactionUndecided,
)
from logformat.errors import Corrupt, Fenced, InvalidRequest, Retryable, StorageFailed
from logformat.record_batch import (
    BatchTooLarge,
    CorruptBatch,
    InvalidRecordBatch,
    InvalidTimestamp,
    TransactionalBatchRefused,
    UnsupportedCodec,
)

log = logging.getLogger(__name__)


class ApiError(InvalidRequest):
    """An error with an explicit Kafka code. Clients see the message if the response has a field for it."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


# The first match counts, so subclasses precede their bases.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (CorruptBatch, ErrorCode.CORRUPT_MESSAGE),
    (BatchTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (UnsupportedCodec, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (TransactionalBatchRefused, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    (InvalidRecordBatch, ErrorCode.INVALID_RECORD),
    (OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (DuplicateSequence, ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    (InvalidProducerEpoch, ErrorCode.INVALID_PRODUCER_EPOCH),
    (CoordinatorFenced, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    (InvalidTransactionState, ErrorCode.INVALID_TXN_STATE),
    (TransactionNotVerified, ErrorCode.INVALID_TXN_STATE),
    (TooManyTransactions, ErrorCode.CONCURRENT_TRANSACTIONS),
    (TransactionUndecided, ErrorCode.CONCURRENT_TRANSACTIONS),
    (RecordListTooLarge, ErrorCode.RECORD_LIST_TOO_LARGE),
    (InvalidTopicName, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (InvalidConfig, ErrorCode.INVALID_CONFIG),
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (MalformedFrame, ErrorCode.INVALID_REQUEST),
    (Fenced, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (StorageFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    # A missing or unreadable cold object may return (a restored object, repaired credentials), so clients retry.
    (ObjectMissing, ErrorCode.KAFKA_STORAGE_ERROR),
    (AccessRefused, ErrorCode.KAFKA_STORAGE_ERROR),
    (Corrupt, ErrorCode.CORRUPT_MESSAGE),
    (Retryable, ErrorCode.KAFKA_STORAGE_ERROR),
    (TimeoutError, ErrorCode.REQUEST_TIMED_OUT),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),  # errors of the disk; TimeoutError is a subclass of OSError
    (InvalidRequest, ErrorCode.INVALID_REQUEST),
)


def code_of(failure: Exception) -> ErrorCode:
    if isinstance(failure, ApiError):
        return failure.code
    for kind, code in _CODES:
        if isinstance(failure, kind):
            return code
    log.error("unexpected %s: %s", type(failure).__name__, failure, exc_info=failure)
    return ErrorCode.UNKNOWN_SERVER_ERROR
