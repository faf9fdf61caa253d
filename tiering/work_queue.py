"""Work queues: background jobs of many partitions, a bounded number at once, each run when it is woken.

A job never runs twice at the same time. It runs again at once after a `wake`, later if it asked for that, and with
backoff and jitter after a failure. An exception is reported and counted; queue and job stay alive. An idle job costs
one timer. If no run succeeds, the store is assumed to be unavailable: one job probes it every few seconds, and all jobs
resume when a probe succeeds. An outage thus costs a fixed rate of requests, and its end is detected soon (G13).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from logformat.errors import Retryable
from seams.loop.tasks import Tasks
from seams.rng import Rng

PROBE_S: Final = 4.0  # between two probes of an unavailable store; writes resume within 10 s of its return
_JITTER: Final = 0.2

Probe = Callable[[], bool]
"""Let one job try; False: there is none, or no free slot."""
BACKOFF_DOUBLINGS_MAX = 16
AWAY_AFTER = 5  # consecutive refusals, over all jobs


class Backoff(msgspec.Struct, frozen=True):
    """Seconds to wait after consecutive failures: `first_s`, doubled up to `longest_s`, times 1 ± `jitter`."""

    first_s: float
    longest_s: float
    jitter: float

    def wait_s(self, failures: int, rng: Rng) -> float:
        doubled = self.first_s * 2.0 ** min(max(failures, 1) - 1, BACKOFF_DOUBLINGS_MAX)
        return min(doubled, self.longest_s) * rng.uniform(1 - self.jitter, 1 + self.jitter)


class StoreRecovery:
    """The waiting queues of one store."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._line: list[Probe] = []
        self._timer: asyncio.TimerHandle | None = None

    def join(self, probe: Probe) -> None:
        """Let the queue take turns from now on."""
        if probe not in self._line:
            self._line.append(probe)
        self._later()

    def leave(self, probe: Probe) -> None:
        """Give the queue no more turns."""
        if probe in self._line:
            self._line.remove(probe)

    def back(self) -> None:
        """Let all waiting queues try now, because a job reached the store."""
        for probe in tuple(self._line):
            probe()

    def _later(self) -> None:
        if self._timer is None and self._line:
            wait_s = PROBE_S * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._next)

    def _next(self) -> None:
        self._timer = None
        for probe in tuple(self._line):
            self._line.remove(probe)
            self._line.append(probe)
            if probe():
                break
        self._later()


@dataclass(slots=True, eq=False)
class Job:
    """One partition's work of one kind; made by `WorkQueue.add`. `run` does the due work and returns the seconds until
    its next run; None: only when woken."""

    name: str
    run: Callable[[], Awaitable[float | None]]
    failures: int = 0
    queued: bool = False
    removed: bool = False
    retry_at_s: float = 0.0
    woken: bool = False
    task: asyncio.Task[float | Retryable | None] | None = None
    timer: asyncio.TimerHandle | None = None


class WorkQueue:
    """Jobs that share `running_max` slots. Failures other than `Retryable` go to the report of `tasks`; `recovery` is
    shared by all queues of the same store."""

    def __init__(self, running_max: int, backoff: Backoff, rng: Rng, tasks: Tasks, recovery: StoreRecovery) -> None:
        self._running_max = running_max
        self._backoff = backoff
        self._rng = rng
        self._tasks = tasks
        self._recovery = recovery
        self._ready: deque[Job] = deque()
        self._running = 0
        self._closed = False
        self._refusals = 0
        self.failures = 0

    @property
    def is_away(self) -> bool:
        """Whether so many consecutive runs were refused that only one job at a time probes the store."""
        return self._refusals >= AWAY_AFTER

    @property
    def waiting(self) -> int:
        """Jobs that are due and have no slot yet."""
        return len(self._ready)

    @property
    def running(self) -> int:
        return self._running

    def add(self, name: str, run: Callable[[], Awaitable[float | None]]) -> Job:
        """A job that sleeps until it is woken."""
        return Job(name, run)

    def wake(self, job: Job) -> None:
        """Run the job as soon as a slot is free, and once more if it is running now. After a failure it first waits for
        its backoff, because otherwise a busy partition would retry without a pause."""
        if job.removed or self._closed:
            return
        if job.failures and (left_s := job.retry_at_s - asyncio.get_running_loop().time()) > 0:
            self.wake_in(job, left_s)
            return
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None
        if job.task is not None:
            job.woken = True
        elif not job.queued:
            job.queued = True
            self._ready.append(job)
            self._start_ready()

    def wake_in(self, job: Job, seconds: float) -> None:
        """Run the job in `seconds`, or earlier if an earlier wake-up is set. If it is running now it runs again,
        because it may have passed the relevant check already.
        """
        if job.removed or self._closed or job.queued:
            return
        loop = asyncio.get_running_loop()
        if job.timer is not None:
            if job.timer.when() <= loop.time() + seconds:
                return
            job.timer.cancel()
        job.timer = loop.call_later(seconds, self._timer_fired, job)

    async def remove(self, job: Job) -> None:
        """Never run it again; a current run is cancelled and awaited."""
        job.removed = True
        if job.timer is not None:
            job.timer.cancel()
            job.timer = None
        if job.queued:
            job.queued = False
            self._ready.remove(job)
        task = job.task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def close(self) -> None:
        """Start no more jobs; `tasks` cancels the running jobs."""
        self._closed = True
        self._ready.clear()
        self._recovery.leave(self._probe)

    def _timer_fired(self, job: Job) -> None:
        job.timer = None
        self.wake(job)

    def _start_ready(self) -> None:
        while self._ready and self._running < self._running_max and not self._closed and not self.is_away:
            self._start_next()

    def _start_next(self) -> None:
        job = self._ready[0]
        job.task = self._tasks.spawn(job.name, _run(job))  # if this raises, the job stays first in the queue
        self._ready.popleft()
        job.queued = False
        job.woken = False
        self._running += 1
        job.task.add_done_callback(lambda task, job=job: self._ended(job, task))  # type: ignore[misc]

    def _probe(self) -> bool:
        """Let one job probe the store: it is this queue's turn."""
        if not self._ready or self._running >= self._running_max:
            return False
        self._start_next()
        return True

    def _answered(self) -> None:
        """Note that a run succeeded: the store is available."""
        was_away, self._refusals = self.is_away, 0
        if was_away:
            self._recovery.leave(self._probe)
            self._recovery.back()

    def _ended(self, job: Job, task: asyncio.Task[float | Retryable | None]) -> None:
        job.task = None
        self._running -= 1
        if not task.cancelled() and not self._closed and not job.removed:
            failure = task.exception()
            outcome = failure if failure is not None else task.result()
            if isinstance(outcome, BaseException):
                self._failed(job, refused=isinstance(outcome, Retryable))
            else:
                self._answered()
                job.failures = 0
                if job.woken:
                    self.wake(job)
                elif outcome is not None:
                    self.wake_in(job, outcome)
        self._start_ready()

    def _failed(self, job: Job, *, refused: bool) -> None:
        self.failures += 1
        job.failures += 1
        self._refusals += refused
        if refused and self.is_away:
            job.queued = True  # at the end of the queue
            self._ready.append(job)
            self._recovery.join(self._probe)
            return
        wait_s = self._backoff.wait_s(job.failures, self._rng)
        job.retry_at_s = asyncio.get_running_loop().time() + wait_s
        self.wake_in(job, wait_s)


async def _run(job: Job) -> float | Retryable | None:
    """A temporary refusal is a normal outcome; any other exception is reported."""
    try:
        return await job.run()
    except Retryable as failure:
        return failure


class Queues(NamedTuple):
    """The broker's kinds of background work, each with its own slots: reservations never wait for uploads."""

    commits: WorkQueue
    copies: WorkQueue
    expiry: WorkQueue
    gc: WorkQueue
    cleaning: WorkQueue
