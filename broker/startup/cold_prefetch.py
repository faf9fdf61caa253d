"""The wait for the right to serve, used: what the bucket holds of logs that are lost here is read meanwhile.

Owns when that begins and ends, and which partitions are meant. Always true: a start that does not wait asks for
nothing here; the image that says which partitions they are is one of its own, read once: who joins has another, and
nothing is led by this one. Must not know what is read, nor how the right to serve comes about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import suppress
from uuid import UUID

from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.image import ClusterImage
from broker.metadata.row_steps import holds_alone
from coldstore.object_store import ObjectStore
from hotstore.host.data_dir import DataDir
from logformat.errors import ThermoclineError
from logformat.values import TopicPartition
from seams.tasks import Tasks
from seams.world import World
from tiering.opening.read_ahead import ReadAhead


def lost_here(image: ClusterImage, node_id: int, held: Collection[TopicPartition]) -> Iterator[tuple[UUID, int]]:
    """Partitions of this node alone whose logs do not lie here."""
    for topic_id, topic in image.topics.items():
        for index, row in enumerate(topic.rows):
            if holds_alone(row, node_id) and TopicPartition(topic.name, index) not in held:
                yield UUID(topic_id), index


class ColdPrefetch:
    """Of one start."""

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
        """There is time. Once: what fails is left to whoever opens the logs."""
        if self._reading is None:
            self._reading = self._tasks.spawn("reading ahead", self._read())

    def end(self) -> None:
        """The wait is over: what was not read by now is read when it is opened."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> None:
        held = frozenset(await self._workers.run(self._data_dir.partitions))
        with suppress(ThermoclineError):
            found = await self._cluster.load()
            if found is not None:
                await self._ahead.read(lost_here(found.image, self._node_id, held))
