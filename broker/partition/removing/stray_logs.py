"""Stray logs: logs on this disk that are not assigned to this broker.

Stray logs are moved before other logs need their directories, and deleted after a week.

- Only an image with this broker's session counts (D43).
- A log of a deleted topic is not a stray: the deletion proves that the log may be removed (R24).
- A stray is deleted only after `cluster status` listed it for a week.

Source: Kafka's `-stray` directories (KAFKA-13127, 14616).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import ClusterImage
from broker.metadata.rebuilt import is_rebuilt
from hotstore.host.log_host import LogHost
from logformat.errors import Corrupt
from logformat.values import TopicPartition
from seams.loop.tasks import FailureReport


def assigned(image: ClusterImage, node_id: int) -> set[TopicPartition]:
    """The places of the logs that are assigned to `node_id`. 10 000 logs take 4 ms."""
    return {
        TopicPartition(topic.name, index)
        for topic in image.topics.values()
        for index, row in enumerate(topic.rows)
        if node_id in row.replicas or node_id in row.target
    }


def strays(found: Mapping[TopicPartition, UUID], image: ClusterImage, node_id: int) -> dict[TopicPartition, UUID]:
    """The logs of `found`, by place, that are not assigned to `node_id`. Empty for a rebuilt image, which may lack
    assignments (R29).
    """
    if is_rebuilt(image):
        return {}
    return {place: topic_id for place, topic_id in found.items() if is_stray(place, topic_id, image, node_id)}


def is_assigned(image: ClusterImage, topic_id: str, index: int, node_id: int) -> bool:
    """Whether `image` assigns the partition to `node_id`, now or after a move."""
    topic = image.topics.get(topic_id)
    if topic is None or index >= topic.partitions:
        return False
    row = topic.rows[index]
    return node_id in row.replicas or node_id in row.target


def is_stray(place: TopicPartition, topic_id: UUID, image: ClusterImage, node_id: int) -> bool:
    if str(topic_id) in image.deleted or node_id not in image.nodes:
        return False
    return not is_assigned(image, str(topic_id), place.partition, node_id)


_LOOK_S: Final = 3600.0


class StrayLogs:
    def __init__(self, node_id: int, logs: LogHost, metadata: MetadataCache, report: FailureReport) -> None:
        self._node_id = node_id
        self._logs = logs
        self._metadata = metadata
        self._report = report

    async def move_all(self, image: ClusterImage) -> None:
        """Move all logs that `image` does not assign to this broker, before any log is opened. `image` holds this
        broker's session. A log that cannot be read stays and is reported; the other logs do not wait for it."""
        found = await self._logs.directories.topic_ids_found(assigned(image, self._node_id))
        for place, failure in found.refused.items():
            self._report(f"read the topic id of {place}", failure)
        for place, topic_id in strays(found.topic_ids, image, self._node_id).items():
            await self._move(place, topic_id)

    async def move_if_stray(self, place: TopicPartition) -> None:
        """Move a log of an earlier topic out of `place`. While this broker did not run, that topic was deleted and a
        topic of the same name was created."""
        topic_id = await self._logs.topic_id_at(place)
        if topic_id is not None and is_stray(place, topic_id, self._metadata.image, self._node_id):
            await self._move(place, topic_id)

    async def _move(self, place: TopicPartition, topic_id: UUID) -> None:
        try:
            await self._logs.move_stray(place, topic_id)
        except (Corrupt, OSError) as failure:  # the log stays, and blocks other logs in its directory
            self._report(f"move {place} aside", failure)

    async def keep_removing(self) -> None:
        """Delete week-old strays until cancelled."""
        while True:
            try:
                if not is_rebuilt(self._metadata.image):
                    await self._logs.directories.remove_old_strays()
            except OSError as failure:  # the next round tries again
                self._report("strays", failure)
            await asyncio.sleep(_LOOK_S)
