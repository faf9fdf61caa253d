"""The places of one data directory where logs lie: whose each is, and how one that is closed leaves it.

Owns the renaming and the removal of log directories. Always true: what is set aside is opened by no start; a directory
is touched only while it is of the topic that was named; what was set aside on proof is removed at once, a stray a week
after it was first seen here (R24): its name is in `cluster status` so long. Must not know open logs, nor which topics
there are. Source: Kafka's `-delete` and `-stray` directories.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, TypeVar, TypeVarTuple
from uuid import UUID

from hotstore.data_dir import DataDir
from logformat.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata
from logformat.values import TopicPartition
from seams.disk import read_file, remove_tree, replace_file
from seams.workers import run_to_end
from seams.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)

STRAY_KEPT_MS: Final = 7 * 24 * 3_600_000
SEEN_FILE: Final = "thermocline-stray"
"""In a stray's directory: when it was first seen there, milliseconds of the wall clock in decimal."""


class Places:
    """Of one data directory. Every method that waits does its work in a worker."""

    def __init__(self, data_dir: DataDir, world: World) -> None:
        self._data_dir = data_dir
        self._world = world

    async def _run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """To its end: a topic may be deleted, and made again, meanwhile."""
        return await run_to_end(self._world.workers, function, *args)

    async def set_aside(self, place: TopicPartition, topic_id: UUID | None) -> None:
        """Rename the directory of a closed log so that no start opens it; does nothing where a log of another topic
        than `topic_id` lies (None: whatever lies there). Durable when it returns. Raises OSError."""
        await self._run(self._set_aside, place, topic_id)

    def clear(self, place: TopicPartition) -> None:
        """Blocking: `set_aside` of whatever lies there."""
        self._set_aside(place, None)

    def _set_aside(self, place: TopicPartition, topic_id: UUID | None) -> None:
        path = self._data_dir.log_path(place.topic, place.partition)
        if self._world.disk.stat(path) is None or (topic_id is not None and self._topic_id_at(place) != topic_id):
            return
        self._data_dir.mark_deleted(place.topic, place.partition, self._world.rng.uuid().hex)

    async def topic_id_at(self, place: TopicPartition) -> UUID | None:
        """Whose log lies there; None where none lies, or it does not say. Raises Corrupt, OSError."""
        return await self._run(self._topic_id_at, place)

    async def topic_ids(self, apart_from: Collection[TopicPartition]) -> dict[TopicPartition, UUID]:
        """Whose the logs are that lie here, by place, those in `apart_from` excepted, which are not looked at. One that
        does not say so is left out. Raises Corrupt, OSError."""
        return await self._run(self._topic_ids, apart_from)

    def _topic_ids(self, apart_from: Collection[TopicPartition]) -> dict[TopicPartition, UUID]:
        places = (place for place in self._data_dir.partitions() if place not in apart_from)
        found = ((place, self._topic_id_at(place)) for place in places)
        return {place: topic_id for place, topic_id in found if topic_id is not None}

    def _topic_id_at(self, place: TopicPartition) -> UUID | None:
        disk = self._world.disk
        metadata = f"{self._data_dir.log_path(place.topic, place.partition)}/{PARTITION_METADATA_FILE}"
        if disk.stat(metadata) is None:
            return None
        return UUID(bytes=decode_partition_metadata(read_file(disk, metadata)))

    async def move_stray(self, place: TopicPartition, topic_id: UUID) -> str | None:
        """Rename the directory of this very topic's closed log so that nothing opens or removes it; its new path, None
        where it does not lie here. Durable when it returns. Raises Corrupt, OSError."""
        return await self._run(self._move_stray, place, topic_id)

    def _move_stray(self, place: TopicPartition, topic_id: UUID) -> str | None:
        if self._topic_id_at(place) != topic_id:
            return None
        path = self._data_dir.mark_stray(place.topic, place.partition, self._world.rng.uuid().hex)
        log.warning(
            "%s of topic id %s is not this broker's any more: moved to %s, where it stays for a week",
            place,
            topic_id,
            path,
        )
        return path

    async def strays(self) -> list[str]:
        """Directories that were moved aside so, by name. Raises OSError."""
        return await self._run(self._data_dir.strays)

    async def delete_set_aside(self) -> None:
        """Remove what was set aside, by whomever. Raises OSError."""
        await self._run(self._delete_set_aside)

    def _delete_set_aside(self) -> None:
        for path in self._data_dir.deleted_directories():
            self._data_dir.remove_deleted(path)

    async def remove_old_strays(self) -> None:
        """Remove strays that lie here for a week; of others note when they were first seen. Raises OSError."""
        await self._run(self._remove_old_strays, self._world.clock.wall_ms())

    def _remove_old_strays(self, now_ms: int) -> None:
        disk = self._world.disk
        for name in self._data_dir.strays():
            path = f"{self._data_dir.path}/{name}"
            seen = f"{path}/{SEEN_FILE}"
            if (seen_ms := None if disk.stat(seen) is None else _number(read_file(disk, seen))) is None:
                replace_file(disk, seen, b"%d\n" % now_ms)
            elif now_ms - seen_ms > STRAY_KEPT_MS:
                log.warning("%s lay here for a week, and nobody missed it: removed", path)
                remove_tree(disk, path)


def _number(data: bytes) -> int | None:
    text = data.strip()
    return int(text) if text.isdigit() and len(text) < 20 else None
