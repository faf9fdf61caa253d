"""Produces wait when a log's unsynced bytes outgrow a budget: our answer to C27.

Owns which logs are over their budget. A write on the loop only ever meets a page cache with room: before the kernel
would make `pwrite` wait for the disk, the *next* produce to that log waits for a flush instead, and every other
connection goes on. Always true: a log over budget has one flush under way; a request waits before it is appended, so
order within a connection holds. Must not know requests beyond the partitions they name.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.partition.partition import Partition
from broker.wire.messages import ProduceRequest
from seams.tasks import Tasks

# The kernel starts to throttle writers at dirty_ratio (20 % of memory by default) over all files; half a gibibyte of
# one log is below that from 4 GiB of memory on, and about a second of a fast disk.
DIRTY_BYTES_MAX: Final = 512 * 1024 * 1024


class Throttle:
    """Logs over `dirty_bytes_max`, each with the flush that will bring it below."""

    def __init__(self, tasks: Tasks, dirty_bytes_max: int = DIRTY_BYTES_MAX) -> None:
        self._tasks = tasks
        self._dirty_bytes_max = dirty_bytes_max
        self._draining: dict[tuple[str, int], asyncio.Task[None]] = {}
        self.throttled_count = 0
        self.is_draining = False
        """Whether any log is over its budget: the hot path's one look."""

    def appended(self, partition: Partition) -> None:
        """Called after every append: start a flush when the log outgrew its budget."""
        if partition.log.dirty_bytes > self._dirty_bytes_max:
            key = (partition.topic, partition.index)
            if key not in self._draining:
                task = self._tasks.spawn("drain", partition.flusher.drain(self._dirty_bytes_max // 2))
                self._draining[key] = task
                self.is_draining = True
                task.add_done_callback(lambda _: self._drained(key))

    def _drained(self, key: tuple[str, int]) -> None:
        self._draining.pop(key, None)
        self.is_draining = bool(self._draining)

    def wait(self, request: ProduceRequest) -> asyncio.Future[None] | None:
        """None when every log the request names has room, else what to wait for first."""
        if not self.is_draining:
            return None
        for topic in request.topic_data:
            for data in topic.partition_data:
                task = self._draining.get((topic.name, data.index))
                if task is not None:
                    self.throttled_count += 1
                    return asyncio.shield(task)
        return None
