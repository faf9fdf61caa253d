"""What an internal log needs of one led partition, and the bounds it keeps.

Owns the protocol between the log of an internal topic and the partition it lies in: local log and bucket. Must not know
partitions, tiers (`led_partition` has them), nor what the records mean.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Sizes in bytes, times in ms; of one partition."""

    append_batch_bytes_max: int
    """How much waiting state goes into one batch: many writes share one flush."""
    append_queue_max: int
    """Writes that wait; above it they are refused as retriable."""
    append_queue_bytes_max: int
    """The same in bytes."""
    snapshot_interval_ms: int
    """A changed partition gets a snapshot this long after the last one."""
    close_timeout_ms: int
    """How long a stop waits for appends under way."""


class Piece(NamedTuple):
    """Of a replay: whole batches, and the offset below which everything is replayed with them."""

    end_offset: int
    batches: bytes
    is_snapshot: bool = False


class PartitionDoor(Protocol):
    """One partition of an internal topic in one leader epoch."""

    @property
    def name(self) -> str:
        """`topic-index`."""
        ...

    @property
    def index(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    async def append(self, batch: bytes) -> int:
        """Append one batch (base offset 0, epoch −1: to be stamped) and return the offset of its last record.

        Returns when the batch is durable and below the high watermark (acks=all). One call at a time; the call bounds
        its own wait. Raises Retryable, Fenced, StorageFailed, InvalidRequest (batch too large): none of them says that
        the batch is *not* in the log.
        """
        ...

    def resign(self) -> None:
        """The leader epoch is over: an append that still waits for something is not made any more."""
        ...

    def replay(self) -> AsyncIterator[Piece]:
        """Everything, in order, a few MiB at a time: the local log, where it holds all that lives; else the newest
        snapshot (also when it has no records), then the local log above it. Ends when the high watermark reached the
        log's end: nothing of it can be taken back.

        Raises Retryable (the store is needed and away), Corrupt, StorageFailed, Fenced, OSError.
        """
        ...

    @property
    def is_whole(self) -> bool:
        """Whether `replay` found all that lives in the local log: the next leader needs no bucket either."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether others are assigned it: then its root names the log start too."""
        ...

    async def start_at(self, offset: int) -> None:
        """All that lives is in the log from `offset` on, where a rewrite began, committed: what lies below may go from
        every replica. Durable when this returns. Raises Fenced, StorageFailed, OSError."""
        ...

    async def snapshot_end(self) -> int:
        """Where the snapshot ends that the bucket has; 0 without one. Raises Retryable, Fenced."""
        ...

    async def commit_snapshot(self, end_offset: int, batches: bytes) -> None:
        """Name `batches` as the live state after every offset below `end_offset`, for a disk that is lost. Raises
        Retryable, Fenced, and OSError."""
        ...
