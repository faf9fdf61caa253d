"""Interfaces of an internal log: its partition's log (`LedPartition`), and the state it replays (groups, later
transactions)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from broker.internal_topics.batches import KeyValue


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Of one partition. Sizes in bytes, times in ms."""

    append_batch_bytes_max: int  # of one batch: many writes share one flush
    append_queue_max: int  # waiting writes; more are refused as retriable
    append_queue_bytes_max: int  # the same in bytes
    snapshot_interval_ms: int  # a changed partition gets a snapshot this long after the last one
    close_timeout_ms: int  # how long a stop waits for appends in flight


class Replayed(NamedTuple):
    """Part of a replay: whole batches, and the offset below which everything is replayed with them."""

    end_offset: int
    batches: bytes
    is_snapshot: bool = False


class ShardLog(Protocol):
    """One partition of an internal topic in one leader epoch."""

    @property
    def name(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    async def append(self, batch: bytes) -> int:
        """Append one batch (base offset 0, epoch −1: to be stamped) and return the offset of its last record. Returns
        when the batch is durable and below the high watermark (acks=all). One call at a time; the call bounds its own
        wait. Raises Retryable, Fenced, StorageFailed, InvalidRequest (batch too large). After any of them the batch may
        still be in the log."""

    def resign(self) -> None:
        """The leader epoch is over: a waiting append is not made any more."""

    def replay(self) -> AsyncIterator[Replayed]:
        """Everything, in order, a few MiB at a time: the local log if it holds all live records; else the newest
        snapshot (also without records), then the local log above it. Ends when the high watermark reached the log's
        end, so that nothing replayed can be truncated. Raises Retryable (the store is needed and does not answer),
        Corrupt, StorageFailed, Fenced, OSError."""

    @property
    def is_whole(self) -> bool:
        """Whether `replay` found all live records in the local log: then the next leader needs no bucket either."""

    async def start_at(self, offset: int) -> bool:
        """All live records are committed from `offset` on, where a rewrite began: every replica may delete what is
        below. Durable when this returns. False: nothing moved, because other brokers are assigned it, so that its root
        names the start too, and the root's snapshot does not reach `offset`. Raises Fenced, StorageFailed, OSError."""

    async def snapshot_end(self) -> int:
        """The end of the snapshot in the bucket; 0 without one. Raises Retryable, Fenced."""

    async def commit_snapshot(self, end_offset: int, batches: bytes) -> None:
        """Make `batches` the live state of every offset below `end_offset`, for a lost disk. Raises Retryable, Fenced,
        and OSError."""


class Live(NamedTuple):
    """The records that define a whole state at one moment; later changes do not show."""

    records_count: int
    records: Iterator[KeyValue]


class ReplayedState(Protocol):
    """What one partition's records add up to, in one leader epoch. Every call is made on the loop and returns without
    waiting."""

    def apply(self, records: Sequence[KeyValue]) -> None:
        """Replayed records, in the log's order, some hundreds at a time. Raises Corrupt."""

    def restore(self) -> Iterator[None]:
        """Everything was replayed: restore in steps of about 10 µs. Requests are served after the last one."""

    def live(self) -> Live:
        """The content of a snapshot, at the time of the call."""

    def live_again(self) -> Iterator[KeyValue]:
        """For a rewrite: first a record without effect, then the live records, each as the state is when it is read.
        Records that become live meanwhile may be missing, because the log has them above."""

    def unload(self) -> None:
        """No longer led, or never fully loaded: answer waiting requests, drop everything. Called once; pending writes
        fail after it."""
