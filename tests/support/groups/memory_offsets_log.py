"""An internal topic in memory, with the faults a log can have.

Owns batches by partition. Always true: what `append` returned is in `replay`; while `hold` is set appends wait; what
`fail` holds is raised by the next appends, one each, instead of writing, and what `fail_after` holds after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from broker.internal_topics.batches import batches_in, is_begin_of_rewrite
from broker.internal_topics.interfaces import Replayed
from logformat.record_batch import read_header
from logformat.transaction_marker import TransactionMarker, marker_batch
from tests.support.stamped import stamp


class MemoryOffsetsLog:
    """`OffsetsTopic` for tests, and the log behind it: `door` gives a partition to lead in some leader epoch."""

    def __init__(self, partitions: int = 4) -> None:
        self.batches: list[list[bytes]] = [[] for _ in range(partitions)]
        self.snapshots: dict[int, tuple[int, bytes]] = {}
        self.ends = [0] * partitions
        self.starts = [0] * partitions
        self.writes_first = False
        """Appends stand in the log before they are durable, as where a process lives on: a replay meets them, and waits
        until they are committed. Without it, whoever is killed meanwhile loses them."""
        self.appends = 0
        self.created = 0
        self.offline: set[int] = set()
        self.fail: list[Exception] = []
        self.fail_after: list[Exception] = []
        self.fail_replay: list[Exception] = []
        self.fail_snapshot: dict[int, Exception] = {}
        self.fail_start: Exception | None = None
        self.is_shared = False
        self.released = asyncio.Event()
        self.released.set()

    @property
    def partitions(self) -> int:
        return len(self.batches)

    def is_offline(self, index: int) -> bool:
        return index in self.offline

    def leader(self, index: int) -> int:
        return 1

    def leaders(self) -> list[int]:
        return [1]

    def shard_log(self, index: int, leader_epoch: int = 1) -> MemoryPartition:
        return MemoryPartition(self, index, leader_epoch)

    def hold(self) -> None:
        """Appends are written, but not durable until `release`."""
        self.released.clear()

    def release(self) -> None:
        self.released.set()

    async def ensure_created(self) -> None:
        self.created += 1

    async def replay(self, partition: int) -> AsyncIterator[bytes]:
        """The batches of a partition's log."""
        if self.fail_replay:
            raise self.fail_replay.pop(0)
        for batch in self.batches[partition]:
            if read_header(batch).next_offset > self.starts[partition]:
                yield batch


class MemoryPartition:
    """`ShardLog` of one leader epoch."""

    def __init__(self, log: MemoryOffsetsLog, index: int, leader_epoch: int) -> None:
        self.name = f"memory-{index}"
        self.index = index
        self.leader_epoch = leader_epoch
        self.is_whole = True
        self._log = log

    async def committed(self, end_offset: int) -> None:
        await self._log.released.wait()

    def append_marker(self, marker: TransactionMarker) -> int:
        """As another task of the broker does; returns its offset. Tell the internal log (`marked`)."""
        log, index = self._log, self.index
        offset = log.ends[index]
        log.batches[index].append(marker_batch(marker, offset, self.leader_epoch, 0))
        log.ends[index] = offset + 1
        return offset

    async def append(self, batch: bytes, *, may_wait: bool = True) -> int:
        log = self._log
        log.appends += 1
        if not log.writes_first:
            await self._durable()
        if log.fail:
            raise log.fail.pop(0)
        end = self._write(batch)
        if log.writes_first:
            await self._durable()
        if log.fail_after:
            raise log.fail_after.pop(0)
        return end - 1

    async def _durable(self) -> None:
        await self._log.released.wait()
        await asyncio.sleep(0)

    def _write(self, batch: bytes) -> int:
        log, index = self._log, self.index
        buffer = bytearray(batch)
        stamp(buffer, log.ends[index], 0)
        log.batches[index].append(bytes(buffer))
        log.ends[index] = read_header(buffer).next_offset
        return log.ends[index]

    async def replay(self) -> AsyncIterator[Replayed]:
        held = [batch for batch in self._log.batches[self.index] if self._holds(batch)]
        self.is_whole = self._log.starts[self.index] == 0 or bool(held and is_begin_of_rewrite(held[0]))
        found = None if self.is_whole else self._log.snapshots.get(self.index)
        if found is not None:
            yield Replayed(*found, is_snapshot=True)
        async for data in self._log.replay(self.index):
            end = max((batch.next_offset for batch in batches_in(data)), default=0)
            if found is None or end > found[0]:
                yield Replayed(end, data)
        if self._log.writes_first:
            await self._log.released.wait()

    def _holds(self, batch: bytes) -> bool:
        return read_header(batch).next_offset > self._log.starts[self.index]

    async def start_at(self, offset: int) -> bool:
        await asyncio.sleep(0)
        if self._log.fail_start is not None:
            raise self._log.fail_start
        if self._log.is_shared and await self.snapshot_end() < offset:
            return False
        self._log.starts[self.index] = offset
        return True

    async def snapshot_end(self) -> int:
        found = self._log.snapshots.get(self.index)
        return 0 if found is None else found[0]

    async def commit_snapshot(self, end_offset: int, batches: bytes) -> None:
        failure = self._log.fail_snapshot.get(self.index)
        await asyncio.sleep(0)
        if failure is not None:
            raise failure
        self._log.snapshots[self.index] = (end_offset, batches)
