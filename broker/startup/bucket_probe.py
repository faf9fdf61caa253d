"""The bucket during a start: a probe before its first use, and prefetching while the start waits for the right to
serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from contextlib import suppress
from uuid import UUID

from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.image import ClusterImage
from broker.metadata.row_steps import holds_alone
from broker.metrics.outage_log import WHAT_TO_DO, OutageLog
from broker.observe.status import Health
from coldstore.inspection.probe import ProbeReport, probe, race
from coldstore.object_store import ObjectStore
from coldstore.retrying_store import RetryingStore
from hotstore.host.data_dir import DataDir
from logformat.errors import Retryable, ThermoclineError
from logformat.values import TopicPartition
from seams.loop.tasks import Tasks
from seams.world import World
from tiering.opening.read_ahead import ReadAhead

log = logging.getLogger(__name__)


async def probe_bucket(store: ObjectStore, world: World, outage: OutageLog, health: Health) -> ProbeReport:
    """Wait until the store answers, and probe its conditional writes. Raises StoreRefused.

    A store with wrong conditional writes, or with more than one winner of a race, is refused before any log depends on
    it (C23). The wait for a store that does not answer has no limit, and is logged as an outage from the first failure
    on.
    """

    def refused(failure: Retryable) -> None:
        if outage.failed(failure):
            log.warning("not ready: the bucket %s does not answer (%s); %s", store.url, outage, WHAT_TO_DO)

    wait_s = 0.2
    health.starting(f"probing the bucket {store.url}")
    while True:
        try:
            report = await probe(store, world.rng, refused)
            report.require()
            asked = RetryingStore(store, refused)
            if not await ClusterRoot(asked, world.rng, world.clock, world.workers).is_formatted():
                # This runs only before the bucket is formatted. A store whose races have several winners passes every
                # sequential test.
                (await race(store, world.rng, refused)).require()
            if lasted := outage.answered():
                log.info("the bucket answers, after %s", lasted)
            return report
        except Retryable as failure:
            refused(failure)
        await asyncio.sleep(wait_s * world.rng.uniform(0.8, 1.2))
        wait_s = min(wait_s * 2, 10.0)


def lost_here(image: ClusterImage, node_id: int, held: Collection[TopicPartition]) -> Iterator[tuple[UUID, int]]:
    """Partitions of which this node is the only replica and whose logs are not on its disk."""
    for topic_id, topic in image.topics.items():
        for index, row in enumerate(topic.rows):
            if holds_alone(row, node_id) and TopicPartition(topic.name, index) not in held:
                yield UUID(topic_id), index


class ColdPrefetch:
    """Prefetches manifests of lost logs during one start. A start that does not wait does not prefetch. The image is
    read once, and is used only for the names of the partitions."""

    def __init__(
        self, ahead: ReadAhead, store: ObjectStore, world: World, data_dir: DataDir, node_id: int, tasks: Tasks
    ) -> None:
        self._ahead = ahead
        self._cluster = ClusterRoot(store, world.rng, world.clock, world.workers)
        self._workers = world.workers
        self._data_dir = data_dir
        self._node_id = node_id
        self._tasks = tasks
        self._reading: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to prefetch, because the start waits. A failed load is repeated when the log opens."""
        if self._reading is None:
            self._reading = self._tasks.spawn("reading ahead", self._read())

    def end(self) -> None:
        """Stop prefetching, because the wait ended. Logs that open now load the rest."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        held = frozenset(await self._workers.run(self._data_dir.partitions))
        with suppress(ThermoclineError):
            found = await self._cluster.load()
            if found is not None:
                await self._ahead.read(lost_here(found.image, self._node_id, held))
