"""Delays produce requests to a log with too many unsynced bytes (C27), and refuses produce requests when local storage
has no room.

An append runs on the loop, so it must find room in the page cache. When a log exceeds its budget, the *next* produce to
it waits for a flush, before the kernel would make `pwrite` wait. Other connections continue. A request waits before it
is appended, so the order within a connection is kept. A log line reports when refusals begin and when they end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from enum import Enum
from typing import Final, Protocol

from broker.partition.leading.leader_replica import LeaderReplica
from broker.wire.messages import ProduceRequest
from hotstore.errors import LogFailed, LogFull, ReservationExhausted
from logformat.errors import StorageFailed
from seams.loop.tasks import Tasks
from seams.memory import memory_bytes

log = logging.getLogger(__name__)

# The kernel blocks writers when the dirty pages of all files exceed dirty_ratio (20 % of memory by default). One log
# gets half of this limit, and at most a few seconds of a fast disk. The kernel's own writeback continues, so most pages
# of a drain are already clean. Measured with 8 logs, 6 to 10 GB of 128 KB appends, 24 GB of memory, ext4: one budget
# for all logs is not better. Early writeback (sync_file_range every 8 MiB) costs a fifth more CPU for the same p999.
DIRTY_BYTES_MAX: Final = 2 << 30
DIRTY_SHARE_OF_MEMORY: Final = 10

PRESSURE_DELAY_S: Final = 0.1
PRESSURE_DELAYS_AT: Final = 0.02  # above measurement noise, and above the share of active segments
PRESSURE_REFUSES_AT: Final = 0.1

REFUSALS_OVER_S: Final = 5.0  # time without a refusal while appends succeed, after which the end is logged
REFUSALS_END_S: Final = 60.0  # time without appends after which another refusal is logged


class AppendRefusal(Enum):
    """The reason why local storage refuses appends. The value is its label in metrics."""

    DISK_FULL = "disk_full"  # the file system has no space
    LOCAL_LIMIT = "local_limit"  # local logs are too far over their limit
    RESERVATION = "reservation"  # offsets are used up and the bucket does not answer
    OFFLINE = "offline"  # a write or sync failed
    OTHER = "other"


class LocalLimit(StorageFailed):
    """Local logs are so far over their limit that appends stop. Nothing was written or dropped."""


_REFUSALS: Final = {
    LogFull: AppendRefusal.DISK_FULL,
    LocalLimit: AppendRefusal.LOCAL_LIMIT,
    ReservationExhausted: AppendRefusal.RESERVATION,
    LogFailed: AppendRefusal.OFFLINE,
}


class DiskPressure(Protocol):
    """The part of tiering that is used: the share by which local bytes exceed their limit after all possible deletions;
    0 below the limit."""

    local_excess_ratio: float


class ProduceBackpressure:
    """Logs over `dirty_bytes_max`, each with the flush that brings the log below this limit."""

    def __init__(self, tasks: Tasks, tiers: DiskPressure, dirty_bytes_max: int = DIRTY_BYTES_MAX) -> None:
        self._tasks = tasks
        self._tiers = tiers
        self._dirty_bytes_max = min(dirty_bytes_max, memory_bytes() // DIRTY_SHARE_OF_MEMORY)
        self._draining: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._refused_at_s: dict[AppendRefusal, float] = {}  # time of the last refusal of each kind that has not ended
        self.refused: Counter[AppendRefusal] = Counter()
        self.throttled_count = 0
        self.is_draining = False

    def appended(self, partition: LeaderReplica) -> None:
        """Start a flush if the log exceeds its budget. Called after every append."""
        if self._refused_at_s:
            self._append_succeeded()
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

    @property
    def is_busy(self) -> bool:
        """Whether a produce may have to wait: the only check on the hot path."""
        return self.is_draining or self._tiers.local_excess_ratio > PRESSURE_DELAYS_AT

    def check_room(self) -> None:
        """Raises StorageFailed when local logs are so far over their limit that appends have to stop."""
        if self._tiers.local_excess_ratio > PRESSURE_REFUSES_AT:
            raise LocalLimit(
                "local logs are more than a tenth over their limit (thermocline.local.bytes.max, or 80 % of the file "
                "system), and the bucket holds none of the segments that are left; see blocked_by in tier status"
            )

    def refuse(self, why: StorageFailed) -> None:
        """An append found no room. Count the refusal, and log it if it is the first in a while."""
        kind = _REFUSALS.get(type(why), AppendRefusal.OTHER)
        self.refused[kind] += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._refused_at_s.get(kind, -REFUSALS_END_S) >= REFUSALS_END_S:
            log.error("produces are refused with KAFKA_STORAGE_ERROR: %s", why)
        self._refused_at_s[kind] = now_s

    def _append_succeeded(self) -> None:
        """An append succeeded after refusals. A kind of refusal ends only after `REFUSALS_OVER_S` without one, because
        the append may be to another log."""
        now_s = asyncio.get_running_loop().time()
        for kind, last_s in tuple(self._refused_at_s.items()):
            if now_s - last_s >= REFUSALS_OVER_S:
                del self._refused_at_s[kind]
                log.info("produces are accepted again: none was refused (%s) for %d s", kind.value, now_s - last_s)

    def wait(self, request: ProduceRequest) -> Awaitable[object] | None:
        """None if every log of the request has room, otherwise an awaitable to await once. It fails with StorageFailed
        when one of the logs went offline; the append then fails too."""
        if not self.is_busy:
            return None
        if self._tiers.local_excess_ratio > PRESSURE_DELAYS_AT:
            # Local bytes are above the limit while uploads fail: delay produce requests first (G12).
            self.throttled_count += 1
            return self._tasks.spawn("throttled produce", asyncio.sleep(PRESSURE_DELAY_S))
        draining = [
            task
            for topic in request.topic_data
            for data in topic.partition_data
            if (task := self._draining.get((topic.name, data.index))) is not None
        ]
        if not draining:
            return None
        self.throttled_count += 1
        return asyncio.gather(*map(asyncio.shield, draining))
