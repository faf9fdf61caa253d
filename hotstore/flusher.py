"""Makes one log durable in the background: one fdatasync at a time covers all that was appended before it began.

Owns when a sync starts; `Durability` owns what it covers. Always true: at most one sync and one sealing job run for a
log, off the loop; its owner is told on the loop after the flushed end moved, never before; after a failed sync the log
is offline and no sync is tried again (C10). A sync that somebody waits for starts at once when none runs, and
whatever is appended meanwhile goes into the next; one that nobody waits for (acks=1, no reader at the log's end) starts
`LAZY_S` after the append at the latest, since each costs more than the append itself (ADR 8). Rolling needs no wait
either: index and producer files of a sealed segment are written in a worker after the acknowledgements that waited for
its bytes.
`drain` keeps pwrite on the loop away from the kernel's dirty throttling (C27). Must not know: acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from hotstore.durability import SyncJob
from hotstore.errors import LogFailed
from hotstore.partition_log import LogState, PartitionLog
from hotstore.sync_rounds import SyncRounds
from seams.disk import is_full
from seams.tasks import FailureReport, Tasks
from seams.workers import Lane, Workers

EXPIRE_PRODUCERS_EVERY_MS: Final = 600_000  # Kafka's producer.id.expiration.check.interval.ms
SEAL_AGAIN_S: Final = 1.0  # between attempts to write small files to a full disk
LAZY_S: Final = 0.01  # what acks=1 alone may lie unsynced, and a reader that comes later may see the log's end late
TASKS_MAX: Final = 4  # one syncs, one seals; each may overlap its own successor's first step


class Flusher:
    """See the module. Tells `log.owner`."""

    def __init__(
        self,
        log: PartitionLog,
        workers: Workers,
        sync_rounds: SyncRounds,
        report: FailureReport | None = None,
    ) -> None:
        self._log = log
        self._workers = workers
        self._sync_rounds = sync_rounds
        self._tasks = Tasks(report, TASKS_MAX)
        self._syncing = False
        self._sealing = False
        self._again = False
        self._closed = False
        self._lazy: asyncio.TimerHandle | None = None
        self._failure_told = False
        self._round_over = asyncio.Event()
        self._closing = asyncio.Event()
        self._expired_ms: int | None = None

    def request(self) -> None:
        """Something was appended: sync as the log's configuration asks. Never blocks."""
        self._again = True
        if not self._syncing and self._is_due():
            self._start_in_time()

    def hurry(self) -> None:
        """Somebody waits for what was appended: a sync that was put off starts now."""
        if self._lazy is not None:
            self._start_lazy()

    def tick(self, now_ms: int) -> None:
        """Call about once a second while the log is written to: flush.ms, and forgetting silent producers."""
        log = self._log
        if self._closed:
            return
        oldest = log.durability.oldest_dirty_ms
        if oldest is not None and now_ms - oldest >= log.config.flush_ms and not self._syncing:
            self._start()
        self.seal_soon()
        if self._expired_ms is None or now_ms - self._expired_ms >= EXPIRE_PRODUCERS_EVERY_MS:
            self._expired_ms = now_ms
            log.expire_producers(now_ms)

    async def drain(self, budget_bytes: int) -> None:
        """Wait until the log's dirty bytes are within the budget, syncing in every mode. Raises LogFailed.

        The caller sets the deadline. Appends that wait here have no offsets yet.
        """
        while self._log.dirty_bytes > budget_bytes:
            if self._log.state is LogState.FAILED or self._closed:
                raise LogFailed(f"{self._log.topic}-{self._log.partition} is offline or closing")
            if not self._syncing:
                self._start()
            await self._round_over.wait()

    async def flush(self) -> None:
        """Wait until everything appended before the call is durable, in every mode.

        Raises LogFailed, also where all of it is: a log that failed is never left as one that needs no recovery.
        """
        if self._log.failure:
            raise LogFailed(self._log.failure)
        target = self._log.log_end_offset
        while self._log.flushed_end_offset < target or self._log.durability.rolled_unsynced:
            if self._log.state is LogState.FAILED or self._closed:
                raise LogFailed(f"{self._log.topic}-{self._log.partition} is offline or closing")
            if not self._syncing:
                self._start()
            await self._round_over.wait()

    async def close(self) -> None:
        """Start nothing more and wait for what runs; afterwards the log may be closed or truncated."""
        self._closed = True
        self._closing.set()
        self._forget_lazy()
        while self._syncing or self._sealing:
            await self._round_over.wait()
        await self._tasks.close()

    def _is_due(self) -> bool:
        log = self._log
        if log.config.waits_for_flush:
            return log.durability.needs_sync
        return (
            log.durability.rolled_unsynced or log.log_end_offset - log.flushed_end_offset >= log.config.flush_messages
        )

    def _start_in_time(self) -> None:
        """At once where somebody waits, else soon."""
        if (
            self._log.owner.awaits_flush()
            or self._log.durability.rolled_unsynced
            or not self._log.config.waits_for_flush
        ):
            self._start()
        elif self._lazy is None and not self._closed:
            self._lazy = asyncio.get_running_loop().call_later(LAZY_S, self._start_lazy)

    def _start_lazy(self) -> None:
        self._forget_lazy()
        if not self._syncing and self._is_due():
            self._start()

    def _forget_lazy(self) -> None:
        if self._lazy is not None:
            self._lazy.cancel()
            self._lazy = None

    def _start(self) -> None:
        self._forget_lazy()
        if self._closed:
            return
        if self._log.state is LogState.FAILED:
            self._tell_failure()
            return
        self._syncing = True
        self._tasks.spawn(f"flush {self._log.topic}-{self._log.partition}", self._sync())

    async def _sync(self) -> None:
        """Rounds of one sync each, until nobody asked for another one meanwhile."""
        log = self._log
        try:
            while True:
                try:
                    job = await self._sync_rounds.run(self._begin_sync, log.dirty_bytes)
                except OSError as error:
                    log.fail(error)
                    self._tell_failure()
                    return
                if job is None:
                    if log.state is LogState.FAILED:
                        self._tell_failure()
                    return
                log.durability.finish_sync(job)
                self._end_round()
                log.owner.flushed(log.stable_end_offset)
                self.seal_soon()
                if log.state is LogState.FAILED:
                    self._tell_failure()  # a write failed meanwhile: what came before it is never synced
                    return
                if self._closed or not (self._again and self._is_due()):
                    return
                if not log.owner.awaits_flush():
                    break
        finally:
            self._syncing = False
            self._end_round()
        self._start_in_time()

    def _begin_sync(self) -> SyncJob | None:
        """None when there is nothing to sync, or a write failed meanwhile: what came before it is never synced."""
        self._again = False
        log = self._log
        return (
            None if log.state is LogState.FAILED else log.durability.begin_sync(log.active_segment, log.log_end_offset)
        )

    def seal_soon(self) -> None:
        """Write the small files that are owed, if any. Never blocks."""
        if not self._sealing and not self._closed and self._log.state is not LogState.FAILED and self._log.has_sealing:
            self._sealing = True
            self._tasks.spawn(f"seal {self._log.topic}-{self._log.partition}", self._seal())

    async def _seal(self) -> None:
        log = self._log
        try:
            while (job := log.durability.begin_seal(log.epochs)) is not None and not self._closed:
                try:
                    await self._workers.run(job.run, lane=Lane.FILES)
                except OSError as error:
                    if not is_full(error):
                        log.fail(error)
                        self._tell_failure()
                        return
                    log.ballast.met_full = True
                    # Without space all of it can be written later; until then the segment may not be deleted.
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.wait(), SEAL_AGAIN_S)
                    continue
                log.durability.finish_seal(job, log.epochs)
        finally:
            self._sealing = False
            self._end_round()

    def _end_round(self) -> None:
        """Wake whoever waited for this round; later ones wait for the next."""
        self._round_over.set()
        self._round_over = asyncio.Event()

    def _tell_failure(self) -> None:
        if not self._failure_told:
            self._failure_told = True
            self._log.owner.failed(LogFailed(self._log.failure))
