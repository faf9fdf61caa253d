"""The state of one transactional id in its newest record. States are immutable: a change makes a new one.

Source: Kafka 4.3's `TransactionMetadata` and `TransactionState`; KIP-98, KIP-360, KIP-890."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from broker.transactions.interfaces import TransactionalPartition

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
EPOCH_MAX: Final = 32_767
"""The last epoch of a producer id. It is reserved for a fence or an end."""
NO_TIME: Final = -1

TV_0: Final = 0
TV_2: Final = 2
"""Versions of `transaction.version` that a client may use; with 2 each end bumps the epoch (KIP-890 part 2)."""


class TransactionState(Enum):
    """The states, with Kafka's ids and names. PREPARE_EPOCH_FENCE is never stored: a fence writes PREPARE_ABORT at
    once."""

    EMPTY = 0, "Empty"
    ONGOING = 1, "Ongoing"
    PREPARE_COMMIT = 2, "PrepareCommit"
    PREPARE_ABORT = 3, "PrepareAbort"
    COMPLETE_COMMIT = 4, "CompleteCommit"
    COMPLETE_ABORT = 5, "CompleteAbort"
    DEAD = 6, "Dead"
    PREPARE_EPOCH_FENCE = 7, "PrepareEpochFence"

    def __init__(self, number: int, title: str) -> None:
        self.number = number
        self.title = title

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and some markers may be missing."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open. The id may then expire, or begin a transaction."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


STATE_BY_NUMBER: Final = {state.number: state for state in TransactionState}
STATE_BY_TITLE: Final = {state.title: state for state in TransactionState}


class Transaction(msgspec.Struct, frozen=True):
    """The state of one id. `previous_producer_id`: the producer id before a rotation. `next_producer_id` is set if the
    epochs of `producer_id` are used up; it replaces `producer_id` when this transaction is complete. Times are wall
    clock ms. `client_version`: TV_0 or TV_2, the version of the client that last began or ended a transaction.
    `needs_fresh_id`: records of this id were lost (a restore, a gap), so its producer id must not be used after this
    transaction (TX36).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: frozenset[TransactionalPartition] = frozenset()
    started_ms: int = NO_TIME
    client_version: int = TV_0
    needs_fresh_id: bool = False

    @property
    def is_exhausted(self) -> bool:
        return is_exhausted(self.producer_epoch)


def is_exhausted(producer_epoch: int) -> bool:
    """Whether a client can get no higher epoch of this producer id."""
    return producer_epoch >= EPOCH_MAX - 1
