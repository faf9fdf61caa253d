"""Closes a broker's logs at its stop: flush, detach, close, checkpoint.

A shutdown is used once. A log that cannot be closed cleanly makes the stop unclean; later logs are then closed without
further work. A failed flush does not prevent the flush of another log. Waiters of a partition fail last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final

from broker.partition.leading.leader_role import LeaderRole
from hotstore.host.log_host import LogHost
from hotstore.host.open_log import OpenLog
from logformat.errors import StorageFailed
from seams.loop.tasks import FailureReport
from tiering.service import TierService

CLOSING_MAX: Final = 16


class LogShutdown:
    """The shutdown of a broker's logs. `clean`: the broker stops in order."""

    def __init__(self, logs: LogHost, tiers: TierService, report: FailureReport, *, clean: bool) -> None:
        self._logs = logs
        self._tiers = tiers
        self._report = report
        self._slots = asyncio.Semaphore(CLOSING_MAX)
        self._stops_clean = clean

    async def close(self, serving: Sequence[LeaderRole], others_end: Awaitable[None]) -> bool:
        """Flush and close every log. A clean stop returns reservations, and the logs need no recovery. `serving`: the
        leader roles; `others_end` awaits every other role and the removal of logs. Returns whether every log was left
        clean."""
        await asyncio.gather(*map(self._close_led, serving), others_end)
        await self._logs.settled()
        await asyncio.gather(*map(self._close_log, self._logs.open_logs))
        if self._stops_clean:
            try:
                await self._logs.write_checkpoints()
            except OSError as failure:
                self._report("checkpoints", failure)
                self._stops_clean = False
        return self._stops_clean

    async def _close_led(self, role: LeaderRole) -> None:
        partition = role.partition
        assert partition is not None
        async with self._slots:
            if self._stops_clean:
                await self._flush(partition.opened)
            await self._tiers.detach(partition.tier, give_back=self._stops_clean)
            role.stop(StorageFailed(f"{role.place}: the broker is stopping"))
        await self._close_log(partition.opened)

    async def _flush(self, opened: OpenLog) -> None:
        try:
            await opened.flusher.flush()
        except StorageFailed as failure:
            self._report(f"flush {opened.place}", failure)
            self._stops_clean = False

    async def _close_log(self, opened: OpenLog) -> None:
        async with self._slots:
            try:
                is_clean = await self._logs.close(opened, clean=self._stops_clean)
            except OSError as failure:
                self._report(f"close {opened.place}", failure)
                is_clean = False
            if not is_clean:
                self._stops_clean = False  # never set to true again, because other logs close meanwhile
