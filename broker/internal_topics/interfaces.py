"""Interfaces of an internal log: its partition's log (`LedPartition`), and the state it replays (groups,
transactions)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from broker.internal_topics.batches import KeyValue
from logformat.transaction_marker import TransactionMarker


class InternalTopic(Protocol):
    """An internal topic as a topic of the cluster (design 5). Partitions count from 0."""

    @property
    def partitions(self) -> int:
        """Constant for the life of the topic; before it exists, as it would be made."""

    def is_offline(self, index: int) -> bool:
        """Whether this broker should lead the partition and cannot: it is damaged, or its log failed."""

    def leader(self, index: int) -> int:
        """The partition's leader, which coordinates what it stores; NO_LEADER while there is none."""

    def leaders(self) -> list[int] | None:
        """Of all partitions, each once; None while one has none. Empty: the topic does not exist."""

    async def ensure_created(self) -> None:
        """Returns when the topic exists and its partitions are led as far as they could be opened; cheap afterwards.
        Raises Retryable (try again later), Fenced, InvalidRequest."""


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

    async def append(self, batch: bytes, *, may_wait: bool = True) -> int:
        """Append one batch (base offset 0, epoch −1: to be stamped) and return the offset of its last record. Returns
        when the batch is durable and below the high watermark (acks=all). One call at a time; the call bounds its own
        wait. `may_wait` False: it is appended before this coroutine yields, or not at all. Raises Retryable, Fenced,
        StorageFailed, InvalidRequest (batch too large). After any of them the batch may
        still be in the log."""

    async def committed(self, end_offset: int) -> None:
        """Until all below `end_offset` is below the high watermark. Raises Retryable after a while, Fenced,
        StorageFailed."""

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

    def repeated(self, records: Sequence[KeyValue]) -> None:
        """As `apply`, for records of a rewrite that began after what is applied: they say again what was live then. So
        they change nothing, unless what they repeat is missing here."""

    def end_transaction(self, marker: TransactionMarker) -> None:
        """A committed marker, in the log's order with the records: it ends what its producer has open here."""

    def lost(self) -> None:
        """While it is replayed: records may be missing before this place (a gap), or replayed ones be older than what
        clients have seen (a snapshot)."""

    def restore(self) -> Iterator[None]:
        """Everything was replayed: restore in steps of about 10 µs. Requests are served after the last one."""

    def live(self) -> Live:
        """The content of a snapshot, at the time of the call."""

    def live_again(self) -> Iterator[KeyValue | None]:
        """For a rewrite: first a record without effect, then the live records, each as the state is when it is read.
        None: the next record is of another producer, so it begins a batch. Records that become live meanwhile may be
        missing, because the log has them above. What a marker makes live meanwhile is there, unless the records of its
        transaction were read before."""

    def unload(self) -> None:
        """No longer led, or never fully loaded: answer waiting requests, drop everything. Called once; pending writes
        fail after it."""
