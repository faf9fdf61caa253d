"""A copied log that goes on elsewhere than it ends: cut where its leader's parted from it, or begun at another offset.

Owns what that takes of disk and bucket, and how often the bucket is asked again. Always true: while it lasts nothing is
asked of the leader (`replication.follower`: CUTTING), and the follower's machine hears where the log ends only once it
does; what the bucket gives may be damaged on its way: unusable twice in a row, the leader's disk is asked to give all.
`Followed` runs one of these at a time, and says what a failure means. Must not know answers, nor who leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final
from uuid import UUID

from broker.partition.remote_log_state import RemoteLogState
from broker.replication.catch_up import Start
from broker.replication.follower import Follower
from broker.replication.replication_counters import ReplicationCounters
from coldstore.object_store import AccessRefused, ObjectMissing
from hotstore.host.lease import Lease
from logformat.errors import Corrupt, Retryable
from logformat.leader_epochs import LeaderEpochs
from logformat.record_batch import BatchHeader
from seams.clock import Clock
from tiering.opening.cold_start import ColdStart

log = logging.getLogger(__name__)

_AGAIN_S: Final = (1.0, 30.0)  # between tries to learn from the bucket where to begin: first, and at most


class FollowerTruncation:
    """Of one copy. `ended` is set with its role. Each method tells the follower's machine where the log ends then;
    where the bucket is away, after a pause, that it ends where it did. Raises ThermoclineError and OSError."""

    def __init__(
        self,
        lease: Lease,
        follower: Follower,
        cold: RemoteLogState,
        clock: Clock,
        copied: ReplicationCounters,
        ended: asyncio.Event,
    ) -> None:
        self._lease = lease
        self._log = lease.log
        self._follower = follower
        self._cold = cold
        self._clock = clock
        self._copied = copied
        self._ended = ended
        self._pause_s = _AGAIN_S[0]
        self._was_unusable = False  # what the bucket gave last

    async def cut(self, offset: int) -> None:
        """Drop what lies at or above it."""

        async def cut() -> None:
            self._lease.check()
            await self._lease.truncate(offset)

        await self._going_on(cut(), self._follower.cut)

    async def begin_at(self, start: Start) -> None:
        """With nothing, and with what the bucket knows there."""

        async def begin() -> None:
            epochs, producers, held_bytes = await self._state_at(start.offset)
            self._lease.check()  # the log is the next role's, however long the bucket took to answer
            await self._lease.begin_at(start.offset, epochs, producers, forget_start=start.is_bare)
            self._copied.bytes_skipped += held_bytes
            self._copied.begun += not start.is_bare

        await self._going_on(begin(), self._follower.began_at)

    async def begin_before(self, records: bytes, headers: list[BatchHeader], leader_high_watermark: int) -> None:
        """With these batches, of which the first reaches over the log start (as Kafka's follower does, KAFKA-6361), and
        what came with them."""
        start = self._log.log_start_offset

        async def begin() -> None:
            base = headers[0].base_offset
            epochs, producers, _ = await self._state_at(base)
            self._lease.check()
            await self._lease.begin_at(base, epochs, producers, forget_start=False)
            self._lease.check()
            self._lease.append_as_follower((records,), headers, self._clock.wall_ms())
            self._lease.advance_log_start(start)
            if self._log.config.waits_for_flush:
                await self._lease.flusher.flush()

        follower = self._follower
        await self._going_on(begin(), lambda lineage, end: follower.began_with(lineage, end, leader_high_watermark))

    async def _going_on(self, work: Awaitable[None], then: Callable[[LeaderEpochs, int], None]) -> None:
        local, follower = self._log, self._follower
        try:
            await work
        except Retryable as away:
            name = f"{local.topic}-{local.partition}"
            self._lease.check()
            log.warning("%s does not begin elsewhere yet: %s; it tries again", name, away)
            pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _AGAIN_S[1])
            await until(self._ended, pause_s)
            follower.cut(local.epochs, local.stable_end_offset)
        else:
            self._pause_s, self._was_unusable, follower.copies_on = _AGAIN_S[0], False, False
            follower.log_start_offset = local.log_start_offset
            then(local.epochs, local.log_end_offset)

    async def _state_at(self, offset: int) -> ColdStart:
        """What the bucket gives may be damaged on its way, or gone since its root was read. Twice: it may be damaged
        there, and the leader's disk the last place that has it. Raises Retryable."""
        local = self._log
        since = max(local.log_end_offset, local.log_start_offset)
        try:
            return await self._cold.state_at(UUID(bytes=local.topic_id), local.partition, offset, since)
        except (Corrupt, ObjectMissing) as passing:
            self._was_unusable, self._follower.copies_on = True, self._was_unusable
            raise Retryable(str(passing)) from passing
        except AccessRefused as refused:  # credentials that expired come again, and no new role would ask once they do
            raise Retryable(str(refused)) from refused


async def until(ended: asyncio.Event, at_most_s: float) -> None:
    """Wait for the end of the role, at most so long."""
    try:
        async with asyncio.timeout(at_most_s):
            await ended.wait()
    except TimeoutError:
        pass
