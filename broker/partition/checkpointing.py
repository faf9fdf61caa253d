"""Ticks and checkpoints of changed partitions.

An idle partition costs nothing. If a full disk refuses a checkpoint, its values are written with the next checkpoint,
at the usual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from broker.config.live import LiveConfig
from broker.partition.readable import HostedReplica
from broker.partition.registry import Registry
from hotstore.host.log_host import LogHost
from seams.files.disk import is_full
from seams.world import World

_TICK_S: Final = 1.0


class Checkpointing:
    def __init__(self, config: LiveConfig, world: World, logs: LogHost, registry: Registry) -> None:
        self._live = config
        self._clock = world.clock
        self._beats = world.beats
        self._logs = logs
        self._registry = registry
        self._changed: set[HostedReplica] = set()  # logs that were written to since the last checkpoint
        self._has_new = False
        self._is_due = asyncio.Event()

    def opened(self, partitions: Iterable[HostedReplica]) -> None:
        """Note partitions that lead or follow in another epoch, so that a checkpoint records this epoch soon."""
        self._changed.update(partitions)
        self._has_new = True

    async def checkpoint(self) -> None:
        """Write recovery points, log starts and high watermarks of every partition changed since the last checkpoint,
        so that the next start recovers less. Raises OSError."""
        changed = [p for p in self._changed | self._registry.touched if self._registry.is_open(p)]
        self._has_new = False
        self._changed.clear()
        in_order = sorted(changed, key=lambda p: (p.topic, p.index))
        await self._logs.checkpoint({partition.log: partition.high_watermark for partition in in_order})

    async def keep_checkpoints(self) -> None:
        """Checkpoint until cancelled: at the shortest of the three configured intervals, and when a replica saw a
        leader epoch that is not recorded."""
        config = self._live.now
        interval_ms = min(
            config.recovery_point_checkpoint_interval_ms,
            config.log_start_checkpoint_interval_ms,
            config.high_watermark_checkpoint_interval_ms,
        )
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(interval_ms / 1000):
                    await self._is_due.wait()
            self._is_due.clear()
            try:
                await self.checkpoint()
            except OSError as failure:
                if not is_full(failure):
                    raise
                self._logs.ballast.met_full = True

    async def keep_ticking(self) -> None:
        """Check flush.ms and overdue acknowledgements of recently written logs, once a second until cancelled."""
        while True:
            await self._beats.wait(_TICK_S)
            self._changed |= self._registry.touched
            if self._has_new:  # a new leader epoch is recorded soon (R20)
                self._is_due.set()
            now_ms = self._clock.wall_ms()
            now_s = asyncio.get_running_loop().time()
            for partition in sorted(self._registry.touched, key=lambda p: (p.topic, p.index)):
                if partition.opened.seen_epoch != partition.opened.noted_epoch:
                    self._is_due.set()
                if not partition.tick(now_ms, now_s):
                    self._registry.touched.discard(partition)
