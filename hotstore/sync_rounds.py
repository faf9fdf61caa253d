"""Syncs of all logs of a data directory, in rounds: what comes while a round runs goes into the next, in one call.

Owns which syncs go together. Always true: one round at a time, at most `TOGETHER_MAX` logs in it, in the order they
asked; what a sync covers is sampled when its round begins, not when it was asked for; each log hears of its own sync
alone; more than `ALONE_BYTES` are synced beside the rounds, so that nobody waits for somebody else's gigabyte. A call
of a worker and a commit of the file system's journal cost more than the bytes do (ADR 11). Must not know logs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from hotstore.durability import SyncJob
from seams import crash_points
from seams.syncs import Syncs
from seams.tasks import Tasks
from seams.workers import Lane, Workers

TOGETHER_MAX: Final = 64  # logs: some 10 ms a round on a disk that syncs in 0.15 ms
ALONE_BYTES: Final = 1 << 20

Begin = Callable[[], SyncJob | None]


class SyncRounds:
    """See the module. One for a data directory; used on the loop only. Runs no task while nobody waits."""

    def __init__(self, syncs: Syncs, workers: Workers) -> None:
        self._syncs = syncs
        self._workers = workers
        self._waiting: deque[tuple[Begin, asyncio.Future[SyncJob | None]]] = deque()
        self._tasks = Tasks(bound=2)  # one, and one that just ended
        self._are_running = False

    async def run(self, begin: Begin, dirty_bytes: int) -> SyncJob | None:
        """Call `begin` on the loop, then do its job in a worker; the job, done, or None where `begin` saw none.

        `dirty_bytes`: what it will be about. Raises the job's OSError, after which nothing may be believed (C10).
        """
        if dirty_bytes > ALONE_BYTES:
            if (job := begin()) is not None:
                await self._workers.run(job.run, lane=Lane.FLUSH)
            return job
        done: asyncio.Future[SyncJob | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((begin, done))
        if not self._are_running:
            self._are_running = True
            self._tasks.spawn("sync rounds", self._run_rounds())  # who asks in this turn of the loop comes along
        return await done

    async def _run_rounds(self) -> None:
        asked: list[tuple[SyncJob, asyncio.Future[SyncJob | None]]] = []
        try:
            while self._waiting:
                asked = self._begin_round()
                if not asked:
                    continue
                failures = await self._sync([job for job, _ in asked])
                for (job, done), failure in zip(asked, failures, strict=True):
                    _answer(done, job, failure)
        finally:
            # Without answers only where this task is cancelled, or fails in a way that no disk fails.
            self._are_running = False
            for _, done in (*asked, *self._waiting):
                done.cancel()
            self._waiting.clear()

    async def _sync(self, jobs: Sequence[SyncJob]) -> list[OSError | None]:
        """What each job failed of: files first, then the names of those that are durable."""
        of_files = iter(await self._syncs.sync([file for job in jobs for file in job.files]))
        of_jobs = [[next(of_files) for _ in job.files] for job in jobs]
        failures = [next(filter(None, of_job), None) for of_job in of_jobs]
        if any(job.directory is not None for job in jobs):
            failures = await self._workers.run(_sync_names, jobs, failures, lane=Lane.FLUSH)
        crash_points.reach("flush.synced")
        return failures

    def _begin_round(self) -> list[tuple[SyncJob, asyncio.Future[SyncJob | None]]]:
        """Sample the jobs of those who have waited longest; who has none is answered at once."""
        asked: list[tuple[SyncJob, asyncio.Future[SyncJob | None]]] = []
        for _ in range(min(TOGETHER_MAX, len(self._waiting))):
            begin, done = self._waiting.popleft()
            if done.cancelled():
                continue
            if (job := begin()) is None:
                done.set_result(None)
            else:
                asked.append((job, done))
        return asked


def _sync_names(jobs: Sequence[SyncJob], failures: Sequence[OSError | None]) -> list[OSError | None]:
    """Blocking: of the jobs that have not failed yet; what each failed of."""
    return [failure or _sync_names_of(job) for job, failure in zip(jobs, failures, strict=True)]


def _sync_names_of(job: SyncJob) -> OSError | None:
    try:
        job.sync_names()
    except OSError as failed:
        return failed
    return None


def _answer(done: asyncio.Future[SyncJob | None], job: SyncJob, failure: OSError | None) -> None:
    if done.cancelled():
        return
    if failure is None:
        done.set_result(job)
    else:
        done.set_exception(failure)
