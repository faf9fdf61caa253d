"""How logs go: those of a deleted topic, its objects too, and those that other brokers hold now.

Owns the turns at the directories of a topic's name. Always true: of all who open, close and move logs under one name,
one works at a time, in the order they were asked (C9: a topic created again never meets an open log of the old one);
topics of other names wait for none of it; only files and objects of a topic that the image names as deleted are removed
(R24), and files of a partition that rows were seen to give to others. Must not know who decided it, nor what clients
were told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from broker.metadata.image import Topic
from broker.partition.replica import Partition
from hotstore.log_host import LogHost, OpenLog
from logformat.errors import Corrupt
from logformat.values import TopicPartition
from seams.tasks import Tasks
from tiering.service import TierService

log = logging.getLogger(__name__)

_PURGING_MAX: Final = 4  # topics whose objects are deleted at once: those of a wide request must not starve copies


class Removal:
    """Deleted topics of one broker, from the moment clients do not see them any more."""

    def __init__(
        self,
        logs: LogHost,
        tiers: TierService,
        tasks: Tasks,
        report: Callable[[str, BaseException], None],
    ) -> None:
        self._logs = logs
        self._tiers = tiers
        self._tasks = tasks
        self._report = report
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # while somebody has or wants one
        self._closing: dict[asyncio.Task[None], None] = {}
        self._at_the_bucket = asyncio.Semaphore(_PURGING_MAX)

    def turn(self, name: str) -> asyncio.Lock:
        """The directories of topics called `name`, for oneself."""
        return self._turns.setdefault(name, asyncio.Lock())

    def close(
        self, topic: Topic, ended: Callable[[], Awaitable[list[Partition]]], is_remembered: Callable[[], bool]
    ) -> None:
        """Close the topic's logs when what worked on it is over; `ended` waits for that, and gives what was led.

        `is_remembered`: somebody removes them. Else they are moved aside: the cluster forgot the topic while this
        broker did not look, and what it does not name any more is no proof."""
        turn = self.turn(topic.name)

        async def close_all() -> None:
            async with turn:
                for partition in await ended():
                    await self._tiers.detach(partition.tier, give_back=False)
                for opened in self._logs.open_logs:
                    if opened.log.topic_id == UUID(topic.topic_id).bytes:
                        await self._close_one(opened)
                if not is_remembered():
                    for index in range(topic.partitions):
                        await self.move_aside(TopicPartition(topic.name, index), UUID(topic.topic_id))

        self.keep(self._tasks.spawn(f"close {topic.name}", close_all()))

    def keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """`closed` waits for it."""
        self._closing[task] = None
        task.add_done_callback(self._closing.pop)
        return task

    async def let_go(
        self, place: TopicPartition, topic_id: UUID, is_wanted: Callable[[], bool], *, is_seen: bool
    ) -> None:
        """Close a log that nothing works on any more and remove it, or move it aside (not `is_seen`), if that is still
        wanted when its turn comes."""
        async with self.turn(place.topic):
            if not is_wanted():
                return
            for opened in self._logs.open_logs:
                if opened.log.topic_id == topic_id.bytes and opened.log.partition == place.partition:
                    await self._close_one(opened)
            if not is_seen:
                await self.move_aside(place, topic_id)
                return
            try:
                await self._logs.places.set_aside(place, topic_id)
            except (Corrupt, OSError) as failure:  # it lies where it lay: a stray to the next start
                self._report(f"remove {place}", failure)
                return
        log.info("%s of topic id %s is held by other brokers now: its log here is removed", place, topic_id)
        try:
            await self._logs.places.delete_set_aside()
        except OSError as failure:  # nothing opens it; the next removal, or the next start, removes it
            self._report(f"remove {place}", failure)

    async def _close_one(self, opened: OpenLog) -> None:
        try:
            await self._logs.close(opened, clean=False)
        except OSError as failure:  # of a file nobody needs any more: the other logs are to be closed all the same
            self._report(f"close {opened.place}", failure)
        self._tiers.forget(opened)

    async def move_aside(self, place: TopicPartition, topic_id: UUID) -> None:
        """A closed log that nobody knows goes where nothing opens it, and nothing removes it."""
        try:
            await self._logs.places.move_stray(place, topic_id)
        except (Corrupt, OSError) as failure:  # it lies where it lay; whoever needs the place is told so
            self._report(f"move {place} aside", failure)

    async def closed(self) -> None:
        """Wait until no deleted log is open any more."""
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def purge_files(self, topic: Topic) -> None:
        """Remove a closed topic's local files. Raises OSError."""
        async with self.turn(topic.name):
            for index in range(topic.partitions):
                # A new topic may have taken the name since: its directory carries another id (C9).
                await self._logs.places.set_aside(TopicPartition(topic.name, index), UUID(topic.topic_id))
        await self._logs.places.delete_set_aside()

    async def purge_objects(self, topic: Topic) -> None:
        """Delete a topic's objects. Raises as `TierService.purge_topic`."""
        async with self._at_the_bucket:
            await self._tiers.purge_topic(UUID(topic.topic_id), topic.partitions)
