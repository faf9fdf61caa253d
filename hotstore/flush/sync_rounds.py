"""Rounds of syncs for all logs of a data directory: requests that arrive during a round wait for the next one.

One round runs at a time, with at most `TOGETHER_MAX` logs in the order of their requests. The range that a sync covers
is set when its round begins. Each log gets its own result, once. An exception in a log's callback is reported and does
not affect the other logs. A sync that began and got no result counts as failed, because its range may not be durable.
The next round begins in the turn of the loop in which the last results arrive. Rounds are plain callbacks, not tasks,
because each further turn of a busy loop would delay every acknowledgement. A log with more than `ALONE_BYTES` to sync
is synced outside the rounds, so that other logs do not wait for it. Rounds exist because a worker call and a journal
commit cost more than syncing a few bytes (ADR 11).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from hotstore.flush.durability import SyncJob
from seams import crash_points
from seams.files.disk import File
from seams.files.syncs import CutOff, Syncs, failure_of
from seams.loop.afterwards import Afterwards
from seams.loop.tasks import FailureReport, Tasks, failure_of_task, log_failure
from seams.loop.workers import Lane, Workers

TOGETHER_MAX: Final = 64  # logs in a round: about 10 ms on a disk that syncs in 0.15 ms
ALONE_BYTES: Final = 1 << 20
SYNC_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
"""Upper bounds of the buckets of `SyncTimes`; one more bucket counts longer syncs."""

Begin = Callable[[], SyncJob | None]
Synced = Callable[[SyncJob | None, OSError | None], None]
"""Called with the finished job, with (None, None) if `Begin` returned None, or with the failure."""


class _Request(NamedTuple):
    begin: Begin
    synced: Synced
    at_s: float


class _Sampled(NamedTuple):
    job: SyncJob
    request: _Request


@dataclass(slots=True)
class SyncTimes:
    """Histogram of the time from the request of a sync to its result, for which an acknowledgement waits. Also counts
    failures."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(SYNC_BOUNDS_S) + 1))
    seconds: float = 0.0
    failed_count: int = 0

    def note(self, seconds: float) -> None:
        self.buckets[bisect_left(SYNC_BOUNDS_S, seconds)] += 1
        self.seconds += seconds


class SyncRounds:
    """The sync rounds of one data directory. They run only on the loop."""

    def __init__(
        self,
        syncs: Syncs,
        workers: Workers,
        report: FailureReport | None = None,
        afterwards: Afterwards | None = None,
    ) -> None:
        self._syncs = syncs
        self._workers = workers
        self._waiting: deque[_Request] = deque()
        self._report = report or log_failure
        self._tasks = Tasks(report)
        self._afterwards = afterwards or Afterwards()
        self._are_running = False  # true from the first request until no request waits
        self.times = SyncTimes()

    def ask(self, begin: Begin, dirty_bytes: int, synced: Synced) -> None:
        """Call `begin` in a later turn of the loop, run its job, then call `synced` once.

        `dirty_bytes`: approximate bytes to sync now. After an OSError nothing may be assumed durable (C10)."""
        loop = asyncio.get_running_loop()
        request = _Request(begin, synced, loop.time())
        if dirty_bytes > ALONE_BYTES:
            loop.call_soon(self._begin_alone, request)
            return
        self._waiting.append(request)
        if not self._are_running:
            self._are_running = True
            loop.call_soon(self._begin)  # the round includes later requests of this turn

    # -- alone ----------------------------------------------------------------------------------------------------

    def _begin_alone(self, request: _Request) -> None:
        begun = self._sample(request)
        if begun is not None:
            work = self._workers.run(begun.job.run, lane=Lane.BULK_FLUSH)
            self._tasks.spawn_with_callback("sync of much", work, partial(self._synced_alone, begun))

    def _synced_alone(self, begun: _Sampled, task: asyncio.Future[None]) -> None:
        failure = failure_of_task(task)
        with self._afterwards:
            self._report_result(begun, failure if failure is None or isinstance(failure, OSError) else CutOff(failure))

    # -- in rounds ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin a round: make the jobs of the oldest requests and sync them."""
        waiting = self._waiting
        begun = [
            one for _ in range(min(TOGETHER_MAX, len(waiting))) if (one := self._sample(waiting.popleft())) is not None
        ]
        if begun:
            self._sync([file for job, _ in begun for file in job.files], begun)
        elif waiting:
            asyncio.get_running_loop().call_soon(self._begin)
        else:
            self._are_running = False

    def _sample(self, request: _Request) -> _Sampled | None:
        """The job of a request. A request without a job is answered at once."""
        try:
            job = request.begin()
        except Exception as failed:  # noqa: BLE001 - the other logs of the round are synced all the same
            self._report("sync rounds", failed)
            self._notify(request, None, CutOff(failed))
            return None
        if job is None:
            self._notify(request, None, None)
            return None
        return _Sampled(job, request)

    def _sync(self, files: Sequence[File], begun: list[_Sampled]) -> None:
        try:
            self._syncs.sync(files, partial(self._synced, begun))
        except Exception as cut_off:  # noqa: BLE001 - every request gets an answer, and this is reported
            unanswered: list[OSError | None] = [CutOff(cut_off)] * len(files)
            asyncio.get_running_loop().call_soon(self._synced, begun, unanswered)

    def _synced(self, begun: list[_Sampled], of_files: list[OSError | None]) -> None:
        """The results of the files arrived. Sync the directories of the jobs whose files are durable."""
        answers = iter(of_files)
        of_jobs = [[next(answers) for _ in job.files] for job, _ in begun]
        failures = [next(filter(None, of_job), None) for of_job in of_jobs]
        self._report_cut_off(of_files)
        named = [at for at, (job, _) in enumerate(begun) if job.directory is not None and failures[at] is None]
        if not named:
            self._end(begun, failures)
            return
        work = self._workers.run(_sync_names_of, [begun[at].job for at in named], lane=Lane.FLUSH)
        self._tasks.spawn_with_callback("sync of names", work, partial(self._named, begun, failures, named))

    def _named(
        self,
        begun: list[_Sampled],
        failures: list[OSError | None],
        named: list[int],
        task: asyncio.Future[list[OSError | None]],
    ) -> None:
        """The directory syncs ended. A failure here affects only logs with new names."""
        cut_off = failure_of_task(task)
        of_names = task.result() if cut_off is None else [CutOff(cut_off)] * len(named)
        self._report_cut_off(of_names)
        for at, failure in zip(named, of_names, strict=True):
            failures[at] = failure
        self._end(begun, failures)

    def _end(self, begun: list[_Sampled], failures: Sequence[OSError | None]) -> None:
        """Report all results and begin the next round. Then `Afterwards` sends the responses in this turn of the loop,
        while the disk works."""
        if None in failures:
            crash_points.reach("flush.synced")
        with self._afterwards:
            for one, failure in zip(begun, failures, strict=True):
                self._report_result(one, failure)
            self._begin()

    # -- results --------------------------------------------------------------------------------------------------

    def _report_result(self, begun: _Sampled, failure: OSError | None) -> None:
        job, request = begun
        if failure is None:
            self.times.note(asyncio.get_running_loop().time() - request.at_s)
            self._notify(request, job, None)
        else:
            self._notify(request, None, failure)

    def _notify(self, request: _Request, job: SyncJob | None, failure: OSError | None) -> None:
        if failure is not None:
            self.times.failed_count += 1
        try:
            request.synced(job, failure)
        except Exception as bug:  # noqa: BLE001 - the other logs get their results all the same
            self._report("sync rounds", bug)

    def _report_cut_off(self, failures: Sequence[OSError | None]) -> None:
        """Report the interruption of syncs, once in a round, for the operator."""
        cut_off = next((failure for failure in failures if isinstance(failure, CutOff)), None)
        if cut_off is not None and isinstance(cut_off.__cause__, Exception):
            self._report("sync rounds", cut_off.__cause__)


def _sync_names_of(jobs: Sequence[SyncJob]) -> list[OSError | None]:
    """Sync the directories. Blocking. Returns the failure of each, or None."""
    return [failure_of(job.sync_names) for job in jobs]
