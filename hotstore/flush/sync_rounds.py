"""Syncs of all logs of a data directory, in rounds: what comes while a round runs goes into the next, in one call.

Owns which syncs go together. Always true: one round at a time, at most `TOGETHER_MAX` logs in it, in the order they
asked; what a sync covers is sampled when its round begins, not when it was asked for; each log hears of its own sync
alone, once, and whoever fails over hearing of it is reported and keeps nobody else from it; a sync that began and got
no answer, whatever cut it off, is told as a failed one: nobody knows what is durable. Who only waits for a round
meanwhile gets the next one, which begins in the turn of the loop in which the answers of the one before it came: plain
callbacks, no task, since each turn of a busy loop is a part of what every acknowledged batch waits for.
More than `ALONE_BYTES` are synced beside the rounds, so that few wait for somebody else's gigabyte. A hand-over and a
commit of the file system's journal cost more than the bytes do (ADR 11). Must not know logs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from hotstore.flush.durability import SyncJob
from hotstore.flush.sync_times import SyncTimes
from seams import crash_points
from seams.afterwards import Afterwards
from seams.disk import File
from seams.syncs import CutOff, Syncs, failure_of
from seams.tasks import FailureReport, Tasks, failure_of_task, log_failure
from seams.workers import Lane, Workers

TOGETHER_MAX: Final = 64  # logs: some 10 ms a round on a disk that syncs in 0.15 ms
ALONE_BYTES: Final = 1 << 20

Begin = Callable[[], SyncJob | None]
Synced = Callable[[SyncJob | None, OSError | None], None]
"""Told of the job, done, or None where `Begin` saw none; or of what it failed of."""


class _Asked(NamedTuple):
    begin: Begin
    synced: Synced
    at_s: float


class _Begun(NamedTuple):
    job: SyncJob
    asked: _Asked


class SyncRounds:
    """See the module. One for a data directory; used on the loop only."""

    def __init__(
        self,
        syncs: Syncs,
        workers: Workers,
        report: FailureReport | None = None,
        afterwards: Afterwards | None = None,
    ) -> None:
        self._syncs = syncs
        self._workers = workers
        self._waiting: deque[_Asked] = deque()
        self._report = report or log_failure
        self._tasks = Tasks(report)
        self._afterwards = afterwards or Afterwards()
        self._are_running = False  # from the first who asks until nobody waits
        self.times = SyncTimes()

    def ask(self, begin: Begin, dirty_bytes: int, synced: Synced) -> None:
        """Call `begin` in a later turn of the loop, do its job elsewhere, then call `synced`, once.

        `dirty_bytes`: what it is about now. After an OSError nothing may be believed (C10).
        """
        loop = asyncio.get_running_loop()
        asked = _Asked(begin, synced, loop.time())
        if dirty_bytes > ALONE_BYTES:
            loop.call_soon(self._begin_alone, asked)
            return
        self._waiting.append(asked)
        if not self._are_running:
            self._are_running = True
            loop.call_soon(self._begin)  # who asks in this turn of the loop comes along

    # -- alone ----------------------------------------------------------------------------------------------------

    def _begin_alone(self, asked: _Asked) -> None:
        begun = self._sampled(asked)
        if begun is not None:
            work = self._workers.run(begun.job.run, lane=Lane.BULK_FLUSH)
            self._tasks.spawn_told("sync of much", work, partial(self._synced_alone, begun))

    def _synced_alone(self, begun: _Begun, task: asyncio.Future[None]) -> None:
        failure = failure_of_task(task)
        with self._afterwards:
            self._tell(begun, failure if failure is None or isinstance(failure, OSError) else CutOff(failure))

    # -- in rounds ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The jobs of those who have waited longest, sampled now."""
        waiting = self._waiting
        begun = [
            one for _ in range(min(TOGETHER_MAX, len(waiting))) if (one := self._sampled(waiting.popleft())) is not None
        ]
        if begun:
            self._sync([file for job, _ in begun for file in job.files], begun)
        elif waiting:
            asyncio.get_running_loop().call_soon(self._begin)
        else:
            self._are_running = False

    def _sampled(self, asked: _Asked) -> _Begun | None:
        """The job; who has none hears so at once."""
        try:
            job = asked.begin()
        except Exception as failed:  # noqa: BLE001 - whatever it is, the others of the round have their turn
            self._report("sync rounds", failed)
            self._hear(asked, None, CutOff(failed))
            return None
        if job is None:
            self._hear(asked, None, None)
            return None
        return _Begun(job, asked)

    def _sync(self, files: Sequence[File], begun: list[_Begun]) -> None:
        try:
            self._syncs.sync(files, partial(self._synced, begun))
        except Exception as cut_off:  # noqa: BLE001 - nobody may wait for ever, and it is reported
            unanswered: list[OSError | None] = [CutOff(cut_off)] * len(files)
            asyncio.get_running_loop().call_soon(self._synced, begun, unanswered)

    def _synced(self, begun: list[_Begun], of_files: list[OSError | None]) -> None:
        """What each file failed of; now the names of the jobs whose files are durable."""
        answers = iter(of_files)
        of_jobs = [[next(answers) for _ in job.files] for job, _ in begun]
        failures = [next(filter(None, of_job), None) for of_job in of_jobs]
        self._report_cut_off(of_files)
        named = [at for at, (job, _) in enumerate(begun) if job.directory is not None and failures[at] is None]
        if not named:
            self._end(begun, failures)
            return
        work = self._workers.run(_sync_names_of, [begun[at].job for at in named], lane=Lane.FLUSH)
        self._tasks.spawn_told("sync of names", work, partial(self._named, begun, failures, named))

    def _named(
        self,
        begun: list[_Begun],
        failures: list[OSError | None],
        named: list[int],
        task: asyncio.Future[list[OSError | None]],
    ) -> None:
        """Theirs alone: the other logs of the round are durable, whatever cut this off."""
        cut_off = failure_of_task(task)
        of_names = task.result() if cut_off is None else [CutOff(cut_off)] * len(named)
        self._report_cut_off(of_names)
        for at, failure in zip(named, of_names, strict=True):
            failures[at] = failure
        self._end(begun, failures)

    def _end(self, begun: list[_Begun], failures: Sequence[OSError | None]) -> None:
        """All are told, what was asked for meanwhile begins, and then, while the disk works, what they heard leads to
        its end (answers leave): in this turn of the loop."""
        if None in failures:
            crash_points.reach("flush.synced")
        with self._afterwards:
            for one, failure in zip(begun, failures, strict=True):
                self._tell(one, failure)
            self._begin()

    # -- telling --------------------------------------------------------------------------------------------------

    def _tell(self, begun: _Begun, failure: OSError | None) -> None:
        job, asked = begun
        if failure is None:
            self.times.note(asyncio.get_running_loop().time() - asked.at_s)
            self._hear(asked, job, None)
        else:
            self._hear(asked, None, failure)

    def _hear(self, asked: _Asked, job: SyncJob | None, failure: OSError | None) -> None:
        if failure is not None:
            self.times.failed_count += 1
        try:
            asked.synced(job, failure)
        except Exception as bug:  # noqa: BLE001 - the others are told all the same
            self._report("sync rounds", bug)

    def _report_cut_off(self, failures: Sequence[OSError | None]) -> None:
        """Once a round: an operator sees why."""
        cut_off = next((failure for failure in failures if isinstance(failure, CutOff)), None)
        if cut_off is not None and isinstance(cut_off.__cause__, Exception):
            self._report("sync rounds", cut_off.__cause__)


def _sync_names_of(jobs: Sequence[SyncJob]) -> list[OSError | None]:
    """Blocking."""
    return [failure_of(job.sync_names) for job in jobs]
