"""Cleans the compacted logs of a data directory, the dirtiest first (Kafka's LogCleaner).

There are `log.cleaner.threads` slots, at most `SLOTS`. Each has an engine and cleans one log at a time, through the
lease of the log's current role. When the role ends, the pass ends. If a log cannot be cleaned, the reason is reported,
the log is served as before, and the cleaner tries again after `RETRY_S`. Configs are read before each pass.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

import msgspec

from hotstore.cleaning.clean_pass import MapTooSmall, PassOver, PassReport, Planned, clean
from hotstore.cleaning.cleanable import Cleanable, cleanable, must_roll
from hotstore.cleaning.cleaner_config import CleanerConfig
from hotstore.cleaning.engine import CleanerEngine, CleanerLost
from hotstore.errors import LogFailed, LogFull
from hotstore.host.lease import Lease
from hotstore.host.log_host import LogHost
from hotstore.host.open_log import OpenLog
from hotstore.host.place import PlaceQuiesced
from logformat.compaction.rules import LOAD_FACTOR, CleanRules
from logformat.errors import Corrupt, Fenced
from logformat.values import TopicPartition
from seams.clock import Clock
from seams.loop.workers import Lane
from seams.world import World

log = logging.getLogger(__name__)

RETRY_S: Final = 300.0
SLOTS: Final = 4


class Uncleanable(msgspec.Struct, frozen=True):
    """A log that could not be cleaned, and the reason."""

    topic_id: UUID
    why: str
    since_s: float
    """By the monotonic clock."""


@dataclass(slots=True)
class CleanerCounters:
    """Counters since the start of the process, for metrics. Bytes are those that passes read and wrote."""

    passes: int = 0
    failed_passes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class LogCleaner:
    """The cleaner of one data directory. `config` returns the current configs. `make_engine` is called once for each
    slot. `is_complete`: whether all configs are known (R29). Until then nothing is cleaned, because a lost config may
    keep what a pass would remove."""

    def __init__(
        self,
        host: LogHost,
        world: World,
        config: Callable[[], CleanerConfig],
        make_engine: Callable[[], CleanerEngine],
        is_complete: Callable[[], bool],
    ) -> None:
        self._host = host
        self._world = world
        self._config = config
        self._is_complete = is_complete
        self._engines = [make_engine() for _ in range(SLOTS)]
        self._throttle = _Throttle(world.clock, config)
        self._cleaning: set[OpenLog] = set()
        self.uncleanable: dict[TopicPartition, Uncleanable] = {}
        self.counters = CleanerCounters()
        self.max_dirty_ratio = 0.0
        """Dirty ratio of the dirtiest log at the last check."""

    def services(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The services by name, one for each slot. Each cleans dirty logs until it is cancelled."""
        return {
            f"log cleaner {number}": partial(self._keep, number, engine) for number, engine in enumerate(self._engines)
        }

    async def close(self) -> None:
        """Close the engines, after the services have ended."""
        for engine in self._engines:
            await self._world.workers.run(engine.close, lane=Lane.CLEAN)

    async def _keep(self, number: int, engine: CleanerEngine) -> None:
        while True:
            config = self._config()
            is_used = config.enabled and number < config.threads
            if not is_used or not await self.clean_dirtiest(engine):
                engine.reap()  # an idle process may have ended by itself; no step runs now
                await asyncio.sleep(config.backoff_ms / 1000)

    # --- one pass ---------------------------------------------------------------------------------------------------

    async def clean_dirtiest(self, engine: CleanerEngine) -> bool:
        """Clean the log with the highest dirty ratio. Returns whether a log was due."""
        if not self._is_complete():
            return False
        await self._roll_overdue()
        found = self._dirtiest()
        if found is None:
            return False
        opened, lease, part = found
        self._cleaning.add(opened)
        try:
            await self._clean(engine, opened, lease, part)
        finally:
            self._cleaning.discard(opened)
        return True

    async def _roll_overdue(self) -> None:
        """Seal active segments with records that have to be cleaned (`must_roll`)."""
        now_ms = self._world.clock.wall_ms()
        for opened, lease in self._candidates():
            # The role may have ended while the previous log was flushed.
            if lease.is_over or opened.is_torn or opened.log.failure:
                continue
            local = opened.log
            if not must_roll(local.active_info(), now_ms, local.config):
                continue
            try:
                lease.roll()
                await lease.flusher.flush()
            except (LogFull, LogFailed) as refused:
                log.info("%s: not rolled for compaction: %s", opened.place, refused)

    def _candidates(self) -> list[tuple[OpenLog, Lease]]:
        """The open compacted logs that have a role and that no slot is cleaning."""
        return [
            (opened, opened.lease)
            for opened in self._host.open_logs
            if opened.log.config.compacts
            and opened.lease is not None
            and not opened.lease.is_over
            and not (opened.is_torn or opened.log.failure or opened in self._cleaning)
        ]

    def _dirtiest(self) -> tuple[OpenLog, Lease, Cleanable] | None:
        best: tuple[OpenLog, Lease, Cleanable] | None = None
        self.max_dirty_ratio = 0.0
        for opened, lease in self._candidates():
            if self._is_given_up(opened):
                continue
            part = self._part(opened)
            self.max_dirty_ratio = max(self.max_dirty_ratio, part.dirty_ratio)
            if part.is_due and (best is None or part.dirty_ratio > best[2].dirty_ratio):
                best = opened, lease, part
        return best

    def _part(self, opened: OpenLog) -> Cleanable:
        local, now_ms = opened.log, self._world.clock.wall_ms()
        segments = [segment.info for segment in local.sealed_runs()]
        committed_end = min(local.owner.cleanable_end(), local.flushed_end_offset)
        cleaned_offset = self._host.cleaned_offset(opened)
        return cleanable(segments, cleaned_offset, committed_end, local.local_log_start_offset, now_ms, local.config)

    async def _clean(self, engine: CleanerEngine, opened: OpenLog, lease: Lease, part: Cleanable) -> None:
        config, workers, local = self._config(), self._world.workers, opened.log
        planned = Planned.of(local)
        producers = local.producers.at(local.log_end_offset)
        rules = CleanRules(
            now_ms=self._world.clock.wall_ms(),
            delete_retention_ms=local.config.delete_retention_ms,
            aborted=tuple(
                (of.producer_id, of.first_offset, of.last_offset)
                for of in local.aborted_between(local.local_log_start_offset, part.end)
            ),
            last_offsets=await workers.run(producers.last_offsets, part.end, lane=Lane.CLEAN),
            # Another replica may serve, or copy to the bucket, the record that a tombstone deletes (ADR 32).
            tombstones_end=0 if planned.has_cold_records else local.owner.tombstones_end(),
        )
        share = min(config.io_buffer_load_factor / LOAD_FACTOR, 1.0)
        buffer_bytes = int(config.dedupe_buffer_bytes * share) // min(config.threads, SLOTS)
        try:
            await workers.run(engine.begin, buffer_bytes, rules, lane=Lane.CLEAN)
            try:
                report = await clean(lease, engine, part, planned, self._throttle)
            finally:
                await workers.run(engine.end, lane=Lane.CLEAN)
        except (Fenced, PlaceQuiesced) as over:
            log.debug("%s: a pass of the cleaner ended with its role: %s", opened.place, over)
        except PassOver as over:
            log.info("%s: a pass of the cleaner ended: %s", opened.place, over)
        except (Corrupt, OSError, CleanerLost, MapTooSmall) as failure:
            self._give_up(opened, failure)
        else:
            self._note(opened, report)

    def _note(self, opened: OpenLog, report: PassReport) -> None:
        counters = self.counters
        counters.passes += 1
        counters.read_bytes += report.read_bytes
        counters.written_bytes += report.written_bytes
        self.uncleanable.pop(opened.place, None)
        log.info(
            "%s: cleaned [%d, %d): %d bytes in %d segments became %d bytes in %d",
            opened.place,
            report.first_dirty,
            report.end,
            report.read_bytes,
            report.segments_before,
            report.written_bytes,
            report.segments_after,
        )

    def _give_up(self, opened: OpenLog, failure: Exception) -> None:
        self.counters.failed_passes += 1
        self.uncleanable[opened.place] = Uncleanable(opened.topic_id, str(failure), self._world.clock.monotonic_s())
        log.error("%s: not cleaned, but served as before: %s", opened.place, failure)

    def _is_given_up(self, opened: OpenLog) -> bool:
        found = self.uncleanable.get(opened.place)
        if found is None:
            return False
        if found.topic_id == opened.topic_id and self._world.clock.monotonic_s() - found.since_s < RETRY_S:
            return True
        del self.uncleanable[opened.place]
        return False


class _Throttle:
    """Enforces `log.cleaner.io.max.bytes.per.second` for the reads of passes."""

    def __init__(self, clock: Clock, config: Callable[[], CleanerConfig]) -> None:
        self._clock = clock
        self._config = config
        self._free_at_s = self._clock.monotonic_s()

    async def took(self, read_bytes: int) -> None:
        """Wait until `read_bytes` more are allowed."""
        config, now_s = self._config(), self._clock.monotonic_s()
        if not config.is_throttled:
            return
        self._free_at_s = max(self._free_at_s, now_s) + read_bytes / config.io_bytes_per_s
        await asyncio.sleep(self._free_at_s - now_s)
