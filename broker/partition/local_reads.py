"""Reads one partition's log on this disk without blocking the loop.

Only bytes that are in the page cache and were checked since the start are sent (C25). A worker first loads and checks
other bytes, once for all readers. Damage is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final, Protocol, TypeVar, TypeVarTuple

from broker.fetch_sessions.session import Target
from broker.partition.leading.delayed_operations import DelayedOperations, Watcher
from broker.partition.readable import ReadableTier
from hotstore.errors import DamagedLog
from hotstore.host.lease import Lease
from hotstore.host.residency import Residency
from hotstore.log.locator import LogSlice
from hotstore.log.partition_log import PartitionLog
from hotstore.log.segment import IndexNeeded
from hotstore.log.timestamps import TimestampedOffset
from logformat.leader_epochs import EpochEnd
from seams.files.disk import FileRange
from seams.loop.workers import Lane

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_ROLES: Final = count()


class LocalReads:
    """Reads for the role that holds `lease`. `damaged` is called with damage that a read found."""

    __slots__ = ("_damaged", "_lease", "_log", "_name")

    def __init__(self, lease: Lease, damaged: Callable[[DamagedLog], None]) -> None:
        self._lease = lease
        self._log = lease.log
        self._name = f"{lease.log.path} (role {next(_ROLES)})"  # unique: a role does not share work with the next role
        self._damaged = damaged

    def read(
        self, residency: Residency, offset: int, bytes_max: int, end_offset: int, *, min_one: bool
    ) -> LogSlice | asyncio.Future[None] | None:
        """Local bytes below `end_offset` from the batch that holds `offset`, ready to be sent; None: there are no such
        bytes yet. A future: an index, a check or the bytes need the disk first; read again when the future is done.
        `end_offset` is the high watermark, except for replicas. Raises LeaseOver (the log may be closed), the errors of
        `PartitionLog.read_loaded`, Retryable, and the OSError of a worker for an earlier call."""
        self._lease.check()
        log = self._log
        try:
            found = log.read_loaded(offset, bytes_max, end_offset, min_one=min_one)
            if found is None or found.length == 0:
                return found
            found = log.sound(found)
        except IndexNeeded as needed:
            load = partial(self._load_index, needed)
            return residency.once(f"index of {self._name} at", needed.segment.base_offset, load)
        except DamagedLog as damaged:
            self._damaged(damaged)
            raise
        # Only the end of the log was just written, so it is in the page cache.
        if found.sealed and (loading := residency.ready(found.file, found.position, found.length)) is not None:
            return loading
        if not log.is_checked(found):  # if the check finds damage, `sound` raises it from then on
            check = partial(self._call, log.check, found)
            return residency.once(f"check of {self._name} at", found.segment_base, check)
        return found

    def aborted_in(self, found: LogSlice, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """See `ReadableLocal`. Raises LeaseOver."""
        self._lease.check()
        log = self._log
        return [(of.producer_id, of.first_offset) for of in log.aborted_between(offset, log.end_of(found, end_offset))]

    async def batch_ranges(self, start_offset: int, end_offset: int) -> list[FileRange]:
        """See `PartitionLog.batch_ranges`. The files stay readable after the role. Raises LeaseOver, DamagedLog,
        OSError."""
        return await self._call(self._log.batch_ranges, start_offset, end_offset)

    async def max_timestamp(self) -> TimestampedOffset | None:
        """The first local record with the greatest timestamp. Raises LeaseOver, DamagedLog, OSError."""
        return await self._call(self._log.max_timestamp)

    async def offset_for_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """The first local record that is not older than the timestamp. Raises LeaseOver, DamagedLog, OSError."""
        return await self._call(self._log.offset_for_timestamp, timestamp_ms)

    async def _call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run in a worker, unless the role ended meanwhile."""
        self._lease.check()
        return await self._lease.call(function, *args, lane=Lane.HOT_READ)

    async def _load_index(self, needed: IndexNeeded) -> None:
        with suppress(DamagedLog):  # each later read raises it, and reports it to its client
            await self._call(needed.load)


class LocalReadable(Protocol):
    """Base of a `Readable` whose log is open on this broker, leader or follower."""

    __slots__ = ()

    waiters: DelayedOperations
    log: PartitionLog

    @property
    def tier(self) -> ReadableTier: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...

    @property
    def last_stable_offset(self) -> int:
        """Offset below which every transaction is decided, according to this log up to its high watermark (TX8).
        Transactions of records that only the bucket has are decided (TX5, TX27). The aborted transactions of local
        records are known only to this log, even if their markers are in the bucket already.
        """
        high_watermark = self.high_watermark
        stable = self.log.last_stable_offset(high_watermark)
        if stable < high_watermark:
            bucket_only_end = min(self.tier.remote_end_offset, self.log.local_log_start_offset)
            stable = min(max(stable, self.log_start_offset, bucket_only_end), high_watermark)
        return stable

    def epoch_end(self, epoch: int) -> EpochEnd:
        """The end of an epoch, up to the log end. The high watermark is not the limit: after a restart a lower high
        watermark would look like a truncation to a reader."""
        return self.log.epochs.end_offset_for(epoch, self.log.log_end_offset)

    def unwatch(self, watcher: Watcher) -> None:
        self.waiters.unwatch(watcher)

    def tell_once(self, reader: Target) -> None:
        self.waiters.tell_once(reader)

    def forget(self, reader: Target) -> None:
        self.waiters.forget(reader)
