"""Background syncs of one log: one fdatasync at a time covers all appends before its beginning.

`flush_states` decides when a sync starts, `Durability` what it covers. At most one sync and one seal job of a log run
at a time, off the loop. The owner is called after the flushed end moved, in the same turn of the loop. After a failed
sync the log is offline and no sync is tried again (C10).

If a request waits for a sync, the sync starts at once unless one is running; the next sync covers later appends. If
nobody waits (acks=1, no reader at the log's end), the sync starts `LAZY_S` after the append, because a sync costs more
than the append (ADR 8). Index and producer files of a sealed segment are written after the acknowledgements of its
bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from hotstore.errors import LogFailed
from hotstore.flush.durability import SyncJob
from hotstore.flush.flush_states import FlushAction, FlushEvent, FlushState, FlushStates
from hotstore.flush.sync_rounds import SyncRounds
from hotstore.host.place import Place
from hotstore.log.partition_log import LogState, PartitionLog
from seams.files.disk import is_full
from seams.loop.tasks import FailureReport, Tasks

EXPIRE_PRODUCERS_EVERY_MS: Final = 600_000  # Kafka's producer.id.expiration.check.interval.ms
SEAL_AGAIN_S: Final = 1.0  # between attempts to write small files to a full disk
LAZY_S: Final = 0.01  # delay of a sync for which no request waits; readers get the records this much later
TASKS_MAX: Final = 2  # a seal task, whose end may overlap the next one's start


# Module-level names: an enum member lookup costs 70 ns, and a round has a dozen of them.
_IDLE, _DEFERRED = FlushState.IDLE, FlushState.DEFERRED
_DIRTY, _DECIDING, _FAILED = FlushState.DIRTY, FlushState.DECIDING, LogState.FAILED
_NEEDED, _BEGAN, _ENDED, _START = FlushEvent.NEEDED, FlushEvent.BEGAN, FlushEvent.ENDED, FlushAction.START


class Flusher:
    """The flusher of one log. It reports to `log.owner`, and writes small files in `at`."""

    def __init__(
        self,
        log: PartitionLog,
        at: Place,
        sync_rounds: SyncRounds,
        report: FailureReport | None = None,
    ) -> None:
        self._log = log
        self._durability = log.durability
        self._at = at
        self._sync_rounds = sync_rounds
        self._tasks = Tasks(report, TASKS_MAX)
        self._states = FlushStates()
        self._timer: asyncio.TimerHandle | None = None
        self._round_over = asyncio.Event()
        self._closing = asyncio.Event()
        self._expired_ms: int | None = None

    def request(self) -> None:
        """Batches were appended: request a sync if the log's configuration needs one. Never blocks."""
        state = self._states.state
        # A shortcut for the two usual states, which do not change. The table gives the same result, but takes 0.4 µs.
        if state is _DIRTY:
            return
        if state is _DEFERRED and not self._log.owner.awaits_flush() and not self._durability.rolled_unsynced:
            return
        self._on(self._due() if state is _IDLE or state is _DEFERRED else FlushEvent.APPENDED)

    def hurry(self) -> None:
        """Start a deferred sync now, because a request waits for the flushed end."""
        if self._states.state is _DEFERRED:
            self._on(FlushEvent.AWAITED)

    def tick(self, now_ms: int) -> None:
        """Apply flush.ms and expire silent producers. The caller calls this about once a second while the log is
        written."""
        log = self._log
        if self._states.is_over:
            return
        oldest = log.durability.oldest_dirty_ms
        if oldest is not None and now_ms - oldest >= log.config.flush_ms:
            self._on(FlushEvent.FORCED)
        self.seal_soon()
        if self._expired_ms is None or now_ms - self._expired_ms >= EXPIRE_PRODUCERS_EVERY_MS:
            self._expired_ms = now_ms
            log.producers.expire(now_ms)

    async def drain(self, budget_bytes: int) -> None:
        """Wait until the dirty bytes are within the budget. This syncs in every mode. Raises LogFailed.

        Without this wait the kernel could throttle pwrite on the loop, because too many pages are dirty (C27). The
        caller sets the deadline. Appends that wait here have no offsets yet."""
        while self._log.dirty_bytes > budget_bytes:
            if self._log.state is LogState.FAILED or self._states.is_over:
                raise LogFailed(f"{self._log.topic}-{self._log.partition} is offline or closing")
            self._on(FlushEvent.FORCED)
            await self._round_over.wait()

    async def flush(self) -> None:
        """Wait until all records that were appended before the call are durable, in every mode.

        Raises LogFailed for a failed log even if all records are durable, because a failed log always needs
        recovery."""
        if self._log.failure:
            raise LogFailed(self._log.failure)
        target = self._log.log_end_offset
        while self._log.flushed_end_offset < target or self._log.durability.rolled_unsynced:
            if self._log.state is LogState.FAILED or self._states.is_over:
                raise LogFailed(f"{self._log.topic}-{self._log.partition} is offline or closing")
            self._on(FlushEvent.FORCED)
            await self._round_over.wait()

    def fail(self, error: OSError) -> None:
        """Take the log offline, because the state of its files is unknown."""
        self._log.fail(error)
        self._on(FlushEvent.FAILED)

    async def close(self) -> None:
        """Start no more jobs, and wait for running ones. After this the log may be closed or truncated."""
        self._on(FlushEvent.CLOSE)
        self._closing.set()
        while self._states.is_syncing or self._states.is_sealing:
            await self._round_over.wait()
        await self._tasks.close()

    def seal_soon(self) -> None:
        """Start to write pending small files, if there are any. Never blocks."""
        log, states = self._log, self._states
        if states.may_seal and log.state is not LogState.FAILED and log.has_sealing:
            self._tasks.spawn(f"seal {log.topic}-{log.partition}", self._seal())
            states.is_sealing = True

    def _on(self, event: FlushEvent) -> None:
        action = self._states.on(event)
        if action:
            self._perform(action)
        if self._timer is not None and self._states.state is not _DEFERRED:
            self._timer.cancel()
            self._timer = None

    def _perform(self, action: FlushAction) -> None:
        if action is _START:
            self._sync_rounds.ask(self._begin_sync, self._log.dirty_bytes, self._synced)
        elif action is FlushAction.ARM:
            self._timer = asyncio.get_running_loop().call_later(LAZY_S, self._on, FlushEvent.TIMER)
        else:
            self._log.owner.failed(LogFailed(self._log.failure))

    def _due(self) -> FlushEvent:
        """Whether a sync is due. A sync is needed at once if a request waits or a segment rolled."""
        log, durability = self._log, self._durability
        if durability.rolled_unsynced:
            return _NEEDED
        if log.config.waits_for_flush:
            if not durability.needs_sync:
                return FlushEvent.NOT_NEEDED
            return _NEEDED if log.owner.awaits_flush() else FlushEvent.NEEDED_SOON
        is_due = log.log_end_offset - log.flushed_end_offset >= log.config.flush_messages
        return _NEEDED if is_due else FlushEvent.NOT_NEEDED

    def _begin_sync(self) -> SyncJob | None:
        """Make the sync job. None if no bytes are dirty, or after a failed write: bytes written before the failure are
        never synced."""
        log = self._log
        if log.state is _FAILED:
            return None
        self._on(_BEGAN)
        return log.durability.begin_sync(log.active_segment, log.log_end_offset)

    def _synced(self, job: SyncJob | None, failure: OSError | None) -> None:
        """The sync ended, or there was no work. An exception of the owner does not stop the log."""
        log = self._log
        try:
            if failure is not None:
                log.fail(failure)
            elif job is not None:
                log.durability.finish_sync(job)
                log.owner.flushed(log.stable_end_offset)
                self.seal_soon()
        finally:
            if log.state is _FAILED:
                self._on(FlushEvent.FAILED)  # also if a write failed meanwhile
            self._on(_ENDED)
            if self._states.state is _DECIDING:
                self._on(self._due())
            self._end_round()

    async def _seal(self) -> None:
        log, states = self._log, self._states
        try:
            while (job := log.durability.begin_seal(log.epochs)) is not None and not states.is_over:
                try:
                    await self._at.call(job.run)
                except OSError as error:
                    if not is_full(error):
                        self.fail(error)
                        return
                    log.ballast.met_full = True
                    # These files can be written later. Until then the segment must not be deleted.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.wait(), SEAL_AGAIN_S)
                    continue
                log.durability.finish_seal(job, log.epochs)
        finally:
            states.is_sealing = False
            self._end_round()

    def _end_round(self) -> None:
        """Wake the waiters of this round. Later waiters wait for the next round."""
        self._round_over.set()
        self._round_over = asyncio.Event()
