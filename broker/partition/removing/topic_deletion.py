"""Deletion of topics: every broker removes its files, and the controller's broker also removes the objects (R24).

- Only topics that the image names as deleted are removed. While the rebuild of a cluster is not confirmed, no topic is
  removed (R29).
- Only the controller's broker deletes objects and then removes the topic's record. After a failure, the next controller
  thus continues the deletions.
- The record is removed after every broker with a session had time to apply the deletion; otherwise that broker's logs
  would become strays. Objects of uploads that ended meanwhile are also deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.rebuilt import is_rebuilt
from hotstore.host.log_host import LogHost
from logformat.errors import Retryable
from logformat.values import TopicPartition
from seams.loop.tasks import FailureReport, Tasks, supervise
from seams.rng import Rng
from tiering.service import TierService

RETRY_S_MAX: Final = 300.0
LATER_S: Final = 1.0  # added to one session timeout, after which a broker that did not see the commit has no session
PURGING_MAX: Final = 4  # topics whose objects are deleted concurrently; a large request must not starve uploads


@dataclass(eq=False, repr=False)
class TopicDeletion:
    """`closed` waits until a withdrawn topic's logs are closed. `forget` asks the controller to forget a completely
    deleted topic; it raises if the controller does not. `session_s`: time of silence after which a broker has no
    session."""

    _node_id: int
    _metadata: MetadataCache
    _logs: LogHost
    _tiers: TierService
    _closed: Callable[[str], Awaitable[None]]
    _forget: Callable[[Topic], Awaitable[None]]
    _tasks: Tasks
    _rng: Rng
    _report: FailureReport
    _session_s: float

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(PURGING_MAX)
        self._in_progress: dict[str, bool] = {}  # by topic id: whether `purge` was called again since the last check

    def removes(self, topic_id: str) -> bool:
        return topic_id in self._in_progress

    def purge(self, topic: Topic) -> None:
        """Begin to remove a withdrawn topic's local files. The controller's broker then deletes the topic's objects and
        forgets the topic. The removal is retried until everything is deleted. A call during the removal checks again
        which broker is the controller.
        """
        if topic.topic_id in self._in_progress:
            self._in_progress[topic.topic_id] = True
            return
        self._in_progress[topic.topic_id] = False
        self._tasks.spawn(f"purge {topic.name}", self._purge(topic))

    async def _purge(self, topic: Topic) -> None:
        async def attempt() -> None:
            await self._attempt(topic)

        try:
            await supervise(f"purge {topic.name}", attempt, self._rng, self._report, backoff_max_s=RETRY_S_MAX)
        finally:
            del self._in_progress[topic.topic_id]

    async def _attempt(self, topic: Topic) -> None:
        self._check_not_rebuilt()
        await self._purge_files(topic)
        while True:
            self._in_progress[topic.topic_id] = False
            if self._decides and await self._is_purged(topic):
                await self._forget(topic)
            if not self._in_progress[topic.topic_id]:
                return

    async def _purge_files(self, topic: Topic) -> None:
        await self._closed(topic.topic_id)
        for index in range(topic.partitions):
            # A new topic may have the name now. The directory of the new topic carries another id (C9).
            place, topic_id = TopicPartition(topic.name, index), UUID(topic.topic_id)
            await self._logs.set_aside(place, topic_id, lambda: not is_rebuilt(self._metadata.image))
        self._check_not_rebuilt()
        await self._logs.directories.delete_set_aside()

    async def _is_purged(self, topic: Topic) -> bool:
        """Delete the objects. True if this broker was the controller at each deletion: the topic may be forgotten."""
        if not await self._purge_objects(topic):
            return False
        if self._has_others:
            await asyncio.sleep(self._session_s + LATER_S)
            if not await self._purge_objects(topic):
                return False
        return self._decides

    async def _purge_objects(self, topic: Topic) -> bool:
        """Delete the objects. False if this broker is not the controller any more. Raises as
        `TierService.purge_topic`."""
        async with self._slots:
            if not self._decides:
                return False
            return await self._tiers.purge_topic(UUID(topic.topic_id), topic.partitions, self._may_delete)

    def _may_delete(self) -> bool:
        """Whether this broker may delete objects. Checked before each deletion, because the deletion of a topic with
        many partitions takes minutes."""
        self._check_not_rebuilt()
        return self._decides

    def _check_not_rebuilt(self) -> None:
        if is_rebuilt(self._metadata.image):
            raise Retryable("nothing is deleted until the rebuild of the cluster is confirmed")

    @property
    def _decides(self) -> bool:
        return self._metadata.is_decided_by(self._node_id)

    @property
    def _has_others(self) -> bool:
        nodes = self._metadata.image.nodes.values()
        return any(node.active and node.node_id != self._node_id for node in nodes)
