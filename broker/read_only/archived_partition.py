"""A partition of which only the bucket's part is served: what the handlers that read see of it.

Owns what is known of it without its manifest: epoch, high watermark, log start, who waits. Always true: high watermark
(the end of what the bucket holds, or the log start where that is higher) and log start never fall while the process
lives, whatever a root says; who waits is told after they moved. What a read needs beyond that is its root (`roots`).
Must not know how roots are read, nor Kafka's requests. 10 000 of them that nobody reads take 3 MB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol
from uuid import UUID

from broker.fetch_sessions.session import Target
from broker.partition.leading.delayed_operations import DelayedOperations
from broker.partition.readable import ReadableLog, ReadableTier
from coldstore.manifest.manifest import Manifest
from hotstore.host.residency import Residency
from logformat.leader_epochs import EpochEnd, LeaderEpochs


class Root(Protocol):
    """What is known of a partition once its manifest was read (`known_root.KnownRoot`)."""

    @property
    def log(self) -> ReadableLog: ...
    @property
    def tier(self) -> ReadableTier: ...


class Roots(Protocol):
    """Who reads roots (`roots.Roots`)."""

    def of(self, partition: ArchivedPartition) -> Root:
        """Raises NotKnownYet, and why it cannot be known."""
        ...

    def epochs_of(self, partition: ArchivedPartition) -> LeaderEpochs:
        """The whole lineage. Raises as `of`."""
        ...

    def wanted(self, partition: ArchivedPartition) -> None:
        """Somebody waits for the next record."""
        ...


class NothingLocal:
    """`broker.partition.local_reads.LocalReads` where nothing is local."""

    def read(self, residency: Residency, offset: int, bytes_max: int, end_offset: int, *, min_one: bool) -> None:
        """None: there is nothing yet."""

    async def max_timestamp(self) -> None:
        """None: there is nothing."""

    async def offset_for_timestamp(self, timestamp_ms: int) -> None:
        """None: there is nothing."""


_NOTHING_LOCAL: Final = NothingLocal()


class ArchivedPartition:
    """`broker.partition.readable.Readable`. `used_s`: when somebody asked for it last, by the monotonic clock."""

    __slots__ = (
        "_roots",
        "_waiters",
        "fetched_answers",
        "fetched_bytes",
        "high_watermark",
        "index",
        "is_deleted",
        "leader_epoch",
        "log_start_offset",
        "topic",
        "topic_id",
        "used_s",
    )

    def __init__(self, topic: str, topic_id: UUID, index: int, leader_epoch: int, roots: Roots) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.leader_epoch = leader_epoch
        self.high_watermark = -1
        self.log_start_offset = -1
        self.fetched_answers = self.fetched_bytes = 0
        self.is_deleted = False
        self.used_s = float("-inf")
        self._roots = roots
        self._waiters: DelayedOperations | None = None  # 1 KB that most partitions never need

    def __str__(self) -> str:
        return f"{self.topic}-{self.index}"

    def read(self, manifest: Manifest) -> None:
        """Its root says this now."""
        end = max(manifest.remote_end_offset, manifest.log_start_offset, self.high_watermark)
        start = max(manifest.log_start_offset, self.log_start_offset)
        if (end, start) != (self.high_watermark, self.log_start_offset):
            self.high_watermark, self.log_start_offset = end, start
            self.wake()

    def wake(self) -> None:
        """Whoever waits has to look again."""
        if self._waiters is not None:
            self._waiters.wake()

    def is_waited_for(self) -> bool:
        """Whether a client waits here right now; one that comes back later says `wanted`."""
        return self._waiters is not None and self._waiters.awaits_flush()

    # ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def last_stable_offset(self) -> int:
        """Transactions that are not decided are not copied."""
        return self.high_watermark

    @property
    def is_end_known(self) -> bool:
        """What the bucket holds was committed; clients are told nothing beyond."""
        return True

    @property
    def log(self) -> ReadableLog:
        return self._roots.of(self).log

    @property
    def tier(self) -> ReadableTier:
        return self._roots.of(self).tier

    @property
    def local(self) -> NothingLocal:
        return _NOTHING_LOCAL

    def epoch_end(self, epoch: int) -> EpochEnd:
        return self._roots.epochs_of(self).end_offset_for(epoch, self.high_watermark)

    def end_visible(self, wait_s: float) -> asyncio.Future[None] | None:
        """Nothing is on its way here."""
        return None

    # ── who waits ────────────────────────────────────────────────────────────────────────────────────────────────
    def watch(self, watcher: Callable[[], None], *, at_tail: bool = False) -> None:
        self._waiting().watch(watcher, at_tail=at_tail)
        self._roots.wanted(self)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        self._waiting().unwatch(watcher)

    def tell_once(self, reader: Target) -> None:
        self._waiting().tell_once(reader)

    def forget(self, reader: Target) -> None:
        self._waiting().forget(reader)

    def hurry(self) -> None:
        """A client came back whose session nobody waited on when it was looked at."""
        self._roots.wanted(self)

    def _waiting(self) -> DelayedOperations:
        if self._waiters is None:
            self._waiters = DelayedOperations()
        return self._waiters
