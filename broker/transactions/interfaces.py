"""Interfaces between the transaction coordinator and the partitions of a transaction.

A partition's leader asks a `TransactionVerifier` before the first batch of a transaction (TX4), and
`TransactionOutcomes` about a transaction that a gap or a lost coordinator left open (TX10, TX35). Neither accesses a
log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol
from uuid import UUID

from broker.error_codes import ErrorCode


class TransactionalPartition(NamedTuple):
    """A partition as the coordinator stores it: by name in Kafka's schema, with its topic's id beside it (TX39)."""

    topic: str
    topic_id: UUID
    partition: int


class TransactionVerifier(Protocol):
    """Asks the coordinator of a transactional id whether partitions belong to its open transaction."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TransactionalPartition],
        *,
        add: bool,
    ) -> Mapping[TransactionalPartition, ErrorCode]:
        """Error of each partition; NONE: it belongs to the transaction. `add`: add missing partitions (transaction
        version 2, KIP-890 part 2). Returns within the coordinator's request time-out. An unreachable or loading
        coordinator gives every partition a retriable error."""
        ...

    async def settled(self, transactional_id: str, timeout_s: float) -> None:
        """After CONCURRENT_TRANSACTIONS: wait until a retry may succeed, at most `timeout_s`."""
        ...


class Decision(Enum):
    """The state of one transaction at its coordinator."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    ONGOING = "ongoing"
    UNKNOWN = "unknown"
    """No loaded coordinator knows this very transaction (TX31)."""


class TransactionOutcomes(Protocol):
    """Asks all coordinators about a transaction that is open in a partition and has no marker."""

    async def decide(self, partition: TransactionalPartition, producer_id: int, producer_epoch: int) -> Decision | None:
        """The outcome of the transaction that this producer has open in the partition. The coordinator aborts and
        fences an ongoing transaction before it answers ABORTED. None: some coordinator partition gave no answer; ask
        again later, and keep the last stable offset."""
        ...

    async def abort_ongoing(self, partition: TransactionalPartition) -> bool:
        """After a gap: abort and fence every ongoing transaction that has this partition, since its records here may be
        lost without a trace (TX32). False: some coordinator did not answer; ask again later."""
        ...
