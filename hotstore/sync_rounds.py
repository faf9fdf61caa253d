"""Syncs of all logs of a data directory, in rounds: what comes while a round runs goes into the next, in one call.

Owns which syncs go together. Always true: one round at a time, at most `TOGETHER_MAX` logs in it, in the order they
asked; what a sync covers is sampled when its round begins, not when it was asked for; each log hears of its own sync
alone; a sync that began and got no answer, whatever cut it off, is told as a failed one: nobody knows what is durable.
Who only waits for a round meanwhile gets the next one.
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
from hotstore.sync_times import SyncTimes
from seams import crash_points
from seams.syncs import Syncs, failure_of
from seams.tasks import FailureReport, Tasks, log_failure
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
        self._report = report or log_failure
        self._tasks = Tasks(report, bound=2)  # one, and one that just ended
        self._are_running = False
        self.times = SyncTimes()

    async def run(self, begin: Begin, dirty_bytes: int) -> SyncJob | None:
        """Call `begin` on the loop, then do its job elsewhere; the job, done, or None where `begin` saw none.

        `dirty_bytes`: what it is about now. Raises the job's OSError, after which nothing may be believed (C10).
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            job = await self._run(begin, dirty_bytes)
        except OSError:
            self.times.failed_count += 1
            raise
        if job is not None:
            self.times.note(loop.time() - began_s)
        return job

    async def _run(self, begin: Begin, dirty_bytes: int) -> SyncJob | None:
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
        try:
            while self._waiting:
                await self._run_round()
        except asyncio.CancelledError as cut_off:
            while self._waiting:
                _answer(self._waiting.popleft()[1], None, _unanswered(cut_off))
            raise
        finally:
            self._are_running = False

    async def _run_round(self) -> None:
        asked = self._begin_round()
        if not asked:
            return
        try:
            failures = await self._sync([job for job, _ in asked])
        except BaseException as cut_off:
            for _, done in asked:
                _answer(done, None, _unanswered(cut_off))
            if not isinstance(cut_off, Exception):
                raise
            self._report("sync rounds", cut_off)
        else:
            for (job, done), failure in zip(asked, failures, strict=True):
                _answer(done, job, failure)

    def _begin_round(self) -> list[_Asked]:
        """The jobs of those who have waited longest, sampled now; who has none is answered at once."""
        asked: list[_Asked] = []
        for _ in range(min(TOGETHER_MAX, len(self._waiting))):
            begin, done = self._waiting.popleft()
            if done.cancelled():
                continue
            try:
                job = begin()
            except Exception as failed:  # noqa: BLE001 - whatever it is, the others of the round have their turn
                _answer(done, None, _unanswered(failed))
                self._report("sync rounds", failed)
                continue
            if job is None:
                _answer(done, None, None)
            else:
                asked.append((job, done))
        return asked

    async def _sync(self, jobs: Sequence[SyncJob]) -> list[OSError | None]:
        """What each job failed of: files first, then the names of those that are durable."""
        of_files = iter(await self._syncs.sync([file for job in jobs for file in job.files]))
        of_jobs = [[next(of_files) for _ in job.files] for job in jobs]
        failures = [next(filter(None, of_job), None) for of_job in of_jobs]
        named = [at for at, job in enumerate(jobs) if job.directory is not None and failures[at] is None]
        if named:
            of_names = await self._sync_names([jobs[at] for at in named])
            for at, failure in zip(named, of_names, strict=True):
                failures[at] = failure
        if None in failures:
            crash_points.reach("flush.synced")
        return failures

    async def _sync_names(self, jobs: Sequence[SyncJob]) -> Sequence[OSError | None]:
        try:
            return await self._workers.run(_sync_names_of, jobs, lane=Lane.FLUSH)
        except Exception as cut_off:  # noqa: BLE001 - theirs alone: the other logs of the round are durable
            self._report("sync rounds", cut_off)
            return [_unanswered(cut_off)] * len(jobs)


def _sync_names_of(jobs: Sequence[SyncJob]) -> list[OSError | None]:
    """Blocking."""
    return [failure_of(job.sync_names) for job in jobs]


def _answer(done: asyncio.Future[SyncJob | None], job: SyncJob | None, failure: OSError | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(job)
    else:
        done.set_exception(failure)


def _unanswered(cut_off: BaseException) -> OSError:
    return OSError(errno.EIO, f"a sync was cut off, nobody knows what is durable: {cut_off!r}")
