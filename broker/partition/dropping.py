"""Logs of partitions that this broker held and holds no more: closed, and removed where that was seen to come about.

Owns what becomes of a log when the row takes this broker out (ADR 20). Always true: it is removed only where this
process, in one session, obeyed a row that named the broker and then one that does not (R8, R24), else moved aside as a
stray; nothing of it is touched before the role that worked on it is over, nor once the image gives it back: then the
log stays as it is. Must not know roles, nor why the row changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import Topic
from broker.metadata.rebuilt import is_rebuilt
from broker.partition.removal import Removal
from broker.partition.strays import is_assigned
from logformat.values import TopicPartition
from seams.tasks import Tasks

log = logging.getLogger(__name__)

_Key = tuple[str, int]


class Dropping:
    """Of broker `node_id`. `ended` waits until nothing works on a partition's log; `let_go` is told of one that others
    hold now, whether or not it is given back before its files go."""

    def __init__(
        self,
        node_id: int,
        metadata: MetadataCache,
        removal: Removal,
        tasks: Tasks,
        ended: Callable[[Topic, int], Awaitable[None]],
        let_go: Callable[[UUID, int], None],
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._removal = removal
        self._tasks = tasks
        self._ended = ended
        self._let_go = let_go
        self._under_way: dict[_Key, asyncio.Task[None]] = {}

    def drop(self, topic: Topic, index: int, *, is_seen: bool) -> None:
        """Begin to let go of a log whose role is over. `is_seen`: by rows of one session of this process."""
        key, place = (topic.topic_id, index), TopicPartition(topic.name, index)

        def is_wanted() -> bool:
            """Asked when it is about to be done: the row may have given it back, or taken it again."""
            if is_assigned(self._metadata.image, topic.topic_id, index, self._node_id):
                return False
            return self._under_way.get(key) is task

        async def go() -> None:
            await self._ended(topic, index)
            self._let_go(UUID(topic.topic_id), index)
            is_sure = is_seen and not is_rebuilt(self._metadata.image)
            await self._removal.let_go(place, UUID(topic.topic_id), is_wanted, is_seen=is_sure)

        task = self._removal.keep(self._tasks.spawn(f"drop {place}", go()))
        self._under_way[key] = task
        task.add_done_callback(partial(self._over, key))

    def _over(self, key: _Key, task: asyncio.Task[None]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]

    async def over(self, topic_id: str, index: int) -> None:
        """Wait until the log is gone, or is to stay."""
        while (task := self._under_way.get((topic_id, index))) is not None:
            await asyncio.wait([task])
