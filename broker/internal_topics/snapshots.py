"""Writes snapshots of an internal topic's shards to the bucket, for the loss of a disk.

A failing shard does not delay other shards. The log has one line when failures begin and one line when they end, for
any number of shards. A snapshot is committed only in the leader epoch in which it was cut. Nothing local is deleted
because of a snapshot, and a load that finds the complete local log reads no snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any, Final

from broker.config.units import show_duration
from broker.internal_topics.internal_log import InternalLog
from broker.internal_topics.led_shard import LedShard
from logformat.errors import ThermoclineError
from seams.clock import Clock

log = logging.getLogger(__name__)

_LOOKS_PER_INTERVAL: Final = 4


class Snapshots:
    def __init__(self, internal_log: InternalLog[Any], clock: Clock) -> None:
        self._log = internal_log
        self._clock = clock
        self._interval_s = internal_log.limits.snapshot_interval_ms / 1000
        self._failing_since_s: float | None = None

    @property
    def topic(self) -> str:
        return self._log.name

    async def keep(self) -> None:
        """Check a few times per interval for due snapshots, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s / _LOOKS_PER_INTERVAL)
            await self._write_and_tell(self._interval_s)

    async def write_changed(self) -> None:
        """Write every shard that changed since its last snapshot. A shard that failed stays due; failures are
        logged."""
        await self._write_and_tell(0.0)

    async def _write_and_tell(self, age_s: float) -> None:
        written, failures = await self._round(age_s)
        if failures:
            self._failed(failures)
        elif written and self._failing_since_s is not None:
            lasted = show_duration(int(self._clock.monotonic_s() - self._failing_since_s) * 1000)
            self._failing_since_s = None
            log.warning("snapshots of %s are written again, after %s", self._log.name, lasted)

    async def write_all(self) -> None:
        """As `write_changed`, at the stop of a broker. Raises a failure after every shard was tried."""
        _, failures = await self._round(0.0)
        for failure in failures.values():
            raise failure

    def _failed(self, failures: dict[str, Exception]) -> None:
        if self._failing_since_s is not None:
            return
        self._failing_since_s = self._clock.monotonic_s()
        name, failure = next(iter(failures.items()))
        more = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        log.warning(
            "a snapshot of %s%s could not be written: %s; until a snapshot is written, a lost disk loses the records "
            "since the last snapshot",
            name,
            more,
            failure,
        )

    async def _round(self, age_s: float) -> tuple[int, dict[str, Exception]]:
        """Write shards whose last snapshot is `age_s` old. Returns how many succeeded, and the failures by shard
        name."""
        written, failures = 0, dict[str, Exception]()
        for shard in tuple(self._log.shards()):
            dirty_since_s = shard.book.dirty_since_s
            if dirty_since_s is None or self._clock.monotonic_s() - dirty_since_s < age_s:
                continue
            try:
                written += await self._write(shard)
            except (ThermoclineError, OSError) as failure:
                failures[shard.shard_log.name] = failure
        return written, failures

    @staticmethod
    async def _write(shard: LedShard[Any]) -> bool:
        if shard.book.dirty_since_s == -math.inf and shard.book.found(await shard.shard_log.snapshot_end()):
            return False
        end_offset, batches = await shard.snapshot()
        if shard.is_dropped:
            return False  # the epoch ended during the encoding: the next leader replays these records
        await shard.shard_log.commit_snapshot(end_offset, batches)
        shard.book.written(end_offset)
        return True
