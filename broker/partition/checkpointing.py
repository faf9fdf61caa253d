"""What partitions that serve need from time to time: ticks, and checkpoints of what changed.

Owns which partitions changed since the last checkpoint. Always true: an idle partition costs nothing here, whatever
others do; what a checkpoint on a full disk did not write is written by the next one, which is not due any sooner for it
and samples nothing twice (the directory's checkpoints remember). Must not know how partitions are opened or closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from broker.config.live import LiveConfig
from broker.partition.hosted_replica import HostedReplica
from broker.partition.registry import Registry
from hotstore.host.log_host import LogHost
from seams.disk import is_full
from seams.world import World

_TICK_S: Final = 1.0


class Checkpointing:
    """Of one broker's partitions."""

    def __init__(self, config: LiveConfig, world: World, logs: LogHost, registry: Registry) -> None:
        self._live = config
        self._clock = world.clock
        self._beats = world.beats
        self._logs = logs
        self._registry = registry
        self._changed: set[HostedReplica] = set()  # written to since the last checkpoint
        self._has_new = False
        self._is_due = asyncio.Event()

    def opened(self, partitions: Iterable[HostedReplica]) -> None:
        """They lead or follow in another epoch now: the next checkpoint notes them, soon."""
        self._changed.update(partitions)
        self._has_new = True

    async def checkpoint(self) -> None:
        """Note recovery points, log starts and high watermarks of what was written to or opened since the last time, so
        that the next start looks at less. Raises OSError."""
        changed = [p for p in self._changed | self._registry.touched if self._registry.is_open(p)]
        self._has_new = False
        self._changed.clear()
        in_order = sorted(changed, key=lambda p: (p.topic, p.index))
        await self._logs.checkpoint({partition.log: partition.high_watermark for partition in in_order})

    async def keep_checkpoints(self) -> None:
        """Until cancelled: the checkpoints are written together, as often as the most frequent one asks, and when a
        replica saw a leader epoch that they do not name."""
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
        """Until cancelled: once a second, the logs that were written to lately look at flush.ms and at late acks."""
        while True:
            await self._beats.wait(_TICK_S)
            self._changed |= self._registry.touched
            if self._has_new:  # those that lead or follow in another epoch now are to say so soon (R20)
                self._is_due.set()
            now_ms = self._clock.wall_ms()
            now_s = asyncio.get_running_loop().time()
            for partition in sorted(self._registry.touched, key=lambda p: (p.topic, p.index)):
                if partition.opened.seen_epoch != partition.opened.noted_epoch:
                    self._is_due.set()
                if not partition.tick(now_ms, now_s):
                    self._registry.touched.discard(partition)
