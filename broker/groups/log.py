"""The door to `__consumer_offsets`: all that groups know about where their state is kept.

Owns the protocol, nothing else. Whoever implements it (over partition logs and a snapshot in the bucket) keeps its
promises; the coordinator has no other way to the disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, Protocol

BATCH_BYTES_MAX: Final = 16 << 20
"""The largest batch `append` is ever given: the topic's max.message.bytes must not be below it."""


class OffsetsLog(Protocol):
    """`__consumer_offsets` (design 5). Partitions count from 0."""

    @property
    def partitions(self) -> int:
        """offsets.topic.num.partitions; constant for the life of the coordinator and of the topic."""
        ...

    async def ensure_created(self) -> None:
        """The topic exists when this returns; cheap when it does. Raises Retryable (try again later), Fenced."""
        ...

    async def append(self, partition: int, batch: bytes) -> int:
        """Append one batch (base offset 0, epoch −1: to be stamped) and return the offset of its last record.

        Returns when the batch is durable and below the high watermark (acks=all). One call a partition at a time; the
        call bounds its own wait. Raises Retryable, Fenced, StorageFailed, InvalidRequest (batch too large): none of
        them says that the batch is *not* in the log.
        """
        ...

    def replay(self, partition: int) -> AsyncIterator[bytes]:
        """Everything from the start, in order: the newest snapshot, then the local log above it.

        Each item holds whole batches. Empty when the topic does not exist yet. Raises Retryable
        (the store is away: the coordinator tries again), Corrupt, StorageFailed.
        """
        ...
