"""Deletes one partition's cold segments, by retention over both tiers or after tiering was switched off.

The steps are: the root's log start moves, the grace passes, objects are deleted, the deletion cursor moves
(KAFKA-15352). After an interruption at any step, the next run or gc continues.

When tiering is switched off, the log start moves to the local start, once. If no other replica is assigned, objects of
ranges that are local are removed from the manifest and then deleted, so tiering may be switched on again at any time.
With other replicas, which may hold less and lead next, objects are deleted only as retention moves the log start (ADR
26).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from coldstore.keys import SegmentKey, parse_key
from coldstore.manifest.manifest import EditRefused, Manifest, RemoteSegment
from coldstore.manifest.manifest_entries import ReplacedObject
from coldstore.manifest.replacement import forget_replaced, restart_graces
from coldstore.object_store import AccessRefused, ObjectMissing, answered_within
from hotstore.log.segment import SegmentInfo
from logformat.errors import Corrupt, Retryable
from seams.crash_points import reach
from seams.loop.workers import Lane
from tiering.copying.segment_body import check_local
from tiering.partition_state import Block, TieredPartition
from tiering.tier_config import TierConfig

log = logging.getLogger(__name__)

DELETE_BATCH: Final = 100  # objects deleted between two moves of the cursor
GRACES_MAX: Final = 1000

Forget = Callable[[Collection[SegmentKey]], Awaitable[None]]
Verify = Callable[[RemoteSegment], Awaitable[None]]


@dataclass(slots=True)
class ExpireCounters:
    """Totals of a broker, for metrics."""

    deleted_objects: int = 0
    deleted_cold_bytes: int = 0
    deleted_local_bytes: int = 0


class ColdExpirer:
    """Cold retention of one partition. `forget` gets the deleted objects; `verify` checks a complete object in the
    store."""

    def __init__(self, partition: TieredPartition, counters: ExpireCounters, forget: Forget, verify: Verify) -> None:
        self._partition = partition
        self._verify = verify
        self._forget = forget
        self._counters = counters
        self._graces: deque[tuple[float, int]] = deque()  # (end of grace, log start): then delete objects below
        self._unnamed: deque[tuple[float, list[str]]] = deque()
        self._replaced_due_s: float | None = None
        self._sound_end = 0  # the local log is checked up to it, since tiering was switched off
        self._check_due_s: float | None = None
        self._damage: str | None = None  # found by the check, as in the partition's blocks
        self._rest_until_s = float("-inf")  # after damage

    @property
    def due_s(self) -> list[float]:
        """The times on the monotonic clock when the next graces end, or a check goes on."""
        due_s = [grace[0] for grace in (*list(self._graces)[:1], *list(self._unnamed)[:1])]
        due_s += [each for each in (self._replaced_due_s, self._check_due_s) if each is not None]
        return [max(each, self._rest_until_s) for each in due_s]

    async def expire(self) -> Retryable | AccessRefused | None:
        """Expire the cold side; returns the error if the store refuses. Local expiry continues, because a store outage
        must not fill the disk (G12)."""
        try:
            await self._move_start()
            await self._delete_cold()
            await self._withdraw()
            await self._delete_replaced()
        except (Retryable, AccessRefused) as refused:
            return refused
        except (Corrupt, ObjectMissing) as damaged:
            log.error("%s: objects are not deleted: %s", self._partition.name, damaged)
            rest_s = self._partition.limits.retention_check_interval_ms / 1000
            self._rest_until_s = self._partition.world.clock.monotonic_s() + rest_s
        return None

    # ── the log start ────────────────────────────────────────────────────────────────────────────────────────────
    async def _move_start(self) -> None:
        partition = self._partition
        if partition.config.internal:
            return
        if partition.is_to_be_switched_off and Block.BEHIND not in partition.blocks:
            await partition.switch_off()
            reach("expire.start_moved")
        manifest = partition.manifest  # read now: compaction may have replaced objects while the commit waited
        if manifest is None:
            return
        start, config = partition.log_start_offset, partition.config
        if manifest.live.segments:
            start = max(start, await self._retention_start(manifest, config))
        is_asked = config.enabled or manifest.remote_end_offset or not partition.is_alone
        if start > manifest.log_start_offset and is_asked:  # the next leader reads it
            await self.move_start(start, config)

    async def move_start(self, offset: int, due_by: TierConfig | None = None) -> None:
        """Make offsets below `offset` unreadable. `due_by`: the configs of a retention. Raises as `commit`; EditRefused
        for an internal topic without a snapshot up to `offset`."""
        partition = self._partition
        internal = partition.config.internal
        await partition.move_start(
            lambda m: m.set_rewritten_start(offset) if internal else m.set_log_start(offset), due_by
        )
        reach("expire.start_moved")

    async def _retention_start(self, manifest: Manifest, config: TierConfig) -> int:
        """Enforce total retention over both tiers; returns the log start."""
        partition = self._partition
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
        """After tiering was switched off: remove local ranges from the manifest, then delete their objects after the
        grace.

        This is done only if no other replica is assigned, because other disks may hold less, and if the local log is
        not damaged. Objects below the log start are deleted first, by the cursor. gc deletes objects left after a kill.
        """
        partition = self._partition
        manifest, local = partition.manifest, partition.log
        assert manifest is not None
        start, self._check_due_s = manifest.log_start_offset, None
        if partition.config.enabled or partition.config.internal or not manifest.live.segments:
            self._begin_check()
            return
        is_held = local.local_log_start_offset <= start and manifest.remote_end_offset <= local.flushed_end_offset
        if not is_held or not partition.is_alone:
            self._begin_check()
            return
        if not await self._is_sound(manifest.remote_end_offset):
            return
        live = [segment async for segment in partition.manifests.segments()]
        if live[0].end_offset <= start:
            return

        def withdrawn(newest: Manifest) -> Manifest:
            if partition.config.enabled or not partition.is_alone:  # changed while the pages were read
                raise EditRefused("the partition is tiered again, or gets more replicas")
            return newest.withdraw(live)

        try:
            await partition.commit(withdrawn, releases=True)
        except EditRefused as changed:
            raise Retryable(f"{partition.name}: {changed}") from changed
        reach("expire.withdrawn")
        log.info("%s is no longer tiered: %d objects are deleted after the grace", partition.name, len(live))
        keys = [str(segment.key(partition.topic_id, partition.partition)) for segment in live]
        due_s = partition.world.clock.monotonic_s() + partition.limits.gc_grace_ms / 1000
        self._unnamed.extend((due_s, keys[at : at + DELETE_BATCH]) for at in range(0, len(keys), DELETE_BATCH))
        self._counters.deleted_objects += len(live)
        self._counters.deleted_cold_bytes += sum(segment.log_bytes for segment in live)

    async def _is_sound(self, end: int) -> bool:
        """Check the local log below `end`, one segment in each run, so that local retention goes on. Returns whether
        all batches are sound. The bucket has the only sound copy of a damaged batch (G11)."""
        partition, local = self._partition, self._partition.log
        left = (each for each in local.segments_between(self._sound_end, end) if each.end_offset > self._sound_end)
        segment = next(left, None)
        if segment is None:
            if self._damage is None:
                return True
            self._begin_check()  # retention or DeleteRecords passed the damaged segment
            self._check_due_s = partition.world.clock.monotonic_s()
            return False
        base_offset, end_offset = segment.base_offset, segment.end_offset
        steps = check_local(local.batch_ranges(base_offset, end_offset), base_offset, end_offset, local.epochs)
        wait_ms = 0
        try:
            partition.lease.check()
            while await partition.lease.call(_step, steps, lane=Lane.COPY):
                partition.lease.check()
        except (Corrupt, OSError) as damaged:
            self._forget_damage()
            self._damage = f"the objects stay, though the topic is no longer tiered: {damaged}"
            partition.blocks.setdefault(Block.DAMAGED, self._damage)
            log.error("%s is no longer tiered, but its objects stay: %s", partition.name, damaged)
            wait_ms = partition.limits.retention_check_interval_ms
        else:
            if self._damage is None:
                self._sound_end = end_offset
            else:
                self._begin_check()  # a segment below may be damaged by now
        self._check_due_s = partition.world.clock.monotonic_s() + wait_ms / 1000
        return False

    def _begin_check(self) -> None:
        """The next check of the local log begins at its start."""
        self._sound_end = 0
        self._forget_damage()

    def _forget_damage(self) -> None:
        """Another damage that blocks the partition stays."""
        blocks = self._partition.blocks
        if self._damage is not None and blocks.get(Block.DAMAGED) == self._damage:
            del blocks[Block.DAMAGED]
        self._damage = None

    async def _delete_replaced(self) -> None:
        """Delete objects that compaction replaced, after the grace by the root's times, which survive a change of
        leaders. The replacement must have been verified. If the replacement itself was deleted below the log start, the
        replaced object is deleted at once, because deleted records must not stay readable. The range of a replaced
        object is within one replacement.
        """
        partition, self._replaced_due_s = self._partition, None
        manifest = partition.manifest
        if manifest is None or not manifest.replaced:
            return
        now_ms, grace_ms = partition.world.clock.wall_ms(), partition.limits.cold_compaction_grace_ms
        if any(each.since_ms > now_ms for each in manifest.replaced):
            manifest = await partition.commit(lambda m: restart_graces(m, now_ms))
        due = replaced_due(manifest, now_ms, grace_ms)[:DELETE_BATCH]
        for each in due:
            named = await partition.manifests.find(each.base_offset)
            if named is not None and named.end_offset > manifest.log_start_offset and named not in partition.verified:
                await self._verify(named)
        if due:
            await self._delete_keys([str(each.key(partition.topic_id, partition.partition)) for each in due])
            reach("cold.replaced_deleted")
            uuids = frozenset(each.uuid for each in due)
            manifest = await partition.commit(lambda m: forget_replaced(m, uuids), releases=True)
            self._counters.deleted_objects += len(due)
        if manifest.replaced:
            wait_ms = min(each.since_ms for each in manifest.replaced) + grace_ms - partition.world.clock.wall_ms()
            if replaced_due(manifest, now_ms, grace_ms):
                wait_ms = 0  # more than one batch
            self._replaced_due_s = partition.world.clock.monotonic_s() + max(wait_ms, 0) / 1000

    async def _delete_up_to(self, start: int) -> None:
        """Delete the objects that end at or below the log start of a finished grace."""
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
        await partition.commit(lambda m: m.expire(batch), releases=True)
        self._counters.deleted_objects += len(batch)
        self._counters.deleted_cold_bytes += sum(segment.log_bytes for segment in batch)

    async def _delete_keys(self, keys: Sequence[str]) -> None:
        partition = self._partition
        partition.check_fresh()
        async with answered_within(partition.limits.store_timeout_s, f"{partition.name}: {len(keys)} deletions"):
            await partition.store.delete(keys)
        await self._forget([key for key in map(parse_key, keys) if isinstance(key, SegmentKey)])


def replaced_due(manifest: Manifest, now_ms: int, grace_ms: int) -> list[ReplacedObject]:
    """The replaced objects that may be deleted now."""
    cursor = manifest.deletion_cursor
    return [each for each in manifest.replaced if now_ms - each.since_ms >= grace_ms or each.base_offset < cursor]


# ── total retention, pure (Kafka's RemoteLogManager.RLMExpirationTask) ──────────────────────────────────────────────


class ExpiryVerdict(Enum):
    EXPIRED = "expired"
    UNDATED = "no record has a timestamp: the segment expires with the next one"  # a segment of declared gaps only
    KEPT = "kept"


@dataclass(slots=True, kw_only=True)
class TotalRetention:
    """Checks a partition's cold segments, oldest first, until the first one that is kept. `total_bytes`: bytes of the
    log in both tiers, each counted once, and only those that a committed manifest or the local log above it holds
    (KAFKA-17062, KAFKA-15479). Limits of −1: none.
    """

    retention_ms: int
    retention_bytes: int
    total_bytes: int
    now_ms: int

    def deleted(self, segment: RemoteSegment) -> None:
        """The segment is below the log start and does not count."""
        self.total_bytes -= segment.log_bytes

    def judge(self, segment: RemoteSegment) -> ExpiryVerdict:
        left = self.total_bytes - segment.log_bytes
        if self.retention_bytes >= 0 and left >= self.retention_bytes:
            self.total_bytes = left
            return ExpiryVerdict.EXPIRED
        if self.retention_ms >= 0:
            if segment.max_timestamp_ms < 0:
                self.total_bytes = left
                return ExpiryVerdict.UNDATED
            if self.now_ms - segment.max_timestamp_ms > self.retention_ms:
                self.total_bytes = left
                return ExpiryVerdict.EXPIRED
        return ExpiryVerdict.KEPT


def bytes_only_local(sealed: Sequence[SegmentInfo], active: SegmentInfo, remote_end_offset: int) -> int:
    """Bytes of local segments that are not in the bucket. A segment that contains the remote end counts as cold, which
    can delay a deletion but never cause one."""
    return sum(segment.bytes for segment in (*sealed, active) if segment.base_offset >= remote_end_offset)


def _step(steps: Iterator[bool]) -> bool:
    """*Blocking*: whether a step was left."""
    return next(steps, False)
