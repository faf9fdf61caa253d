"""Log directories of a data directory: topic ids, deletion and strays (Kafka's `-delete` and `-stray` directories).

A directory is renamed only if its topic id is the requested one. Deleted logs are removed at once. Strays are removed a
week after they were first seen (R24), and until then `cluster status` lists them. Methods for one partition block and
run in its turn (`LogHost`). The other methods run in a worker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final, NamedTuple
from uuid import UUID

from hotstore.errors import ForeignLog
from hotstore.host.data_dir import DataDir
from logformat.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata
from logformat.errors import Corrupt
from logformat.values import TopicPartition
from seams.files.disk import read_file, remove_tree, replace_file
from seams.world import World

log = logging.getLogger(__name__)

STRAY_KEPT_MS: Final = 7 * 24 * 3_600_000
SEEN_FILE: Final = "thermocline-stray"
"""File in a stray's directory: time when it was first seen, wall clock ms in decimal."""


class FoundIds(NamedTuple):
    """Topic ids of the log directories, by place. `refused`: the errors of directories whose id could not be read."""

    topic_ids: dict[TopicPartition, UUID]
    refused: dict[TopicPartition, Exception]


class LogDirectories:
    def __init__(self, data_dir: DataDir, world: World) -> None:
        self._data_dir = data_dir
        self._world = world

    # --- one place: blocking, in the place's turn -----------------------------------------------------------------

    def set_aside(self, place: TopicPartition, topic_id: UUID) -> None:
        """Rename the directory of a closed log so that no start opens it. Does nothing if the directory is that of
        another topic. Durable when it returns. Raises Corrupt, OSError."""
        if self.topic_id_at(place) == topic_id:
            self._mark_deleted(place)

    def clear(self, place: TopicPartition, topic_id: UUID) -> None:
        """Mark the directory at `place` as deleted, if there is one, so that a log of this topic can be created. Raises
        ForeignLog if the directory belongs to another topic, Corrupt, OSError.
        """
        path = self._data_dir.log_path(place.topic, place.partition)
        if self._world.disk.stat(path) is None:
            return
        if (other := self.topic_id_at(place)) not in (None, topic_id):
            raise ForeignLog(f"{path} belongs to topic id {other}, not {topic_id}")
        self._mark_deleted(place)

    def _mark_deleted(self, place: TopicPartition) -> None:
        self._data_dir.mark_deleted(place.topic, place.partition, self._world.rng.uuid().hex)

    def topic_id_at(self, place: TopicPartition) -> UUID | None:
        """Topic id of the log directory; None if there is none or it has no metadata file. Raises Corrupt, OSError."""
        disk = self._world.disk
        metadata = f"{self._data_dir.log_path(place.topic, place.partition)}/{PARTITION_METADATA_FILE}"
        if disk.stat(metadata) is None:
            return None
        return UUID(bytes=decode_partition_metadata(read_file(disk, metadata)))

    def move_stray(self, place: TopicPartition, topic_id: UUID) -> str | None:
        """Rename the directory of this topic's closed log to a stray. Returns its new path; None if the log is not
        here. Durable when it returns. Raises Corrupt, OSError."""
        if self.topic_id_at(place) != topic_id:
            return None
        path = self._data_dir.mark_stray(place.topic, place.partition, self._world.rng.uuid().hex)
        log.warning(
            "%s of topic id %s no longer belongs to this broker: moved to %s, where it stays for a week",
            place,
            topic_id,
            path,
        )
        return path

    # --- all places -------------------------------------------------------------------------------------------------

    async def topic_ids(self) -> dict[TopicPartition, UUID]:
        """Topic ids of the log directories. A directory without a metadata file is left out. Raises Corrupt,
        OSError."""
        found = await self.topic_ids_found(())
        for failure in found.refused.values():
            raise failure
        return found.topic_ids

    async def topic_ids_found(self, apart_from: Collection[TopicPartition]) -> FoundIds:
        """Topic ids of the log directories, and the errors of unreadable ones. Places in `apart_from` are not read.
        Raises OSError."""
        return await self._world.workers.run(self._topic_ids, apart_from)

    def _topic_ids(self, apart_from: Collection[TopicPartition]) -> FoundIds:
        found = FoundIds({}, {})
        for place in self._data_dir.partitions():
            if place in apart_from:
                continue
            try:
                topic_id = self.topic_id_at(place)
            except (Corrupt, OSError) as failure:
                found.refused[place] = failure
            else:
                if topic_id is not None:
                    found.topic_ids[place] = topic_id
        return found

    async def strays(self) -> list[str]:
        """Names of stray directories. Raises OSError."""
        return await self._world.workers.run(self._data_dir.strays)

    async def delete_set_aside(self) -> None:
        """Remove all deleted log directories. Raises OSError."""
        await self._world.workers.run(self._delete_set_aside)

    def _delete_set_aside(self) -> None:
        for path in self._data_dir.deleted_directories():
            self._data_dir.remove_deleted(path)

    async def remove_old_strays(self) -> None:
        """Remove strays that were first seen a week ago. Record for new strays when they were first seen. Raises
        OSError."""
        await self._world.workers.run(self._remove_old_strays, self._world.clock.wall_ms())

    def _remove_old_strays(self, now_ms: int) -> None:
        disk = self._world.disk
        for name in self._data_dir.strays():
            path = f"{self._data_dir.path}/{name}"
            seen = f"{path}/{SEEN_FILE}"
            if (seen_ms := None if disk.stat(seen) is None else _number(read_file(disk, seen))) is None:
                replace_file(disk, seen, b"%d\n" % now_ms)
            elif now_ms - seen_ms > STRAY_KEPT_MS:
                log.warning("stray log %s is removed a week after it was found", path)
                remove_tree(disk, path)


def _number(data: bytes) -> int | None:
    text = data.strip()
    return int(text) if text.isdigit() and len(text) < 20 else None
