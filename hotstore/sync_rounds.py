"""Syncs of all logs of a data directory, in rounds: what comes while a round runs goes into the next, in one call.

Owns which syncs go together. Always true: one round at a time, at most `TOGETHER_MAX` logs in it, in the order they
asked; what a sync covers is sampled when its round begins, not when it was asked for; each log hears of its own sync
alone; a sync that began and got no answer, whatever cut it off, is told as a failed one: nobody knows what is durable.
More than `ALONE_BYTES` are synced beside the rounds, so that few wait for somebody else's gigabyte. A hand-over and a
commit of the file system's journal cost more than the bytes do (ADR 11). Must not know logs.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from hotstore.durability import SyncJob
from seams import crash_points
from seams.syncs import Syncs
from seams.tasks import FailureReport, Tasks
from seams.workers import Lane, Workers

TOGETHER_MAX: Final = 64  # logs: some 10 ms a round on a disk that syncs in 0.15 ms
ALONE_BYTES: Final = 1 << 20

Begin = Callable[[], SyncJob | None]
_Asked = tuple[SyncJob, asyncio.Future[SyncJob | None]]


class SyncRounds:
    """See the module. One for a data directory; used on the loop only. Runs no task while nobody waits."""

    def __init__(self, syncs: Syncs, workers: Workers, report: FailureReport | None = None) -> None:
        self._syncs = syncs
        self._workers = workers
        self._waiting: deque[tuple[Begin, asyncio.Future[SyncJob | None]]] = deque()
        self._tasks = Tasks(report, bound=2)  # one, and one that just ended
        self._are_running = False

    async def run(self, begin: Begin, dirty_bytes: int) -> SyncJob | None:
        """Call `begin` on the loop, then do its job elsewhere; the job, done, or None where `begin` saw none.

        `dirty_bytes`: what it is about now. Raises the job's OSError, after which nothing may be believed (C10).
        """
        if dirty_bytes > ALONE_BYTES:
            return await self._run_alone(begin())
        if not self._are_running:
            self._tasks.spawn("sync rounds", self._run_rounds())  # who asks in this turn of the loop comes along
            self._are_running = True
        done: asyncio.Future[SyncJob | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((begin, done))
        return await done

    async def _run_alone(self, job: SyncJob | None) -> SyncJob | None:
        if job is not None:
            try:
                await self._workers.run(job.run, lane=Lane.BULK_FLUSH)
            except OSError:
                raise
            except Exception as cut_off:
                raise _unanswered(cut_off) from cut_off
        return job

    async def _run_rounds(self) -> None:
        asked: list[_Asked] = []
        try:
            while self._waiting:
                asked.clear()
                self._begin_round(asked)
                if asked:
                    failures = await self._sync([job for job, _ in asked])
                    for (job, done), failure in zip(asked, failures, strict=True):
                        _answer(done, job, failure)
        except BaseException as cut_off:
            for _, done in (*asked, *self._waiting):
                _answer(done, None, _unanswered(cut_off))
            self._waiting.clear()
            raise
        finally:
            self._are_running = False

    async def _sync(self, jobs: Sequence[SyncJob]) -> list[OSError | None]:
        """What each job failed of: files first, then the names of those that are durable."""
        of_files = iter(await self._syncs.sync([file for job in jobs for file in job.files]))
        of_jobs = [[next(of_files) for _ in job.files] for job in jobs]
        failures = [next(filter(None, of_job), None) for of_job in of_jobs]
        if any(job.directory is not None for job in jobs):
            failures = await self._workers.run(_sync_names, jobs, failures, lane=Lane.FLUSH)
        crash_points.reach("flush.synced")
        return failures

    def _begin_round(self, asked: list[_Asked]) -> None:
        """Sample the jobs of those who have waited longest into `asked`; who has none is answered at once."""
        for _ in range(min(TOGETHER_MAX, len(self._waiting))):
            begin, done = self._waiting[0]
            job = None if done.cancelled() else begin()
            self._waiting.popleft()
            if job is None:
                _answer(done, None, None)
            else:
                asked.append((job, done))


def _sync_names(jobs: Sequence[SyncJob], failures: Sequence[OSError | None]) -> list[OSError | None]:
    """Blocking: of the jobs that have not failed yet; what each failed of."""
    return [failure or _sync_names_of(job) for job, failure in zip(jobs, failures, strict=True)]


def _sync_names_of(job: SyncJob) -> OSError | None:
    try:
        job.sync_names()
    except OSError as failed:
        return failed
    return None


def _answer(done: asyncio.Future[SyncJob | None], job: SyncJob | None, failure: OSError | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(job)
    else:
        done.set_exception(failure)


def _unanswered(cut_off: BaseException) -> OSError:
    return OSError(errno.EIO, f"a sync was cut off, nobody knows what is durable: {cut_off!r}")
