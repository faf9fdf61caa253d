"""Interface of partitions for the handlers that read: Fetch, ListOffsets, OffsetForLeaderEpoch, Metadata.

A partition is led here, followed, or only in the bucket. No call blocks, and only searches await. `NotKnownYet` means
that the partition has to be looked up first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol
from uuid import UUID

from broker.fetch_sessions.session import WatchedPartition
from hotstore.host.open_log import OpenLog
from hotstore.host.residency import Residency
from hotstore.log.locator import LogSlice
from hotstore.log.partition_log import PartitionLog
from hotstore.log.timestamps import TimestampedOffset
from logformat.errors import Retryable
from logformat.leader_epochs import EpochEnd, LeaderEpochs
from tiering.reading.batch_slices import ColdSlice


class NotKnownYet(Retryable):
    """The log is being looked up: retry when `known` is done. `known` carries no error."""

    def __init__(self, message: str, known: asyncio.Future[None]) -> None:
        super().__init__(message)
        self.known = known


class ReadableLog(Protocol):
    """Offsets and leader epochs of the log, which are known without waiting."""

    @property
    def local_log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def epochs(self) -> LeaderEpochs:
        """The log's leader epochs and their start offsets."""


class ReadableTier(Protocol):
    """The bucket's part (`tiering.partition_tier.PartitionTier`, `tiering.opening.cold_view.ColdView`)."""

    @property
    def enabled(self) -> bool: ...
    @property
    def remote_end_offset(self) -> int: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    def read(self, offset: int, bytes_max: int, *, min_one: bool) -> ColdSlice | asyncio.Future[None]: ...
    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None: ...


class ReadableLocal(Protocol):
    """Bytes on the local disk (`broker.partition.local_reads.LocalReads`)."""

    def read(
        self, residency: Residency, offset: int, bytes_max: int, end_offset: int, *, min_one: bool
    ) -> LogSlice | asyncio.Future[None] | None: ...
    def aborted_in(self, found: LogSlice, offset: int, end_offset: int) -> Iterable[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that overlap a slice that was read at `offset` with
        `end_offset`."""

    async def max_timestamp(self) -> TimestampedOffset | None: ...
    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None: ...


class Readable(WatchedPartition, Protocol):
    """One partition for readers. `leader_epoch`: the leader epoch that clients see. Offsets are −1 while unknown; `log`
    and `tier` then raise NotKnownYet, or the error because of which they cannot be known."""

    topic: str
    topic_id: UUID
    index: int
    leader_epoch: int
    fetched_answers: int
    fetched_bytes: int

    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def is_end_known(self) -> bool: ...
    @property
    def log(self) -> ReadableLog: ...
    @property
    def tier(self) -> ReadableTier: ...
    @property
    def local(self) -> ReadableLocal: ...

    def lacks(self, offset: int) -> bool:
        """Whether the records below `offset` exist, but some of them cannot be read here yet."""

    def epoch_end(self, epoch: int) -> EpochEnd:
        """See `LeaderEpochs.end_offset_for`, at the log's end. Raises NotKnownYet."""

    def watch(self, watcher: Callable[[], None], *, at_tail: bool = False) -> None:
        """Call `watcher` whenever more may be readable, until `unwatch`. `at_tail`: call it also when more is readable
        only for replicas."""

    def unwatch(self, watcher: Callable[[], None]) -> None: ...

    def end_visible(self, wait_s: float) -> asyncio.Future[None] | None:
        """A future that is done when all records appended so far are visible, after at most `wait_s`. None
        if they are visible already, or never will be."""


class HostedReplica(Protocol):
    """A replica with an open log on this broker, leader or follower: its interface for checkpoints and ticks."""

    @property
    def topic(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def log(self) -> PartitionLog: ...

    @property
    def opened(self) -> OpenLog: ...

    @property
    def high_watermark(self) -> int: ...

    def tick(self, now_ms: int, now_s: float) -> bool:
        """Called once a second while the log is written to. Returns whether the log needs another tick. `now_ms`: wall
        clock; `now_s`: the loop's clock."""
