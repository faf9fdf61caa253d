"""Garbage collection: deletes a partition's objects that no root names or can name any more.

The listing is made before root and pages are read, and only objects with a key epoch below the root's are deleted (C2).
The collection needs neither a claim nor a clock. Unnamed objects of the root's own epoch stay, because their writer may
still commit them. Objects whose records the log lacks stay, too, with a warning: after an earlier root was restored,
they are the only copies. The collection runs once after each claim and the readers' grace, at most every six hours, and
not in a partition's first epoch. `coldstore.inspection.audit` decides which objects are garbage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from coldstore.inspection.audit import GcPlan
from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.inspection.orphan_safety import Holds, keep_only_copies
from coldstore.keys import PageKey, RootKey, SegmentKey, SnapshotKey, parse_key, partition_prefix
from coldstore.object_store import ObjectStore, StoreUnavailable
from logformat.errors import Retryable
from seams.world import World
from tiering.reading.cold_reader import ColdReader

log = logging.getLogger(__name__)

DELETE_KEYS: Final = 500
AGAIN_S: Final = 6 * 3600.0
"""Per process; a new process collects again after its claims. The time is not recorded on disk, because a collection
costs little besides the claim's two requests: one LIST for each thousand objects. It runs a minute after the claim, so
a process that restarts every minute makes no LIST."""


@dataclass(slots=True)
class GcCounters:
    """Totals of a broker, for metrics."""

    gc_objects: int = 0
    gc_bytes: int = 0


class Collector:
    """Collects partitions of one bucket; each piece of a listing, and the deletion, takes at most `deadline_s`."""

    def __init__(self, store: ObjectStore, world: World, deadline_s: float) -> None:
        self._store = store
        self._inspector = BucketInspector(store, world.workers)
        self._clock = world.clock
        self._deadline_s = deadline_s
        self._collected_s: dict[tuple[UUID, int], float] = {}  # time of the last collection, within AGAIN_S
        self.counters = GcCounters()

    def wait_s(self, topic_id: UUID, partition: int) -> float:
        """Seconds until this process may collect it again."""
        collected_s = self._collected_s.get((topic_id, partition))
        return 0.0 if collected_s is None else max(collected_s + AGAIN_S - self._clock.monotonic_s(), 0.0)

    async def collect(
        self, topic_id: UUID, partition: int, holds: Holds, may_send: Callable[[], None] = lambda: None
    ) -> GcPlan:
        """Delete garbage whose records the log `holds`; returns the findings. `may_send` is called before each
        deletion. Raises its errors, Retryable, Corrupt (then no object was deleted)."""
        try:
            plan = await self._inspector.plan_gc(topic_id, partition, piece_deadline_s=self._deadline_s)
            plan = await keep_only_copies(self._store, plan, holds, deadline_s=self._deadline_s)
            if plan.deletable:
                async with asyncio.timeout(self._deadline_s):
                    await self._inspector.delete(plan, may_send)
        except TimeoutError as late:
            raise StoreUnavailable(f"gc of {topic_id}/{partition}: not done in {self._deadline_s} s") from late
        now_s = self._clock.monotonic_s()
        collected = self._collected_s
        collected.pop((topic_id, partition), None)
        collected[topic_id, partition] = now_s
        while collected[oldest := next(iter(collected))] + AGAIN_S <= now_s:
            del collected[oldest]
        counters = self.counters
        counters.gc_objects += len(plan.deletable)
        counters.gc_bytes += plan.deletable_bytes
        if plan.deletable:
            log.info("gc of %s/%d: %d objects of earlier epochs deleted", topic_id, partition, len(plan.deletable))
        if plan.kept:
            log.warning(
                "gc of %s/%d: %d objects of earlier epochs stay, such as %s: the manifest does not name them, and "
                "they hold records that the log lacks. Was an earlier manifest restored? `thermocline bucket gc` "
                "lists them",
                topic_id,
                partition,
                len(plan.kept),
                plan.kept[0].key,
            )
        return plan


async def purge_partition(
    store: ObjectStore, cold: ColdReader, topic_id: UUID, partition: int, may_delete: Callable[[], bool]
) -> bool:
    """Delete the objects of a deleted topic's partition, the root last; `cold` forgets them. Returns False if
    `may_delete`, which is called before each deletion, refuses. Raises Retryable while objects are left. The root is
    deleted last, so that after an interruption it still identifies the partition's objects. Only names that parse as
    this partition's are deleted."""
    prefix = partition_prefix(topic_id, partition)
    # List twice: the second listing shows late uploads and falsely reported deletions.
    for _ in range(2):
        found = [info.key async for info in store.list(prefix)]
        ours = [(key, parse_key(key)) for key in found]
        for kind in (SegmentKey, PageKey, SnapshotKey, RootKey):
            keys = [key for key, parsed in ours if isinstance(parsed, kind)]
            for at in range(0, len(keys), DELETE_KEYS):
                if not may_delete():
                    return False
                await store.delete(keys[at : at + DELETE_KEYS])
        await cold.forget([parsed for _, parsed in ours if isinstance(parsed, SegmentKey)])
        if not any(parsed is not None for _, parsed in ours):
            return True
    left = [info.key async for info in store.list(prefix) if parse_key(info.key) is not None]
    if left:
        raise Retryable(f"{prefix}: {len(left)} objects are still listed after their deletion, e.g. {left[0]}")
    return True
