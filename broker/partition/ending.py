"""A broker's logs at its stop: flushed, detached, checkpointed, closed.

Owns whether the stop is clean. Always true: a log that cannot be left clean makes the stop unclean, and those after it
are closed as they are; none keeps another from its flush; whoever waits for a partition learns last that the broker
stops. One use. Must not know why it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from broker.partition.registry import Registry
from broker.partition.replica import Partition
from broker.partition.upkeep import Upkeep
from hotstore.log_host import LogHost, OpenLog
from logformat.errors import StorageFailed
from seams.tasks import FailureReport
from tiering.service import TierService

_CLOSING_MAX: Final = 16


class Ending:
    """`resigning`: what is under way of partitions that resigned; `clean`: this is a stop in order."""

    def __init__(
        self,
        logs: LogHost,
        tiers: TierService,
        registry: Registry,
        upkeep: Upkeep,
        resigning: Mapping[Partition, asyncio.Task[None]],
        report: FailureReport,
        *,
        clean: bool,
    ) -> None:
        self._logs = logs
        self._tiers = tiers
        self._registry = registry
        self._upkeep = upkeep
        self._resigning = resigning
        self._report = report
        self._stops_clean = clean

    async def close(self, followed: Sequence[OpenLog], removed: Awaitable[None]) -> bool:
        """Flush and close every log; in a clean stop reservations are given back and the logs need no recovery.
        `followed`: logs whose copying ended; `removed` ends when no deleted one is open.

        Returns whether every log could be left clean.
        """
        slots = asyncio.Semaphore(_CLOSING_MAX)

        async def close_one(partition: Partition) -> None:
            async with slots:
                await self._close_one(partition)

        await asyncio.gather(*(close_one(partition) for partition in tuple(self._registry)), removed)
        if self._stops_clean:
            try:
                await self._upkeep.checkpoint_all()
                await self._logs.checkpoint({opened.log: opened.high_watermark for opened in followed})
            except OSError as failure:
                self._report("checkpoints", failure)
                self._stops_clean = False
        for opened in followed:
            self._stops_clean &= await self._close_log(opened, clean=self._stops_clean)
        for opened in self._logs.open_logs:  # in no role yet
            await self._close_log(opened, clean=False)
        return self._stops_clean

    async def _close_one(self, partition: Partition) -> None:
        name = f"{partition.topic}-{partition.index}"
        if self._stops_clean:
            try:
                await partition.flusher.flush()
            except StorageFailed as failure:
                self._report(f"flush {name}", failure)
                self._stops_clean = False
        if partition.leading:
            await self._tiers.detach(partition.tier, give_back=self._stops_clean)
        elif (resigning := self._resigning.get(partition)) is not None:
            await asyncio.wait([resigning])
        if not await self._close_log(partition.opened, clean=self._stops_clean):
            self._stops_clean = False
        partition.resign(StorageFailed(f"{name}: the broker is stopping"))

    async def _close_log(self, opened: OpenLog, *, clean: bool) -> bool:
        """Whether it is left clean."""
        try:
            return await self._logs.close(opened, clean=clean)
        except OSError as failure:  # a full or failing disk must not keep the other logs from their flush
            self._report(f"close {opened.place}", failure)
            return False
