"""Letting go of bytes: local segments that the bucket holds, cold segments that retention is over for.

Owns the order of deletion of one partition. Always true: cold, the log start moves in the root first, then the grace
passes, then objects go, then the deletion cursor moves (KAFKA-15352); local, bytes of a tiered log go only where the
committed manifest covers them with objects this process saw in the store after their commit; a log that is not tiered
loses what its own retention allows, its start checkpointed first. Where tiering was switched off the log start moves to
the local start in the root before any object goes, and a range that is still local is named no more before its object
goes, so that tiering may be switched on again at any moment. Every step may be cut off and is found again by the next
run, or by gc. Must not know when it runs, nor what the disk's limit is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coldstore.manifest import EditRefused, Manifest, RemoteSegment
from coldstore.object_store import AccessRefused, ObjectMissing, StoreUnavailable
from hotstore.local_retention import active_expired, expirable
from hotstore.log_config import LogConfig
from hotstore.partition_log import PartitionLog
from hotstore.segment import SegmentInfo
from logformat.errors import Corrupt, Retryable
from seams.crash_points import reach
from seams.workers import Lane
from tiering.copier import Copier
from tiering.expire_plan import TotalRetention, Verdict, bytes_only_local
from tiering.partition_state import Block, TieredPartition, first_local_offset

log = logging.getLogger(__name__)

DELETE_BATCH: Final = 100  # objects deleted between two moves of the cursor
GRACES_MAX: Final = 1000
IDLE_LOOK_S_MAX: Final = 3600.0

Checkpoint = Callable[[PartitionLog], Awaitable[None]]


@dataclass(slots=True)
class ExpireCounters:
    """Totals of a broker, for metrics."""

    deleted_objects: int = 0
    deleted_cold_bytes: int = 0
    deleted_local_bytes: int = 0


class Expirer:
    """One partition's retention. `checkpoint` makes its log start durable on disk."""

    def __init__(
        self, partition: TieredPartition, copier: Copier, counters: ExpireCounters, checkpoint: Checkpoint
    ) -> None:
        self._partition = partition
        self._copier = copier
        self._counters = counters
        self._checkpoint = checkpoint
        self._graces: deque[tuple[float, int]] = deque()  # (when, log start): objects that end at or below it may go
        self._unnamed: deque[tuple[float, list[str]]] = deque()
        self._checkpointed_start = -1
        self._seen_end = -1  # of the log, at the last look
        self._is_behind = False  # what was to go did not: not verified, damaged, or its small files are not written yet
        self.pressure_bytes = 0
        """Bytes the disk wants back from this log; set from outside, answered by the next run."""

    async def run(self) -> float | None:
        """Do what is due; seconds until something may be due again.

        Raises Retryable, AccessRefused, Fenced, OSError."""
        partition = self._partition
        if partition.fenced:
            return None
        refused = await self._expire_cold() if partition.claimed else None
        await self._expire_local()
        if refused is not None:
            raise refused
        waiting = [grace[0] for grace in (*list(self._graces)[:1], *list(self._unnamed)[:1])]
        now_s = partition.world.clock.monotonic_s()
        again_s = self._next_look_s()  # last: what was appended during this run is looked at in the next
        looks_s = [max(when - now_s, 0.0) for when in waiting]
        return min(looks_s if again_s is None else [again_s, *looks_s], default=None)

    def _next_look_s(self) -> float | None:
        """How long nothing can become due, but for graces: an interval where something was appended since the last
        look, or stayed that was due; else only time passes, and a late look is late by a tenth of the limit at most."""
        partition = self._partition
        local, config, end = partition.log, partition.config, partition.log.log_end_offset
        interval_s = partition.limits.retention_check_interval_ms / 1000
        seen_end, self._seen_end = self._seen_end, end
        if end != seen_end or self._is_behind:
            return interval_s
        limits_ms = [limit_ms for limit_ms in (config.retention_ms, config.local_retention_ms) if limit_ms >= 0]
        is_empty = partition.log_start_offset >= end and local.local_log_start_offset >= end
        if is_empty or not limits_ms:
            return None  # woken by appends, by other configs, by a disk that is full
        return max(interval_s, min(min(limits_ms) / 10_000, IDLE_LOOK_S_MAX))

    async def _expire_cold(self) -> Retryable | AccessRefused | None:
        """The cold side; why it could not be done. The local side goes on without: the disk must not fill up because
        a store is away or deletes nothing (G12)."""
        try:
            await self._move_start()
            await self._delete_cold()
            await self._withdraw()
        except (Retryable, AccessRefused) as refused:
            return refused
        return None

    async def checkpoint(self) -> None:
        """Make the local log start durable on disk."""
        await self._checkpoint(self._partition.log)

    # ── the log start ────────────────────────────────────────────────────────────────────────────────────────────
    async def _move_start(self) -> None:
        partition = self._partition
        manifest = partition.manifest
        if manifest is None or partition.config.internal:
            return
        start = partition.log_start_offset
        if not partition.config.enabled:
            start = max(start, partition.log.local_log_start_offset)  # switched off: Kafka does the same (KIP-950)
        elif manifest.live.segments:
            start = max(start, await self._retention_start(manifest))
        if start > manifest.log_start_offset and (partition.config.enabled or manifest.remote_end_offset):
            await self.move_start(start)

    async def move_start(self, offset: int) -> None:
        """Commit a log start to the root, then follow it locally (C26). Raises as `commit`."""
        partition = self._partition
        await partition.commit(lambda m: m.set_log_start(offset))
        partition.log.advance_log_start(min(offset, partition.log.log_end_offset))
        reach("expire.start_moved")

    async def _retention_start(self, manifest: Manifest) -> int:
        """Where the log would start if total retention over both tiers were enforced now."""
        partition = self._partition
        config = partition.config
        start = manifest.log_start_offset
        if config.retention_ms < 0 and config.retention_bytes < 0:
            return start
        local = partition.log
        only_local = bytes_only_local(local.sealed_segments(), local.active_info(), manifest.remote_end_offset)
        retention = TotalRetention(
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            total_bytes=manifest.live.log_bytes + only_local,
            now_ms=partition.world.clock.wall_ms(),
        )
        async for segment in partition.manifests.segments():
            if segment.end_offset <= partition.log_start_offset:
                retention.deleted(segment)
                continue
            verdict = retention.judge(segment)
            if verdict is Verdict.KEPT:
                break
            if verdict is Verdict.EXPIRED:
                start = segment.end_offset
        return start

    # ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def _delete_cold(self) -> None:
        partition = self._partition
        manifest = partition.manifest
        assert manifest is not None
        now_s = partition.world.clock.monotonic_s()
        grace_s = partition.limits.gc_grace_ms / 1000
        known = self._graces[-1][1] if self._graces else manifest.deletion_cursor
        if manifest.log_start_offset > known and manifest.coverage_start < manifest.log_start_offset:
            if len(self._graces) >= GRACES_MAX:
                self._graces.pop()
            self._graces.append((now_s + grace_s, manifest.log_start_offset))
        unnamed = partition.manifests.take_unnamed()
        if unnamed:
            self._unnamed.append((now_s + grace_s, unnamed))
        while self._graces and self._graces[0][0] <= now_s:
            await self._delete_up_to(self._graces[0][1])
            self._graces.popleft()
        while self._unnamed and self._unnamed[0][0] <= now_s:
            await self._delete_keys(self._unnamed[0][1])
            reach("expire.unnamed_deleted")
            self._unnamed.popleft()

    async def _withdraw(self) -> None:
        """Tiering was switched off: name no copy of what is local any more, then delete the objects after the grace.

        Those that end at or below the log start are deleted first, by the cursor. What a kill leaves is left to gc."""
        partition = self._partition
        manifest, local = partition.manifest, partition.log
        assert manifest is not None
        start = manifest.log_start_offset
        is_held = local.local_log_start_offset <= start and manifest.remote_end_offset <= local.flushed_end_offset
        if partition.config.enabled or partition.config.internal or not manifest.live.segments or not is_held:
            return
        live = [segment async for segment in partition.manifests.segments()]
        if live[0].end_offset <= start:
            return
        try:
            await partition.commit(lambda m: m.withdraw(live))
        except EditRefused as changed:
            raise Retryable(f"{partition.name}: {changed}") from changed
        finally:
            partition.forget_all_verified()
        reach("expire.withdrawn")
        log.info("%s is not tiered any more: %d objects are deleted after the grace", partition.name, len(live))
        keys = [str(segment.key(partition.topic_id, partition.partition)) for segment in live]
        due_s = partition.world.clock.monotonic_s() + partition.limits.gc_grace_ms / 1000
        self._unnamed.extend((due_s, keys[at : at + DELETE_BATCH]) for at in range(0, len(keys), DELETE_BATCH))
        self._counters.deleted_objects += len(live)
        self._counters.deleted_cold_bytes += sum(segment.log_bytes for segment in live)

    async def _delete_up_to(self, start: int) -> None:
        """Delete the objects that end at or below the log start of a grace that is over."""
        partition = self._partition
        batch: list[RemoteSegment] = []
        async for segment in partition.manifests.segments():
            if segment.end_offset > start:
                break
            batch.append(segment)
            if len(batch) >= DELETE_BATCH:
                await self._delete_batch(batch)
                batch = []
        if batch:
            await self._delete_batch(batch)

    async def _delete_batch(self, batch: Sequence[RemoteSegment]) -> None:
        partition = self._partition
        partition.check_not_fenced()
        await self._delete_keys([str(segment.key(partition.topic_id, partition.partition)) for segment in batch])
        reach("expire.object_deleted")
        await partition.commit(lambda m: m.expire(batch))
        self._counters.deleted_objects += len(batch)
        self._counters.deleted_cold_bytes += sum(segment.log_bytes for segment in batch)

    async def _delete_keys(self, keys: Sequence[str]) -> None:
        partition = self._partition
        try:
            async with asyncio.timeout(partition.limits.store_timeout_s):
                await partition.store.delete(keys)
        except TimeoutError as late:
            raise StoreUnavailable(f"{partition.name}: deleting {len(keys)} objects took too long") from late

    # ── local segments ───────────────────────────────────────────────────────────────────────────────────────────
    async def _expire_local(self) -> None:
        partition = self._partition
        local = partition.log
        visible = partition.visible_end()
        now_ms = partition.world.clock.wall_ms()
        pressure, self.pressure_bytes = self.pressure_bytes, 0
        self._is_behind = False
        if partition.config.internal:
            await self._expire_below_snapshot()
            return
        if partition.config.enabled and (pressure or not partition.config.copy_disable) and partition.claimed:
            await self._expire_copied(visible, now_ms, pressure)
        if not partition.config.enabled or partition.config.copy_disable:
            config = replace(
                local.config,
                tiered=False,
                retention_ms=partition.config.retention_ms,
                retention_bytes=partition.config.retention_bytes,
            )
            await self._expire_uncopied(config, visible, now_ms)

    async def _expire_copied(self, visible: int, now_ms: int, pressure_bytes: int) -> None:
        """A tiered log: only what the bucket verifiably holds, or what lies below the log start."""
        partition = self._partition
        local = partition.log
        config = replace(
            local.config,
            tiered=True,
            local_retention_ms=partition.config.local_retention_ms,
            local_retention_bytes=partition.config.local_retention_bytes,
        )
        sealed = local.sealed_segments()
        manifest = partition.manifest
        assert manifest is not None
        start = manifest.log_start_offset  # the root's: what only the local log says is not durable yet
        wanted = expirable(
            sealed,
            manifest.remote_end_offset,
            visible,
            now_ms,
            config,
            pressure_bytes,
            log_start=start,
            active_bytes=local.active_info().bytes,
        )
        if wanted.segment_count == 0:
            return
        safe, refused = max(start, partition.sure_end_offset), None
        if safe < wanted.offset:
            # What is sure goes all the same: in an outage the disk needs it most.
            safe, refused = await self._verified_end(max(sealed[0].base_offset, safe), wanted.offset)
        await self._drop_local(min(wanted.offset, safe))
        self._is_behind = first_local_offset(local) < wanted.offset
        if refused is not None:
            raise refused

    async def _verified_end(self, first: int, end: int) -> tuple[int, Retryable | AccessRefused | None]:
        """How far from `first` on the manifest covers the log with verified objects, and what the store refused to say
        of the next one; verifies those that were not."""
        partition = self._partition
        covered = first
        try:
            async for segment in partition.manifests.segments(first):
                if segment.base_offset > covered or covered >= end:
                    break
                if not partition.is_verified(segment):
                    await self._copier.verify(segment)
                    partition.blocks.pop(Block.DAMAGED, None)
                covered = segment.end_offset
        except (Corrupt, ObjectMissing) as damaged:
            log.error("%s: local bytes stay: %s", partition.name, damaged)
        except (Retryable, AccessRefused) as refused:
            return covered, refused
        return covered, None

    async def _expire_uncopied(self, config: LogConfig, visible: int, now_ms: int) -> None:
        """A log that is not tiered: plain retention; its start moves first, durably."""
        local = self._partition.log
        if active_expired(local.active_info(), visible, now_ms, config):
            local.roll()
            await self._partition.flusher.flush()
        sealed = local.sealed_segments()
        wanted = expirable(
            sealed,
            0,
            visible,
            now_ms,
            config,
            log_start=local.log_start_offset,
            active_bytes=local.active_info().bytes,
        )
        if wanted.segment_count:
            await self._start_at(wanted.offset)

    async def _expire_below_snapshot(self) -> None:
        """An internal topic: local segments whose effect the snapshot in the bucket holds."""
        manifest = self._partition.manifest
        if manifest is None or manifest.snapshot is None or not self._partition.claimed:
            return
        end = _last_end(self._partition.log.sealed_segments(), manifest.snapshot.end_offset)
        if end is not None:
            await self._start_at(end)

    async def _start_at(self, offset: int) -> None:
        partition = self._partition
        partition.log.advance_log_start(offset)
        if partition.claimed and partition.remote_end_offset:
            await partition.commit(lambda m: m.set_log_start(offset))
        await self._drop_local(offset)
        self._is_behind = first_local_offset(partition.log) < offset

    async def _drop_local(self, offset: int) -> None:
        partition = self._partition
        if self._checkpointed_start != partition.log.log_start_offset:
            # The first local segment will not tell any more where the log starts.
            await self._checkpoint(partition.log)
            self._checkpointed_start = partition.log.log_start_offset
        dropped = partition.log.delete_local_before(offset)
        if not dropped:
            return
        self._counters.deleted_local_bytes += sum(segment.size for segment in dropped)
        partition.forget_verified(partition.log.local_log_start_offset)
        await partition.world.workers.run(partition.log.unlink, dropped, lane=Lane.FILES)


def _last_end(sealed: Sequence[SegmentInfo], limit: int) -> int | None:
    """End of the last segment that ends at or below `limit`, None when there is none."""
    ends = [segment.end_offset for segment in sealed if segment.end_offset <= limit]
    return ends[-1] if ends else None
