"""Deleted topics, until nothing of them is left: every broker removes its files, the controller's the objects (R24).

Owns which deletions are under way here. Always true: only what the image names as deleted is removed; the controller's
broker alone deletes objects and has the topic forgotten, whoever decided the deletion, so that what a controller began
that died is begun again by the next; while a rebuild stands nothing goes, no file either (R29); a topic is forgotten
when every broker in session had the time to hear of it, else what it has of it would be a stray; what an upload that
was under way left until then is deleted too. Must not know what worked on the logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.rebuilt import is_rebuilt
from hotstore.host.log_host import LogHost
from logformat.errors import Retryable
from logformat.values import TopicPartition
from seams.rng import Rng
from seams.tasks import FailureReport, Tasks, supervise
from tiering.service import TierService

RETRY_S_MAX: Final = 300.0
LATER_S: Final = 1.0  # than a session: who has not heard of a commit by then has none
PURGING_MAX: Final = 4  # topics whose objects are deleted at once: those of a wide request must not starve copies


class TopicDeletion:
    """Of one broker. `closed` waits until a withdrawn topic's logs are closed; `forget` asks the controller to forget a
    deleted topic of which nothing is left; it raises while it cannot. `session_s`: a broker silent for so long has no
    session any more."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataCache,
        logs: LogHost,
        tiers: TierService,
        closed: Callable[[str], Awaitable[None]],
        forget: Callable[[Topic], Awaitable[None]],
        tasks: Tasks,
        rng: Rng,
        report: FailureReport,
        session_s: float,
    ) -> None:
        self._node_id = node_id
        self._heard_s = session_s + LATER_S
        self._metadata = metadata
        self._logs = logs
        self._tiers = tiers
        self._closed = closed
        self._forget = forget
        self._tasks = tasks
        self._rng = rng
        self._report = report
        self._at_the_bucket = asyncio.Semaphore(PURGING_MAX)
        self._under_way: dict[str, bool] = {}  # by topic id: whether it was said again since the last look

    def removes(self, topic_id: str) -> bool:
        """Whether the removal of a topic's files is under way."""
        return topic_id in self._under_way

    def purge(self, topic: Topic) -> None:
        """Begin to remove a withdrawn topic's local files; where this broker decides, its objects then, and let it be
        forgotten. Tried until nothing is left, or somebody else decides. Said again while it is under way, it looks
        again who decides."""
        if topic.topic_id in self._under_way:
            self._under_way[topic.topic_id] = True
            return
        self._under_way[topic.topic_id] = False
        self._tasks.spawn(f"purge {topic.name}", self._purge(topic))

    async def _purge(self, topic: Topic) -> None:
        async def attempt() -> None:
            await self._attempt(topic)

        try:
            await supervise(f"purge {topic.name}", attempt, self._rng, self._report, backoff_max_s=RETRY_S_MAX)
        finally:
            del self._under_way[topic.topic_id]

    async def _attempt(self, topic: Topic) -> None:
        if is_rebuilt(self._metadata.image):
            raise Retryable(f"{topic.name}: nothing is deleted before the cluster's rebuild is said to be done")
        await self._purge_files(topic)
        while True:
            self._under_way[topic.topic_id] = False
            if self._decides and await self._is_purged(topic):
                await self._forget(topic)
            if not self._under_way[topic.topic_id]:
                return

    async def _purge_files(self, topic: Topic) -> None:
        """Raises Corrupt, OSError."""
        await self._closed(topic.topic_id)
        for index in range(topic.partitions):
            # A new topic may have taken the name since: its directory carries another id (C9).
            await self._logs.set_aside(TopicPartition(topic.name, index), UUID(topic.topic_id))
        await self._logs.directories.delete_set_aside()

    async def _is_purged(self, topic: Topic) -> bool:
        """Delete the objects; whether this broker decided all the while, so that the topic may be forgotten."""
        if not await self._purge_objects(topic):
            return False
        if self._has_others:
            await asyncio.sleep(self._heard_s)
            if not await self._purge_objects(topic):
                return False
        return self._decides

    async def _purge_objects(self, topic: Topic) -> bool:
        """Whether this broker decides still when its turn at the bucket comes. Raises as `TierService.purge_topic`."""
        async with self._at_the_bucket:
            if not self._decides:
                return False
            await self._tiers.purge_topic(UUID(topic.topic_id), topic.partitions)
            return True

    @property
    def _decides(self) -> bool:
        return self._metadata.is_decided_by(self._node_id)

    @property
    def _has_others(self) -> bool:
        nodes = self._metadata.image.nodes.values()
        return any(node.active and node.node_id != self._node_id for node in nodes)
