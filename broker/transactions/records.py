"""Records of `__transaction_state`, in Kafka's schema: key version 0, value version 1 (0 is read too).

Kafka's records have only topic names, which do not distinguish a topic that was deleted and created again. The topic's
id is therefore in a tagged field of Thermocline, which Kafka skips (TX39). Source: Kafka 4.3's `TransactionLog`,
`TransactionLogValue.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast
from uuid import UUID

from broker.internal_topics.batches import KeyValue
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.transaction import STATE_BY_NUMBER, Transaction, TransactionState
from broker.wire.codec import decode_record, encode_record
from broker.wire.messages import TransactionLogKey, TransactionLogValue, TransactionLogValuePartitions
from broker.wire.primitives import ZERO_UUID
from logformat.errors import Corrupt, InvalidRequest

_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 1


def transaction_key(transactional_id: str) -> bytes:
    return encode_record("TransactionLogKey", _KEY_VERSION, TransactionLogKey(transactional_id))


def transaction_record(transactional_id: str, transaction: Transaction | None) -> KeyValue:
    """The record of the id's state, or a tombstone for None."""
    key = transaction_key(transactional_id)
    return KeyValue(key, None if transaction is None else _value(transaction))


def _value(transaction: Transaction) -> bytes:
    rows: list[TransactionLogValuePartitions] | None = None
    if transaction.state is not TransactionState.EMPTY:
        by_topic: dict[tuple[str, UUID], list[int]] = {}
        for topic, topic_id, partition in sorted(transaction.partitions):
            by_topic.setdefault((topic, topic_id), []).append(partition)
        rows = [
            TransactionLogValuePartitions(topic=topic, partition_ids=indexes, topic_id=topic_id)
            for (topic, topic_id), indexes in by_topic.items()
        ]
    message = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.number,
        transaction_partitions=rows,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
        needs_fresh_producer_id=transaction.needs_fresh_id,
    )
    return encode_record("TransactionLogValue", _VALUE_VERSION, message)


def parse(
    key: bytes, value: bytes | None, topic_id_of: Callable[[str], UUID] = lambda _: ZERO_UUID
) -> tuple[str, Transaction | None] | None:
    """The transactional id and its state, which is None if the id was deleted. None for a record of another kind.
    `topic_id_of` returns the id of the topic that now has a name. It serves records that Kafka wrote, which have no
    ids. Raises Corrupt."""
    try:
        if key[:2] != b"\0\0":
            return None
        transactional_id = cast(TransactionLogKey, decode_record("TransactionLogKey", key)).transactional_id
        if value is None:
            return transactional_id, None
        message = cast(TransactionLogValue, decode_record("TransactionLogValue", value))
    except InvalidRequest as refused:
        raise Corrupt(f"a record of __transaction_state with key {key[:64]!r} cannot be read: {refused}") from refused
    state = STATE_BY_NUMBER.get(message.transaction_status)
    if state is None or state in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise Corrupt(f"{transactional_id!r} has the unknown transaction status {message.transaction_status}")
    partitions = frozenset(
        TransactionalPartition(
            row.topic, row.topic_id if row.topic_id != ZERO_UUID else topic_id_of(row.topic), partition
        )
        for row in message.transaction_partitions or ()
        for partition in row.partition_ids
    )
    return transactional_id, Transaction(
        transactional_id,
        message.producer_id,
        message.producer_epoch,
        message.transaction_timeout_ms,
        message.transaction_last_update_timestamp_ms,
        state,
        message.previous_producer_id,
        message.next_producer_id,
        partitions=partitions,
        started_ms=message.transaction_start_timestamp_ms,
        client_version=message.client_transaction_version,
        needs_fresh_id=message.needs_fresh_producer_id,
    )
