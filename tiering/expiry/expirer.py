"""Retention of one partition: schedules it, and deletes local segments.

Local bytes of a tiered log are deleted only if the committed manifest covers them with objects that this process
verified. A log that is not tiered follows its own retention, with its start checkpointed first. The cold side
(`cold_expirer`) runs first; its failure does not stop the local side. Each step may be interrupted; the next run
continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from coldstore.object_store import AccessRefused, ObjectMissing
from hotstore.log.local_retention import active_expired, expirable
from logformat.errors import Corrupt, Retryable
from tiering.copying.copier import Copier, NoLongerLive
from tiering.expiry.cold_expirer import ColdExpirer, ExpireCounters, Forget
from tiering.opening.log_starts import first_local_offset
from tiering.partition_state import Block, TieredPartition
from tiering.tier_config import TierConfig

log = logging.getLogger(__name__)

IDLE_CHECK_S_MAX: Final = 3600.0
_VERIFY_AGAIN_S: Final = 30.0  # a failed verification lasts up to a store time-out of 10 s, and replicas wait for it


class Expirer:
    """One partition's retention. `forget` gets the deleted objects."""

    def __init__(
        self,
        partition: TieredPartition,
        copier: Copier,
        counters: ExpireCounters,
        forget: Forget,
    ) -> None:
        self._partition = partition
        self._copier = copier
        self._counters = counters
        self.cold = ColdExpirer(partition, counters, forget, copier.verify)
        self._checkpointed_start = -1
        self._seen_end = -1  # the log's end at the last check
        self._is_behind = False  # due segments were kept: not verified, damaged, or without their small files
        self.pressure_bytes = 0
        """Bytes to free from this log; set from outside, used by the next run."""
        self._is_asked = False  # `verify_for_replica` asked for a verification
        self._asked_end = 0  # remote end of the last such verification, even if it failed
        self._ask_again_s = float("-inf")  # after a failed verification: replicas copy from the leader until then

    async def run(self) -> float | None:
        """Run due retention; returns seconds until the next check. Raises Retryable, AccessRefused, Fenced, OSError."""
        partition = self._partition
        if partition.fenced:
            return None
        if self._is_asked:
            await self._verify_for_replica()
        refused = await self.cold.expire() if partition.claimed else None
        await self._expire_local()
        if refused is not None:
            raise refused
        now_s = partition.world.clock.monotonic_s()
        again_s = self._next_check_s()  # computed last, so that the next run handles appends during this run
        looks_s = [max(when - now_s, 0.0) for when in self.cold.due_s]
        return min(looks_s if again_s is None else [again_s, *looks_s], default=None)

    def _next_check_s(self) -> float | None:
        """Seconds until the next check of the log: one interval after an append, or if due segments were kept.
        Otherwise only time makes segments due, and a check is late by at most a tenth of the limit. The cold side's
        graces are not included."""
        partition = self._partition
        local, config, end = partition.log, partition.config, partition.log.log_end_offset
        interval_s = partition.limits.retention_check_interval_ms / 1000
        seen_end, self._seen_end = self._seen_end, end
        if end != seen_end or self._is_behind:
            return interval_s
        limits_ms = [limit_ms for limit_ms in (config.retention_ms, config.local_retention_ms) if limit_ms >= 0]
        is_empty = partition.log_start_offset >= end and local.local_log_start_offset >= end
        if is_empty or not limits_ms:
            return None  # woken by appends, config changes, or a full disk
        return max(interval_s, min(min(limits_ms) / 10_000, IDLE_CHECK_S_MAX))

    def verify_for_replica(self) -> bool:
        """Whether the next run has to verify objects for a replica that lacks them.

        This happens only once for each remote end, and after a failure only once in `_VERIFY_AGAIN_S`. An outage or
        damage thus does not make replicas wait, even if each copy moves the remote end."""
        partition = self._partition
        if not partition.claimed:
            return Block.CLAIM not in partition.blocks and not partition.fenced  # it is being claimed
        if max(self._asked_end, partition.sure_end_offset) >= partition.remote_end_offset:
            return False
        if not self._is_asked and partition.world.clock.monotonic_s() < self._ask_again_s:
            return False
        self._is_asked = True
        return True

    # ── local segments ───────────────────────────────────────────────────────────────────────────────────────────
    async def _expire_local(self) -> None:
        partition = self._partition
        partition.lease.check()
        local = partition.log
        visible = partition.committed_end()
        now_ms = partition.world.clock.wall_ms()
        pressure, self.pressure_bytes = self.pressure_bytes, 0
        self._is_behind = False
        if partition.config.internal:
            # An internal topic's log start moves to the beginning of a rewrite; live records are above it (ADR 17).
            if first_local_offset(local) < local.log_start_offset:
                await self._drop_local(local.log_start_offset)
            return
        if partition.config.enabled and (pressure or not partition.config.copy_disable) and partition.claimed:
            await self._expire_copied(visible, now_ms, pressure)
        if not partition.config.enabled or partition.config.copy_disable:
            await self._expire_uncopied(partition.config, visible, now_ms)

    async def _expire_copied(self, visible: int, now_ms: int, pressure_bytes: int) -> None:
        """Delete segments of a tiered log that are verified in the bucket, or that are below the log start."""
        partition = self._partition
        local, due_by = partition.log, partition.config
        config = replace(
            local.config,
            tiered=True,
            local_retention_ms=due_by.local_retention_ms,
            local_retention_bytes=due_by.local_retention_bytes,
        )
        sealed = local.sealed_segments()
        manifest = partition.manifest
        assert manifest is not None
        start = manifest.log_start_offset  # the root's start: a start known only to the local log is not durable yet
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
            # Verified segments are deleted even in an outage: the disk needs it most then.
            safe, refused = await self._verified_end(max(sealed[0].base_offset, safe), wanted.offset)

        end = min(wanted.offset, safe)

        def still() -> bool:
            # If tiering was switched off meanwhile, the log start moves to the local start. If objects were replaced or
            # withdrawn, fewer are verified.
            return partition.config == due_by and end <= max(start, partition.sure_end_offset)

        await self._drop_local(end, still)
        self._is_behind = first_local_offset(local) < wanted.offset
        if refused is not None:
            raise refused

    async def _verified_end(self, first: int, end: int) -> tuple[int, Retryable | AccessRefused | None]:
        """The end of the verified objects that cover the log from `first` on, and the store's error for the next
        object. Objects that are not verified yet are verified.
        """
        partition = self._partition
        covered = first
        try:
            async for segment in partition.manifests.segments(first):
                if segment.base_offset > covered or covered >= end:
                    break
                if segment not in partition.verified:
                    await self._copier.verify(segment)
                    partition.blocks.pop(Block.DAMAGED, None)
                covered = segment.end_offset
        except (Corrupt, ObjectMissing) as damaged:
            log.error("%s: local segments are not deleted: %s", partition.name, damaged)
        except NoLongerLive:
            return covered, None  # the next run verifies the replacement
        except (Retryable, AccessRefused) as refused:
            return covered, refused
        return covered, None

    async def _verify_for_replica(self) -> None:
        """Verify objects for a replica, because a new leader has no verified objects. Without this a replica would copy
        all its local bytes, even those in the bucket."""
        partition = self._partition
        end = partition.remote_end_offset
        first = max(first_local_offset(partition.log), partition.log_start_offset, partition.sure_end_offset)
        covered, refused = await self._verified_end(first, end)
        if refused is not None:
            log.info(
                "%s: objects are verified up to offset %d only, so followers copy later records from this broker: %s",
                partition.name,
                covered,
                refused,
            )
        if covered < end:
            self._ask_again_s = partition.world.clock.monotonic_s() + _VERIFY_AGAIN_S
        self._asked_end, self._is_asked = end, False

    async def _expire_uncopied(self, due_by: TierConfig, visible: int, now_ms: int) -> None:
        """Delete segments of a log that is not tiered, by plain retention. The log start moves first, durably. Nothing
        is deleted before the claim, which shows that this broker still leads (R6, R23) and which objects the root
        names. In a rebuilt cluster, records without another copy are not deleted, because configs set on all brokers
        are unknown there (R29).
        """
        partition, local = self._partition, self._partition.log
        config = replace(
            local.config, tiered=False, retention_ms=due_by.retention_ms, retention_bytes=due_by.retention_bytes
        )
        if not partition.is_complete() or self._has_older_in_bucket() or not partition.claimed:
            self._is_behind = True  # checked again after an interval
            return
        if active_expired(local.active_info(), visible, now_ms, config):
            partition.lease.roll()
            await partition.flusher.flush()
            partition.lease.check()
            if partition.config != due_by:
                return  # `reconfigured` wakes the next check
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
            await self._start_at(wanted.offset, due_by)

    def _has_older_in_bucket(self) -> bool:
        """Whether only the bucket has the oldest retained records, which must be deleted first."""
        manifest, start = self._partition.manifest, self._partition.log.log_start_offset
        start = start if manifest is None else max(start, manifest.log_start_offset)
        return first_local_offset(self._partition.log) > start

    async def _start_at(self, offset: int, due_by: TierConfig) -> None:
        """Move the root's start first if it has to name the start (G9). Otherwise the root's start follows at the next
        check (cold_expirer), so a store outage does not fill the disk."""
        partition = self._partition
        if partition.moves_start_in_root:
            await partition.move_start(lambda m: m.set_log_start(offset), due_by)
        else:

            def still() -> None:
                partition.check_due(due_by)
                partition.check_start_on_disk()

            await partition.lease.raise_log_start(offset, still)
        await self._drop_local(offset)
        self._is_behind = first_local_offset(partition.log) < offset

    async def _drop_local(self, offset: int, still: Callable[[], bool] = lambda: True) -> None:
        """Delete local segments below `offset`. `still` returns whether they may go, by what changed meanwhile."""
        partition, lease = self._partition, self._partition.lease
        lease.check()
        start = partition.log.log_start_offset  # it may move during the checkpoint
        if self._checkpointed_start != start:
            # The first local segment will no longer show where the log starts.
            await lease.checkpoint_start()
            lease.check()
            self._checkpointed_start = start
        if not still():
            return
        dropped = lease.delete_local_before(offset)
        if not dropped and not partition.log.awaits_unlink:
            return
        self._counters.deleted_local_bytes += sum(segment.size for segment in dropped)
        partition.verified.forget(partition.log.local_log_start_offset)
        await lease.unlink()
