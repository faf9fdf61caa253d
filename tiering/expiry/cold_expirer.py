"""Letting go of cold segments: retention over both tiers, and tiering that was switched off.

Owns the order of deletion in the bucket of one partition. Always true: the log start moves in the root first, then the
grace passes, then objects go, then the deletion cursor moves (KAFKA-15352). Where tiering was switched off the log
start moves to the local start, once; while nobody else is assigned the log, a range that is local here is named no more
before its object goes, so that tiering may be switched on again at any moment; among replicas, who may each have less
on their disks and lead next, objects go as retention moves the log start, and no other way (ADR 26). Every step may be
cut off and is found again by the next run, or by gc. Must not know when it runs, nor what local retention lets go.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from coldstore.keys import SegmentKey, parse_key
from coldstore.manifest.manifest import EditRefused, Manifest, RemoteSegment
from coldstore.object_store import AccessRefused, StoreUnavailable
from logformat.errors import Retryable
from seams.crash_points import reach
from tiering.expiry.expire_plan import ExpiryVerdict, TotalRetention, bytes_only_local
from tiering.partition_state import Block, TieredPartition

log = logging.getLogger(__name__)

DELETE_BATCH: Final = 100  # objects deleted between two moves of the cursor
GRACES_MAX: Final = 1000

Forget = Callable[[Collection[SegmentKey]], Awaitable[None]]


@dataclass(slots=True)
class ExpireCounters:
    """Totals of a broker, for metrics."""

    deleted_objects: int = 0
    deleted_cold_bytes: int = 0
    deleted_local_bytes: int = 0


class ColdExpirer:
    """One partition's cold side. `forget` hears of the objects that were deleted."""

    def __init__(self, partition: TieredPartition, counters: ExpireCounters, forget: Forget) -> None:
        self._partition = partition
        self._forget = forget
        self._counters = counters
        self._graces: deque[tuple[float, int]] = deque()  # (when, log start): objects that end at or below it may go
        self._unnamed: deque[tuple[float, list[str]]] = deque()

    @property
    def due_s(self) -> list[float]:
        """When the next graces are over, on the monotonic clock."""
        return [grace[0] for grace in (*list(self._graces)[:1], *list(self._unnamed)[:1])]

    async def expire(self) -> Retryable | AccessRefused | None:
        """The cold side; why it could not be done. The local side goes on without: the disk must not fill up because
        a store is away or deletes nothing (G12)."""
        try:
            await self._move_start()
            await self._delete_cold()
            await self._withdraw()
        except (Retryable, AccessRefused) as refused:
            return refused
        return None

    # ── the log start ────────────────────────────────────────────────────────────────────────────────────────────
    async def _move_start(self) -> None:
        partition = self._partition
        manifest = partition.manifest
        if manifest is None or partition.config.internal:
            return
        if partition.is_to_be_switched_off and Block.BEHIND not in partition.blocks:
            await partition.switch_off()
            reach("expire.start_moved")
        start = partition.log_start_offset
        if manifest.live.segments:
            start = max(start, await self._retention_start(manifest))
        is_asked = partition.config.enabled or manifest.remote_end_offset or not partition.is_alone
        if start > manifest.log_start_offset and is_asked:  # by whoever leads next
            await self.move_start(start)

    async def move_start(self, offset: int) -> None:
        """Nothing below `offset` is readable any more. Raises as `commit`."""
        await self._partition.move_start(lambda m: m.set_log_start(offset))
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
            if verdict is ExpiryVerdict.KEPT:
                break
            if verdict is ExpiryVerdict.EXPIRED:
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
        Only where no other replica is assigned it: this disk says nothing of theirs.

        Those that end at or below the log start are deleted first, by the cursor. What a kill leaves is left to gc."""
        partition = self._partition
        manifest, local = partition.manifest, partition.log
        assert manifest is not None
        start = manifest.log_start_offset
        is_held = local.local_log_start_offset <= start and manifest.remote_end_offset <= local.flushed_end_offset
        if partition.config.enabled or partition.config.internal or not manifest.live.segments:
            return
        if not is_held or not partition.is_alone:
            return
        live = [segment async for segment in partition.manifests.segments()]
        if live[0].end_offset <= start:
            return

        def withdrawn(newest: Manifest) -> Manifest:
            if partition.config.enabled or not partition.is_alone:  # since the pages were read
                raise EditRefused("it is tiered again, or others are to hold it")
            return newest.withdraw(live)

        partition.verified.forget_all()  # nobody who joins from here on begins above what may go
        try:
            await partition.commit(withdrawn, lets_go=True)
        except EditRefused as changed:
            raise Retryable(f"{partition.name}: {changed}") from changed
        finally:
            partition.verified.forget_all()
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
        await self._delete_keys([str(segment.key(partition.topic_id, partition.partition)) for segment in batch])
        reach("expire.object_deleted")
        await partition.commit(lambda m: m.expire(batch), lets_go=True)
        self._counters.deleted_objects += len(batch)
        self._counters.deleted_cold_bytes += sum(segment.log_bytes for segment in batch)

    async def _delete_keys(self, keys: Sequence[str]) -> None:
        partition = self._partition
        partition.check_fresh()
        try:
            async with asyncio.timeout(partition.limits.store_timeout_s):
                await partition.store.delete(keys)
        except TimeoutError as late:
            raise StoreUnavailable(f"{partition.name}: deleting {len(keys)} objects took too long") from late
        await self._forget([key for key in map(parse_key, keys) if isinstance(key, SegmentKey)])
