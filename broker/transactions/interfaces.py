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
    """A partition as the coordinator stores it: by the topic's name as in Kafka's schema, and by the topic's id
    (TX39)."""

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
        """The error of each partition; NONE if it belongs to the transaction. With `add`, missing partitions are added
        (transaction version 2, KIP-890 part 2). Returns within the coordinator's request time-out. An unreachable or
        loading coordinator gives every partition a retriable error."""
        ...

    async def settled(self, transactional_id: str, timeout_s: float) -> None:
        """Wait until a retry after CONCURRENT_TRANSACTIONS may succeed, at most `timeout_s`."""
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

    async def decide(
        self, partition: TransactionalPartition, producer_id: int, producer_epoch: int, *, aborts: bool
    ) -> Decision | None:
        """The outcome of the transaction that this producer has open in the partition. With `aborts` an ongoing
        transaction is aborted and fenced before this returns ABORTED. None if some coordinator partition gave no
        answer. The caller then asks again later, and the last stable offset does not move."""
        ...

    async def abort_ongoing(self, partition: TransactionalPartition) -> bool:
        """Abort and fence every ongoing transaction that has this partition. This is needed after a gap, because
        records of such a transaction may be lost without a trace (TX32). Returns False if some coordinator did not
        answer; the caller then asks again later."""
        ...
