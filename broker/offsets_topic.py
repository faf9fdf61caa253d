"""`__consumer_offsets` as the group coordinator sees it: append durably, replay, and keep a snapshot in the bucket.

Owns the internal topic's life (design 5): it is not tiered; its manifest names one snapshot of the live state, so
that a lost disk loses at most the last snapshot interval of commits. Always true: a replay is the newest snapshot,
then the local log above it, in order. Must not know what the records say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from broker.config.resolve import BrokerConfig
from broker.controller.door import ControllerDoor
from broker.groups.coordinator import GroupCoordinator
from broker.partition.partition import Partition
from broker.partition.registry import Registry
from logformat.errors import Corrupt, Retryable, StorageFailed, ThermoclineError
from logformat.record_batch import check_batch, whole_batches_end
from seams.clock import Clock
from seams.disk import FileRange
from seams.workers import Lane, Workers

log = logging.getLogger(__name__)

TOPIC: Final = "__consumer_offsets"
_CREATE_TIMEOUT_S: Final = 5.0
_APPEND_TIMEOUT_S: Final = 30.0
_LOOKS_PER_INTERVAL: Final = 4
_REPLAY_BYTES: Final = 4 * 1024 * 1024


class OffsetsTopic:
    """`broker.groups.log.OffsetsLog` over the partitions of the internal topic."""

    def __init__(
        self, controller: ControllerDoor, registry: Registry, config: BrokerConfig, clock: Clock, workers: Workers
    ) -> None:
        self._controller = controller
        self._registry = registry
        self._config = config
        self._clock = clock
        self._workers = workers
        self._found_ends: dict[int, int] = {}
        """Where the snapshot found in the bucket ended, by partition, until the coordinator was told."""

    @property
    def partitions(self) -> int:
        topic = self._registry.topics.get(TOPIC)
        return self._config.offsets_topic_partitions if topic is None else topic.partitions

    async def ensure_created(self) -> None:
        """Create the topic when the first group asks for it, as Kafka does. Retryable when that takes too long (a full
        disk): the creation goes on, and whoever waits is asked to come back, so that the other requests on its
        connection are answered."""
        if TOPIC in self._registry.topics:
            return
        configs = {
            # What a topic may have at least; Kafka takes less for this topic only.
            "segment.bytes": str(max(self._config.offsets_topic_segment_bytes, 1 << 20)),
            "retention.ms": "-1",
            "max.message.bytes": str(32 * 1024 * 1024),
        }
        try:
            async with asyncio.timeout(_CREATE_TIMEOUT_S):
                await self._controller.create_if_missing(
                    TOPIC, self._config.offsets_topic_partitions, configs, internal=True
                )
        except TimeoutError as late:
            raise Retryable(f"{TOPIC} is still being made after {_CREATE_TIMEOUT_S:.0f} s") from late

    async def append(self, partition: int, batch: bytes) -> int:
        """Append, wait until it is committed; the offset of its last record."""
        target = self._partition(partition)
        buffer = memoryview(bytearray(batch))
        header = check_batch(buffer, 0, len(buffer))
        appended = target.append((buffer,), (header,), self._clock.wall_ms())
        deadline_s = asyncio.get_running_loop().time() + _APPEND_TIMEOUT_S
        committed = target.visible(appended.last_offset + 1, deadline_s)
        if committed is not None:
            try:
                await committed
            except TimeoutError as late:
                raise Retryable(f"{TOPIC}-{partition}: {late}") from late
        return appended.last_offset

    async def replay(self, partition: int) -> AsyncIterator[bytes]:
        """The snapshot, then the local log above it."""
        if TOPIC not in self._registry.topics:
            return
        source = self._partition(partition)
        offset = source.log.local_log_start_offset
        snapshot = await source.tier.read_snapshot()
        if snapshot is not None:
            if snapshot[0] < offset:
                raise Corrupt(
                    f"{TOPIC}-{partition}: the snapshot ends at {snapshot[0]}, the local log begins at {offset}: "
                    "commits in between are missing; restore the data directory or the bucket's last snapshot"
                )
            self._found_ends[partition] = offset = snapshot[0]
            if snapshot[1]:
                yield snapshot[1]
        end = source.log.log_end_offset
        for found in source.log.batch_ranges(offset, end) if offset < end else ():
            async for piece in self._pieces(FileRange(found.file, found.position, found.length)):
                yield piece

    async def _pieces(self, found: FileRange) -> AsyncIterator[bytes]:
        """Whole batches of a range, a few MiB at a time (one batch at least)."""
        position, end = found.position, found.position + found.length
        size = _REPLAY_BYTES
        while position < end:
            want = min(size, end - position)
            data = await self._workers.run(found.file.read_at, position, want, lane=Lane.FILES)
            whole = whole_batches_end(data)
            if whole == 0:
                size *= 2
                continue
            size = _REPLAY_BYTES
            yield data[:whole]
            position += whole

    def _partition(self, index: int) -> Partition:
        found = self._registry.partitions.get((TOPIC, index))
        if found is None and TOPIC in self._registry.topics:
            # It is published, so whatever could be opened is: this one stays offline, and only its groups with it.
            raise StorageFailed(f"{TOPIC}-{index} is offline; see the broker's log for what is damaged")
        if found is None:
            raise Retryable(f"{TOPIC}-{index} is not open")
        return found

    async def write_snapshots(self, groups: GroupCoordinator, *, force: bool = False) -> None:
        """Put the live state of every changed partition into the bucket; a failure leaves that one due, and is raised
        after the others had their turn.

        With `force` (a clean stop) also what changed a moment ago.
        """
        failed: ThermoclineError | OSError | None = None
        interval_s = self._config.groups.snapshot_interval_ms / 1000
        for index in range(groups.partitions):
            dirty_since_s = groups.dirty_since(index)
            if dirty_since_s is None:
                continue
            if force or self._clock.monotonic_s() - dirty_since_s >= interval_s:
                try:
                    end_offset, batches = await groups.snapshot(index)
                    await self._partition(index).tier.commit_snapshot(end_offset, batches)
                except (ThermoclineError, OSError) as failure:
                    log.warning("no snapshot of %s-%d: %s", TOPIC, index, failure)
                    failed = failure
                else:
                    groups.snapshot_written(index, end_offset)
        if failed is not None:
            raise failed

    async def keep_snapshots(self, groups: GroupCoordinator) -> None:
        """Until cancelled: look a few times an interval for partitions whose snapshot is due."""
        await groups.wait_loaded()
        for index, end_offset in self._found_ends.items():
            groups.snapshot_written(index, end_offset)
        while True:
            await asyncio.sleep(self._config.groups.snapshot_interval_ms / 1000 / _LOOKS_PER_INTERVAL)
            await self.write_snapshots(groups)
