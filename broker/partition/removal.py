"""How a deleted topic goes: its logs are closed, its directories moved away and removed, its objects deleted.

Owns the turns at the directories of a topic's name. Always true: of all who open, close and move logs under one name,
one works at a time, in the order they were asked (C9: a topic created again never meets an open log of the old one);
topics of other names wait for none of it. Must not know who decided the deletion, nor what clients were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID
from weakref import WeakValueDictionary

from broker.metadata.image import Topic
from broker.partition.partition import Partition
from hotstore.data_dir import DataDir
from logformat.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata
from seams.disk import read_file
from seams.tasks import Tasks
from seams.world import World
from tiering.service import TierService


class Removal:
    """Deleted topics of one broker, from the moment clients do not see them any more."""

    def __init__(
        self,
        world: World,
        data_dir: DataDir,
        tiers: TierService,
        tasks: Tasks,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._world = world
        self._data_dir = data_dir
        self._tiers = tiers
        self._tasks = tasks
        self._report = report
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # while somebody has or wants one
        self._closing: dict[asyncio.Task[None], None] = {}

    def turn(self, name: str) -> asyncio.Lock:
        """The directories of topics called `name`, for oneself."""
        return self._turns.setdefault(name, asyncio.Lock())

    def close(self, topic: Topic, ended: Callable[[], Awaitable[list[Partition]]]) -> None:
        """Close the logs that `ended` gives when what worked on the topic is over."""
        turn = self.turn(topic.name)

        async def close_all() -> None:
            async with turn:
                for partition in await ended():
                    await self._close_one(partition)

        task = self._tasks.spawn(f"close {topic.name}", close_all())
        self._closing[task] = None
        task.add_done_callback(self._closing.pop)

    async def _close_one(self, partition: Partition) -> None:
        try:
            await self._tiers.close_partition(partition.tier, give_back=False)
            await partition.flusher.close()
            await self._world.workers.run(partition.log.close, False)
        except OSError as failure:  # of a file nobody needs any more: the other logs are to be closed all the same
            self._report(f"close {partition.topic}-{partition.index}", failure)

    async def closed(self) -> None:
        """Wait until no deleted log is open any more."""
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def purge(self, topic: Topic) -> None:
        """Remove a closed topic's local files, then its objects. Raises OSError, and as `TierService.purge_topic`."""
        async with self.turn(topic.name):
            await self._world.workers.run(self._move_away, topic)
        await self._world.workers.run(self._remove_moved)
        await self._tiers.purge_topic(UUID(topic.topic_id), topic.partitions)

    def _move_away(self, topic: Topic) -> None:
        for index in range(topic.partitions):
            path = self._data_dir.log_path(topic.name, index)
            metadata = f"{path}/{PARTITION_METADATA_FILE}"
            # A new topic may have taken the name since: its directory carries another id (C9).
            if (
                self._world.disk.stat(metadata) is not None
                and decode_partition_metadata(read_file(self._world.disk, metadata)) == UUID(topic.topic_id).bytes
            ):
                self._data_dir.mark_deleted(topic.name, index, self._world.rng.uuid().hex)

    def _remove_moved(self) -> None:
        """Of every deleted topic: several may be at it at once."""
        for path in self._data_dir.deleted_directories():
            self._data_dir.remove_deleted(path)
