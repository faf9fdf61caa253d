"""A led partition as the log of an internal topic.

- An internal topic is not tiered. Every replica's disk holds all live records from the log start on, because the log
  start moves only to the beginning of a rewrite. A replay thus needs no bucket (ADR 17).
- For a lost disk the manifest names one snapshot of the live state.
- A log counts as complete if its start was never moved. It also counts as complete if its first batch marks a rewrite
  and no gap is declared above that batch. With a gap, the lost tail may have been part of the rewrite.
- If the log is not complete, a replay reads the newest snapshot, then the local log above it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from broker.internal_topics.batches import is_begin_of_rewrite
from broker.internal_topics.interfaces import NotCommittedYet, Replayed
from broker.internal_topics.internal_log import InternalLog
from broker.partition.leading.leader_replica import LeaderReplica
from coldstore.manifest.manifest import EditRefused
from hotstore.errors import ReservationExhausted
from logformat.errors import Corrupt, Fenced, Retryable
from logformat.record_batch import read_header, whole_batches_end
from seams.clock import Clock
from seams.files.disk import FileRange
from seams.loop.workers import Lane, Workers
from tiering.expiry.local_gaps import local_gaps

_APPEND_TIMEOUT_S: Final = 30.0
_RESERVATION_TIMEOUT_S: Final = 10.0
_REPLAY_BYTES: Final = 4 * 1024 * 1024


class LedPartition:
    def __init__(self, partition: LeaderReplica, clock: Clock, workers: Workers) -> None:
        self.name = f"{partition.topic}-{partition.index}"
        self.index = partition.index
        self.leader_epoch = partition.leader_epoch
        self.is_whole = False
        self._partition = partition
        self._local = partition.local  # access to the local log for this leader epoch
        self._clock = clock
        self._workers = workers

    async def append(self, batch: bytes, *, may_wait: bool = True) -> int:
        last_offset = await self._appended(batch, may_wait=may_wait)
        try:
            await self.committed(last_offset + 1)
        except Retryable as late:
            raise NotCommittedYet(str(late), last_offset) from late
        return last_offset

    async def _appended(self, batch: bytes, *, may_wait: bool) -> int:
        try:
            return self._append(batch)
        except ReservationExhausted as short:
            if not may_wait:
                raise Retryable(
                    f"{self.name}: no reserved offsets are left, and new ones need an answer of the bucket: {short}"
                ) from short
            # If `tier seal` returned the reserved offsets (ADR 13), or appends reached the reserved end, wait as
            # producers do.
            await self._partition.more_offsets(short.end_offset, _RESERVATION_TIMEOUT_S)
        self._check()
        return await self._appended(batch, may_wait=False)

    def _append(self, batch: bytes) -> int:
        buffer = memoryview(bytearray(batch))
        # This broker created the batch, so it skips the checks of produced batches: the checks require a sequence in a
        # transactional batch, and this batch has none.
        header = read_header(buffer)
        now_ms = self._clock.wall_ms()
        if header.is_transactional:
            return self._partition.append_transactional(buffer, header, now_ms, is_verified=True).last_offset
        return self._partition.append((buffer,), (header,), now_ms).last_offset

    def _check(self) -> None:
        """Called after a wait. `LeaderReplica` is the same object in the partition's next epoch here."""
        if not self._partition.leading or self._partition.leader_epoch != self.leader_epoch:
            raise Fenced(f"{self.name}: leader epoch {self.leader_epoch} is over")

    async def committed(self, end_offset: int) -> None:
        deadline_s = asyncio.get_running_loop().time() + _APPEND_TIMEOUT_S
        committed = self._partition.visible(end_offset, deadline_s)
        if committed is not None:
            try:
                await committed
            except TimeoutError as late:
                raise Retryable(f"{self.name}: {late}") from late

    async def replay(self) -> AsyncIterator[Replayed]:
        log = self._partition.log
        offset = max(log.log_start_offset, log.local_log_start_offset)
        begins_whole = await self._begins_whole()
        self.is_whole = begins_whole and not await self._may_lack_rewritten()
        snapshot = None if self.is_whole else await self._partition.tier.read_snapshot()
        if snapshot is not None and (snapshot[0] >= offset or not begins_whole):  # otherwise the log is the best copy
            if snapshot[0] < offset:
                raise Corrupt(
                    f"{self.name}: the snapshot ends at {snapshot[0]}, the local log begins at {offset}: "
                    "commits in between are missing; restore the data directory or the bucket's last snapshot"
                )
            offset = snapshot[0]
            yield Replayed(offset, snapshot[1], is_snapshot=True)
        end = log.log_end_offset
        for found in await self._local.batch_ranges(offset, end) if offset < end else ():
            async for batches in self._pieces(found):
                yield Replayed(offset, batches)
        # Records above the high watermark may still be truncated, and a visible commit must not disappear.
        await self.committed(end)

    async def _begins_whole(self) -> bool:
        """Whether the local log had all live records from its start on. Raises Corrupt, OSError."""
        log = self._partition.log
        start = log.log_start_offset
        if log.local_log_start_offset > start or start == 0:
            return log.local_log_start_offset == 0
        for found in await self._local.batch_ranges(start, start + 1):
            async for batches in self._pieces(found):
                return is_begin_of_rewrite(batches)
        return False

    async def _may_lack_rewritten(self) -> bool:
        """Whether the end of the rewrite at the log start may be lost. If the local log has a gap, the end may be lost,
        because a lost tail is declared a gap. The originals of the rewritten records are below the log start and cannot
        replace them. Raises Fenced."""
        log, lease = self._partition.log, self._partition.lease
        if not log.log_start_offset:
            return False
        lease.check()
        return bool(await lease.call(local_gaps, log, lane=Lane.HOT_READ))

    async def _pieces(self, found: FileRange) -> AsyncIterator[bytes]:
        """Whole batches of a range, a few MiB at a time (at least one batch)."""
        position, end = found.position, found.position + found.length
        size = _REPLAY_BYTES
        while position < end:
            want = min(size, end - position)
            data = await self._workers.run(found.file.read_at, position, want, lane=Lane.FILES)
            whole = whole_batches_end(data)
            if whole == 0:
                if want == end - position:
                    raise Corrupt(f"{self.name}: a batch in {found.file.path} claims more bytes than there are")
                size *= 2
                continue
            size = _REPLAY_BYTES
            yield data[:whole]
            position += whole

    async def start_at(self, offset: int) -> bool:
        # With `thermocline.flush=os` committed records may not be on the disk yet.
        await self._partition.flusher.flush()
        self._check()
        try:
            await self._partition.tier.delete_records(offset)
        except EditRefused:
            return False
        return True

    async def snapshot_end(self) -> int:
        return await self._partition.tier.snapshot_end()

    async def commit_snapshot(self, end_offset: int, batches: bytes) -> None:
        await self._partition.tier.commit_snapshot(end_offset, batches)


class InternalTopicWatcher:
    """A `LeadershipWatcher` that passes the leadership of one internal topic's partitions to its log."""

    def __init__(self, internal_log: InternalLog[Any], clock: Clock, workers: Workers) -> None:
        self._log = internal_log
        self._clock = clock
        self._workers = workers

    def led(self, partition: LeaderReplica) -> None:
        if partition.topic == self._log.name:
            partition.on_marker = partial(self._log.marked, partition.index, partition.leader_epoch)
            self._log.lead(LedPartition(partition, self._clock, self._workers))

    def resigned(self, topic: str, index: int) -> None:
        if topic == self._log.name:
            self._log.resign(index)

    def withdrawn(self, topic: str) -> None:
        if topic == self._log.name:
            self._log.forget()
