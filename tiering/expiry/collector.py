"""Garbage collection: objects of a partition that nothing names and nothing can name any more.

Owns when a broker looks. Always true: the listing comes before root and pages are read, and only objects whose key's
epoch is below the root's are deleted (C2), so that it needs no claim and no clock; what is unnamed but of the root's
own epoch stays, for its writer may yet commit it; so does what the log does not hold (records that were lost here, of
an earlier root that was put back): the only copies, and that is told. Runs once after each claim, when readers of an
older root had the grace to let go of what it named, but not in a partition's first epoch, and not again within six
hours: a listing of everything is not for each election. Must not know which objects those are (coldstore.audit does).
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
from coldstore.object_store import ObjectStore, StoreUnavailable
from seams.world import World

log = logging.getLogger(__name__)

AGAIN_S: Final = 6 * 3600.0
"""Of one process: the next one looks again after its claims. That is not noted on disk, because it costs little beside
the claim itself, two requests a partition: a LIST for each thousand of its objects, a grace (a minute) later, so that a
process which begins again every minute lists nothing."""


@dataclass(slots=True)
class GcCounters:
    """Totals of a broker, for metrics."""

    gc_objects: int = 0
    gc_bytes: int = 0


class Collector:
    """Collects partitions of one bucket; each piece of a listing, and the deletion, in at most `deadline_s` seconds."""

    def __init__(self, store: ObjectStore, world: World, deadline_s: float) -> None:
        self._store = store
        self._inspector = BucketInspector(store, world.workers)
        self._clock = world.clock
        self._deadline_s = deadline_s
        self._collected_s: dict[tuple[UUID, int], float] = {}  # when, of those that are not to be collected again yet
        self.counters = GcCounters()

    def wait_s(self, topic_id: UUID, partition: int) -> float:
        """Until this process may collect it again; 0: now."""
        collected_s = self._collected_s.get((topic_id, partition))
        return 0.0 if collected_s is None else max(collected_s + AGAIN_S - self._clock.monotonic_s(), 0.0)

    async def collect(
        self, topic_id: UUID, partition: int, holds: Holds, may_send: Callable[[], None] = lambda: None
    ) -> GcPlan:
        """Delete what may be deleted, and the log `holds`; what was found. `may_send` is asked before each deletion.
        Raises what it does, Retryable, Corrupt (then nothing was deleted)."""
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
                "gc of %s/%d: %d objects of earlier epochs stay, %s the first: the manifest does not name them, and "
                "they hold what the log does not. Was an earlier manifest put back? `thermocline bucket gc` lists them",
                topic_id,
                partition,
                len(plan.kept),
                plan.kept[0].key,
            )
        return plan
