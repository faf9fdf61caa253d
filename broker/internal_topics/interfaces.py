"""Interfaces of an internal log: its partition's log (`LedPartition`), and the state that the internal log replays
(groups, transactions)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec

from broker.config.groups import GroupConfig
from broker.config.transactions import TransactionConfig
from broker.internal_topics.batches import KeyValue
from logformat.errors import Retryable
from logformat.transaction_marker import TransactionMarker


class InternalTopic(Protocol):
    """An internal topic as a topic of the cluster (design 5). Partitions count from 0."""

    @property
    def partitions(self) -> int:
        """Number of partitions, constant for the life of the topic; before it exists, the number for its creation."""

    def is_offline(self, index: int) -> bool:
        """Whether this broker should lead the partition but cannot, because its log is damaged or failed."""

    def leader(self, index: int) -> int:
        """The partition's leader, which is the coordinator; NO_LEADER while there is none."""

    def leaders(self) -> list[int] | None:
        """Leaders of all partitions, each once; None while a partition has no leader. Empty: the topic does not
        exist."""

    async def ensure_created(self) -> None:
        """Create the topic if it is missing. Returns when its partitions are led, except partitions that could not be
        opened. Later calls are cheap. Raises Retryable (try again later), Fenced, InvalidRequest."""


class LogLimits(msgspec.Struct, frozen=True):
    """Limits of one partition. Sizes in bytes, times in ms."""

    append_batch_bytes_max: int  # bytes of one batch: many writes share one flush
    append_queue_max: int  # waiting writes; more are refused as retriable
    append_queue_bytes_max: int  # bytes of waiting writes; more are refused as retriable
    snapshot_interval_ms: int  # a changed partition gets a snapshot this long after its last snapshot
    close_timeout_ms: int  # how long a stop waits for appends in flight

    @classmethod
    def of(cls, config: GroupConfig | TransactionConfig, close_timeout_ms: int) -> LogLimits:
        return cls(
            config.append_batch_bytes_max,
            config.append_queue_max,
            config.append_queue_bytes_max,
            config.snapshot_interval_ms,
            close_timeout_ms,
        )


class Replayed(NamedTuple):
    """Part of a replay: complete batches, and the offset below which everything is replayed after these batches."""

    end_offset: int
    batches: bytes
    is_snapshot: bool = False


class NotCommittedYet(Retryable):
    """A batch is in the log, up to `last_offset`, and the high watermark did not pass it in time. It may pass later."""

    def __init__(self, why: str, last_offset: int) -> None:
        super().__init__(why)
        self.last_offset = last_offset


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
        when the batch is durable and below the high watermark (acks=all). One call at a time. The call limits its own
        wait. `may_wait` False: append before the first yield, or refuse. Raises NotCommittedYet (the batch is in the
        log), Retryable, Fenced, StorageFailed, InvalidRequest (batch too large). After any of these errors the batch
        may be in the log."""

    async def committed(self, end_offset: int) -> None:
        """Wait until the high watermark reaches `end_offset`. Raises Retryable after a while, Fenced, StorageFailed."""

    def replay(self) -> AsyncIterator[Replayed]:
        """Replay all records in order, a few MiB at a time. If the local log holds all live records, only the local log
        is read. Otherwise the newest snapshot (even an empty one) is read, then the local log above it. The replay ends
        when the high watermark reached the log's end, so that no replayed record can be truncated. Raises Retryable
        (the store is needed and does not answer), Corrupt, StorageFailed, Fenced, OSError.
        """

    @property
    def is_whole(self) -> bool:
        """Whether `replay` found all live records in the local log; if so, the next leader does not need the bucket."""

    async def start_at(self, offset: int) -> bool:
        """A rewrite from `offset` on contains all live records and is committed: move the log start there, so that
        every replica may delete lower records. Durable when this returns. Returns False if the start could not move:
        other replicas are assigned, so the root has to name the start, but the root's snapshot does not reach `offset`.
        Raises Fenced, StorageFailed, OSError.
        """

    async def snapshot_end(self) -> int:
        """The end of the snapshot in the bucket; 0 without one. Raises Retryable, Fenced."""

    async def commit_snapshot(self, end_offset: int, batches: bytes) -> None:
        """Store `batches`, the live state of all offsets below `end_offset`, for the loss of a disk. Raises Retryable,
        Fenced, and OSError."""


class Live(NamedTuple):
    """The records of a complete state at one time; later changes are not included."""

    records_count: int
    records: Iterator[KeyValue]


class ReplayedState(Protocol):
    """The state defined by one partition's records, in one leader epoch. Every call is made on the loop and returns
    without waiting."""

    def apply(self, records: Sequence[KeyValue]) -> None:
        """Apply replayed records, in the log's order, some hundreds at a time. Raises Corrupt."""

    def repeated(self, records: Sequence[KeyValue]) -> None:
        """As `apply`, for records of a rewrite that began after the applied records. They repeat live records, and have
        an effect only if the live records are missing here."""

    def end_transaction(self, marker: TransactionMarker) -> None:
        """Apply a committed marker, which ends its producer's transaction here. Calls follow the log's order."""

    def lost(self) -> None:
        """Called during a replay: records before this place may be missing (a gap), or the replayed records may be
        older than records that clients have seen (a snapshot)."""

    def restore(self) -> Iterator[None]:
        """The replay is complete: restore in steps of about 10 µs. Requests are served after the last step."""

    def live(self) -> Live:
        """The content of a snapshot, at the time of the call."""

    def live_again(self) -> Generator[KeyValue | None, None, None]:
        """The records of a rewrite: first a record without effect, then the live records, each with its value at the
        time of reading. A None among them means that the next record has another producer, so it begins a new batch.
        Records that are appended during the reading may be missing, because they are higher in the log. Records that a
        marker commits during the reading are included, unless they were already read as open. The caller closes it.
        """

    def unload(self) -> None:
        """The shard is no longer led, or never fully loaded: answer waiting requests and drop the state. Called once;
        pending writes fail after this call."""
