"""Logs that lie here and are not this broker's: moved aside before anything needs their places, removed after a week.

Owns when that is done. Always true: by an image that holds this broker's session alone (D43); nothing is removed that
did not lie aside for a week, named in `cluster status` (R24). Must not know which logs those are (strays, pure), nor
how directories move.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

from broker.following.metadata_cache import MetadataCache
from broker.metadata.image import ClusterImage
from broker.metadata.rebuilt import is_rebuilt
from broker.partition.removing.stray_directories import assigned, is_stray, strays
from hotstore.host.log_host import LogHost
from logformat.errors import Corrupt
from logformat.values import TopicPartition
from seams.tasks import FailureReport

_LOOK_S: Final = 3600.0


class StrayLogs:
    """Of one broker."""

    def __init__(self, node_id: int, logs: LogHost, metadata: MetadataCache, report: FailureReport) -> None:
        self._node_id = node_id
        self._logs = logs
        self._metadata = metadata
        self._report = report

    async def move_all(self, image: ClusterImage) -> None:
        """Move aside what lies here and is not this broker's by `image`, which holds its session; before anything is
        opened. One that does not let itself be looked at stays where it lies: no other waits for it."""
        found = await self._logs.directories.topic_ids_found(assigned(image, self._node_id))
        for place, failure in found.refused.items():
            self._report(f"look whose {place} is", failure)
        for place, topic_id in strays(found.topic_ids, image, self._node_id).items():
            await self._move(place, topic_id)

    async def make_way(self, place: TopicPartition) -> None:
        """What lies there is of another topic: one that was deleted, and this one made, while this broker was away."""
        topic_id = await self._logs.topic_id_at(place)
        if topic_id is not None and is_stray(place, topic_id, self._metadata.image, self._node_id):
            await self._move(place, topic_id)

    async def _move(self, place: TopicPartition, topic_id: UUID) -> None:
        try:
            await self._logs.move_stray(place, topic_id)
        except (Corrupt, OSError) as failure:  # it lies where it lay; whoever needs the place is told so
            self._report(f"move {place} aside", failure)

    async def keep_removing(self) -> None:
        """Until cancelled: those that lie aside for a week."""
        while True:
            try:
                if not is_rebuilt(self._metadata.image):
                    await self._logs.directories.remove_old_strays()
            except OSError as failure:  # they stay until the next look
                self._report("strays", failure)
            await asyncio.sleep(_LOOK_S)
