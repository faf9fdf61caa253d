"""Truncates a follower's log where it diverges from its leader, or restarts it empty at another offset.

Meanwhile nothing is fetched (`replication.follower`: CUTTING). At the end the follower's state machine gets the new log
end. If the bucket's answer is unusable twice in a row, the follower copies everything from the leader's disk.
`FollowerReplica` runs one truncation or restart at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from broker.replication.catch_up import ReplicationCounters, Start
from broker.replication.follower import Follower
from coldstore.object_store import AccessRefused, ObjectMissing
from hotstore.host.lease import Lease
from logformat.errors import Corrupt, Retryable
from logformat.leader_epochs import LeaderEpochs
from logformat.record_batch import BatchHeader
from seams.clock import Clock
from tiering.opening.cold_start import ColdStart
from tiering.service import TierService

log = logging.getLogger(__name__)

_AGAIN_S: Final = (1.0, 30.0)  # first and longest pause between requests to the bucket


@dataclass(eq=False, repr=False)
class FollowerTruncation:
    """The truncations of one follower. `ended` is set when the role ends. Each method gives the follower's machine the
    new log end. If the bucket does not answer, the log stays as it is, and the machine gets its present end after a
    pause. Raises ThermoclineError and OSError."""

    _lease: Lease
    _follower: Follower
    _cold: TierService
    _clock: Clock
    _copied: ReplicationCounters
    _ended: asyncio.Event

    def __post_init__(self) -> None:
        self._log = self._lease.log
        self._pause_s = _AGAIN_S[0]
        self._was_unusable = False  # whether the bucket's last answer was unusable

    async def cut(self, offset: int) -> None:
        async def cut() -> None:
            self._lease.check()
            await self._lease.truncate(offset)

        await self._finish(cut(), self._follower.cut)

    async def begin_at(self, start: Start) -> None:
        """Restart empty at an offset, with the leader epochs and producers that the bucket has at this offset."""

        async def begin() -> None:
            epochs, producers, held_bytes = await self._state_at(start.offset)
            self._lease.check()  # the role may have ended while the bucket answered
            await self._lease.begin_at(start.offset, epochs, producers, forget_start=start.is_bare)
            self._copied.bytes_skipped += held_bytes
            self._copied.begun += not start.is_bare

        await self._finish(begin(), self._follower.began_at)

    async def begin_before(self, records: bytes, headers: list[BatchHeader], leader_high_watermark: int) -> None:
        """Restart with these batches, the first of which reaches across the log start (as Kafka's follower does,
        KAFKA-6361)."""
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
        await self._finish(begin(), lambda lineage, end: follower.began_with(lineage, end, leader_high_watermark))

    async def _finish(self, work: Awaitable[None], then: Callable[[LeaderEpochs, int], None]) -> None:
        local, follower = self._log, self._follower
        try:
            await work
        except Retryable as away:
            name = f"{local.topic}-{local.partition}"
            self._lease.check()
            log.warning("%s does not restart at another offset yet: %s; it tries again", name, away)
            pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _AGAIN_S[1])
            await wait_for_end(self._ended, pause_s)
            follower.cut(local.epochs, local.stable_end_offset)
        else:
            self._pause_s, self._was_unusable, follower.copies_on = _AGAIN_S[0], False, False
            follower.log_start_offset = local.log_start_offset
            then(local.epochs, local.log_end_offset)

    async def _state_at(self, offset: int) -> ColdStart:
        """Ask the bucket for the state at an offset. The answer may have been damaged in transit, or its object may
        have been deleted since the root was read, so after a first failure the request is repeated. After a second
        failure the object itself may be damaged, so only the leader's disk has the records. Raises Retryable.
        """
        local = self._log
        since = max(local.log_end_offset, local.log_start_offset)
        try:
            return await self._cold.state_at(UUID(bytes=local.topic_id), local.partition, offset, since)
        except (Corrupt, ObjectMissing) as passing:
            self._was_unusable, self._follower.copies_on = True, self._was_unusable
            raise Retryable(str(passing)) from passing
        except AccessRefused as refused:
            # An operator may renew expired credentials. No new follower role begins after this, so this role must try
            # again.
            raise Retryable(str(refused)) from refused


async def wait_for_end(ended: asyncio.Event, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await ended.wait()
    except TimeoutError:
        pass
