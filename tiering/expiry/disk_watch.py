"""Watches the disk of the data directory and frees space under pressure (G12).

The chunk cache yields first, then copied segments, oldest first; a remaining excess slows producers down
(`local_excess_ratio`). No partition is checked while the disk is below its limit and has room. A shortage is logged
when it begins and when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from hotstore.host.ballast import ROOM
from hotstore.host.log_host import LogHost
from seams.files.disk import Space
from seams.loop.workers import Workers
from tiering.expiry.disk_quota import LocalBytes, cache_room, excess_bytes, room_bytes, share_pressure
from tiering.partition_tier import PartitionTier
from tiering.reading.cold_reader import ColdReader
from tiering.tier_config import TierLimits

log = logging.getLogger(__name__)

WATCH_DISK_S: Final = 5.0
WATCH_FULL_DISK_S: Final = 1.0  # time between checks while produces wait for room
EXCESS_LOGGED_RATIO: Final = 0.02  # below this excess no producer is slowed down


class DiskView(NamedTuple):
    """The file system of the data directory, and the share for local logs. Bytes."""

    total: int
    free: int
    log_limit: int
    is_share: bool = False  # the limit is a share of the file system, which other programs may fill too


class DiskWatch:
    """The disk watch of one broker. `tiers`: the attached tiers."""

    def __init__(
        self, logs: LogHost, cold: ColdReader, tiers: Iterable[PartitionTier], workers: Workers, limits: TierLimits
    ) -> None:
        self._logs = logs
        self._cold = cold
        self._tiers = tiers
        self._workers = workers
        self._limits = limits
        self._cache_yields = False
        self.local_excess_ratio = 0.0
        """Excess of local bytes over their limit, as a share of it, after all copied segments were requested (G12)."""
        self.disk = DiskView(0, 0, 0)
        """As of the last check, a few seconds ago."""

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._relieve()
            has_no_room = self.local_excess_ratio > 0 or self._logs.ballast.is_short
            await asyncio.sleep(WATCH_FULL_DISK_S if has_no_room else WATCH_DISK_S)

    async def _relieve(self) -> None:
        """One check: free bytes if local logs are over their limit or the file system has no room."""
        limits, ballast = self._limits, self._logs.ballast
        space = await self.check_space()
        # Preallocated blocks are filled by logs: no space has to be freed for them.
        space = Space(space.total, space.free + ballast.preallocation.held_bytes)
        space = await self._fit_cache(space)
        sharers, ratio_max = limits.brokers_on_disk, limits.local_space_ratio_max
        excess = excess_bytes(self._local_bytes, space, limits.local_bytes_max, ratio_max, sharers)
        room = room_bytes(self._local_bytes, space, 2 * ROOM * ballast.size_bytes, sharers)
        wanted = max(excess, room)
        shares = share_pressure(self._copied_segments() if wanted > 0 else (), wanted)
        limit = limits.local_bytes_max
        stuck = max(excess - shares.sure_bytes, 0)
        if limit is None:
            limit = int(space.total * ratio_max) // sharers
            if ballast.is_short:
                stuck = 0  # perhaps other programs fill the disk; the log has a line about the full disk already
        before, self.local_excess_ratio = self.local_excess_ratio, stuck / max(limit, 1)
        free = space.free - ballast.size_bytes if ballast.is_short else space.free
        self.disk = DiskView(space.total, max(free, 0), limit, limits.local_bytes_max is None)
        if (before > EXCESS_LOGGED_RATIO) != (self.local_excess_ratio > EXCESS_LOGGED_RATIO):
            self._log_pressure(stuck)
        for tier, asked in shares.wanted.items():
            tier.expire_soon(asked)

    async def check_space(self) -> Space:
        """Delete or create the ballast file, and log it; returns the free space afterwards."""
        ballast, path = self._logs.ballast, self._logs.path
        was_short = ballast.is_short
        space = await self._workers.run(ballast.check_space)
        if ballast.is_short and not was_short:
            log.warning(
                "no space left below %s: appends are refused, reads and copies go on, and copied segments are deleted "
                "from the disk; free space: appends then resume by themselves",
                path,
            )
        elif was_short and not ballast.is_short:
            log.info("there is space again below %s (%d MB): appends resume", path, space.free >> 20)
        return space

    def _local_bytes(self) -> int:
        return sum(opened.log.local_bytes for opened in self._logs.open_logs)

    def _copied_segments(self) -> list[LocalBytes[PartitionTier]]:
        """Local segments that the bucket holds too."""
        return [
            LocalBytes(segment.first_append_ms, segment.bytes, tier, segment.end_offset <= sure_end)
            for tier in self._tiers
            if tier.enabled
            for sure_end in (tier.partition_state.sure_end_offset,)
            for segment in tier.partition_state.log.sealed_segments()
            if segment.end_offset <= tier.remote_end_offset
        ]

    async def _fit_cache(self, space: Space) -> Space:
        """Shrink the chunk cache before any log, or let it grow again; returns the free space afterwards."""
        held, configured = self._cold.cached_bytes, self._limits.cache_bytes_max
        limits = self._limits
        room = cache_room(held, space, configured, limits.local_space_ratio_max, limits.brokers_on_disk)
        try:
            await self._cold.resize_cache(room)
        except OSError as refused:
            log.warning("the chunk cache could not be made smaller: %s", refused)
        given_back = held - self._cold.cached_bytes
        if given_back > 0 and not self._cache_yields:
            self._cache_yields = True
            log.warning(
                "the chunk cache was reduced to %d of its %d MB: the file system is %d %% full; cold reads "
                "go to the bucket more often; free disk space below %s",
                room >> 20,
                configured >> 20,
                100 * (space.total - space.free) // max(space.total, 1),
                self._logs.path,
            )
        elif room == configured and self._cache_yields:
            self._cache_yields = False
            log.info("the chunk cache may use its %d MB again", configured >> 20)
        return Space(space.total, space.free + max(given_back, 0))

    def _log_pressure(self, stuck: int) -> None:
        """Log when the excess, which slows produces down and then refuses them, begins and ends."""
        disk = self.disk
        if self.local_excess_ratio <= EXCESS_LOGGED_RATIO:
            log.info("local logs are within their limit of %d MB again", disk.log_limit >> 20)
        elif disk.is_share:
            log.warning(
                "the file system of %s is %d %% full, and %d MB of local logs are not in the bucket yet, so they "
                "cannot be deleted: produces slow down, and are refused when it gets worse; see blocked_by "
                "in tier status, free disk space, or set thermocline.local.bytes.max",
                self._logs.path,
                100 * (disk.total - disk.free) // max(disk.total, 1),
                stuck >> 20,
            )
        else:
            log.warning(
                "local logs are %d MB over their limit of %d MB and the bucket does not hold them yet: produces slow "
                "down at 2 %% over and are refused at 10 %%; see blocked_by in tier status, free disk space, or set "
                "thermocline.local.bytes.max",
                stuck >> 20,
                disk.log_limit >> 20,
            )
