"""What consumers ask of a partition, whatever serves it: a log that is led here, or copied, or only the bucket's part.

Owns the protocol between the handlers that read (Fetch, ListOffsets, OffsetForLeaderEpoch, Metadata) and partitions.
Always true: no call blocks or awaits, but for the searches that say so; a partition that has to be looked up first says
so by `NotKnownYet`, and is asked again. Must not know who serves, nor Kafka's requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from broker.fetch_sessions.session import Source
from hotstore.host.residency import Residency
from hotstore.log.locator import LogSlice
from hotstore.log.timestamps import TimestampedOffset
from logformat.errors import Retryable
from logformat.leader_epochs import EpochEnd, LeaderEpochs
from tiering.reading.batch_slices import ColdSlice


class NotKnownYet(Retryable):
    """What would answer is being read: ask again when `known` is done, which carries no error."""

    def __init__(self, message: str, known: asyncio.Future[None]) -> None:
        super().__init__(message)
        self.known = known


class ReadableLog(Protocol):
    """Where the log begins on the local disk, and where it ends."""

    @property
    def local_log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def epochs(self) -> LeaderEpochs:
        """The lineage, as far as it is known without asking anybody."""
        ...


class FetchableTier(Protocol):
    """What a fetch needs of what lies in the bucket (`tiering.opening.cold_view.ColdView`)."""

    @property
    def remote_end_offset(self) -> int: ...
    def read(self, offset: int, bytes_max: int, *, min_one: bool) -> ColdSlice | asyncio.Future[None]: ...


class ReadableTier(FetchableTier, Protocol):
    """All of it (`tiering.partition_tier.PartitionTier`)."""

    @property
    def enabled(self) -> bool: ...
    @property
    def max_timestamp_ms(self) -> int: ...
    async def offset_for_timestamp(self, timestamp_ms: int, before_offset: int) -> tuple[int, int] | None: ...


class ReadableLocal(Protocol):
    """Bytes on the local disk (`broker.partition.local_reads.LocalReads`)."""

    def read(
        self, residency: Residency, offset: int, bytes_max: int, end_offset: int, *, min_one: bool
    ) -> LogSlice | asyncio.Future[None] | None: ...
    async def max_timestamp(self) -> TimestampedOffset | None: ...
    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None: ...


class Fetchable(Source, Protocol):
    """One partition as a consumer's fetch needs it; a follower serves no more than that. `leader_epoch`: that clients
    are told. Offsets are −1 while nothing is known of it: `log` and `tier` then raise NotKnownYet, or why it cannot be
    known."""

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
    def log(self) -> ReadableLog: ...
    @property
    def tier(self) -> FetchableTier: ...
    @property
    def local(self) -> ReadableLocal: ...

    def epoch_end(self, epoch: int) -> EpochEnd:
        """See `LeaderEpochs.end_offset_for`, at the log's end. Raises NotKnownYet."""
        ...

    def watch(self, watcher: Callable[[], None], *, at_tail: bool = False) -> None:
        """Call `watcher` whenever something new may be readable, until `unwatch`; `at_tail`: also by replicas."""
        ...

    def unwatch(self, watcher: Callable[[], None]) -> None: ...


class Readable(Fetchable, Protocol):
    """One partition, of which clients may ask everything."""

    @property
    def is_end_known(self) -> bool: ...
    @property
    def tier(self) -> ReadableTier: ...

    def settling(self, wait_s: float) -> asyncio.Future[None] | None:
        """What to wait for, `wait_s` at most, until what is there by now is visible; None: it is, or never will be."""
        ...
