"""Background work of many partitions, a bounded number at once, each woken when there is something to do.

Owns when a job runs again: at once after a `wake`, later where it asked for it, and with backoff and jitter after a
failure. Always true: a job runs at most once at a time; a wake during its run starts another run; any exception
leaves the queue and the job alive, reported and counted; idle jobs cost one timer, nobody scans them. Where nothing
succeeds the store is taken to be away: one job looks every few seconds, however many wait, and all go on when it finds
the store back; so an outage costs a fixed number of requests, and its end is noticed soon (G13). Must not know what
they do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from logformat.errors import Retryable
from seams.rng import Rng
from seams.tasks import Tasks
from tiering.store_recovery import StoreRecovery

BACKOFF_DOUBLINGS_MAX = 16
AWAY_AFTER = 5  # refusals in a row, of whichever jobs


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds to wait after failures in a row: `first_s`, doubled up to `longest_s`, times 1 ± `jitter`."""

    first_s: float
    longest_s: float
    jitter: float

    def wait_s(self, failures: int, rng: Rng) -> float:
        doubled = self.first_s * 2.0 ** min(max(failures, 1) - 1, BACKOFF_DOUBLINGS_MAX)
        return min(doubled, self.longest_s) * rng.uniform(1 - self.jitter, 1 + self.jitter)


class Job:
    """One partition's work of one kind: `run` does what is due and returns in how many seconds to look again.

    None: only when woken. Made by `WorkQueue.add`.
    """

    __slots__ = ("failures", "name", "queued", "removed", "retry_at_s", "run", "task", "timer", "woken")

    def __init__(self, name: str, run: Callable[[], Awaitable[float | None]]) -> None:
        self.name = name
        self.run = run
        self.failures = 0
        self.queued = False
        self.removed = False
        self.retry_at_s = 0.0
        self.woken = False
        self.task: asyncio.Task[float | Retryable | None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class WorkQueue:
    """Jobs that share `running_max` places. Failures that are not `Retryable` go to the report of `tasks`;
    `store_recovery` are those of the store that all jobs ask."""

    def __init__(self, running_max: int, backoff: Backoff, rng: Rng, tasks: Tasks, looks: StoreRecovery) -> None:
        self._running_max = running_max
        self._backoff = backoff
        self._rng = rng
        self._tasks = tasks
        self._looks = looks
        self._ready: deque[Job] = deque()
        self._running = 0
        self._closed = False
        self._refusals = 0
        self.failures = 0

    @property
    def is_away(self) -> bool:
        """So many runs in a row were refused that only one job at a time is let out to look."""
        return self._refusals >= AWAY_AFTER

    @property
    def waiting(self) -> int:
        """Jobs that are due and have no place yet."""
        return len(self._ready)

    @property
    def running(self) -> int:
        return self._running

    def add(self, name: str, run: Callable[[], Awaitable[float | None]]) -> Job:
        """A job that sleeps until it is woken."""
        return Job(name, run)

    def wake(self, job: Job) -> None:
        """Run it as soon as there is a place; once more when it runs right now. After a failure, when its backoff is
        over: otherwise a busy partition would turn one failure into a storm."""
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
        """Run it in `seconds`, or earlier when it is to be woken earlier already; also when it runs right now, since
        it may have looked already at what this is about."""
        if job.removed or self._closed or job.queued:
            return
        loop = asyncio.get_running_loop()
        if job.timer is not None:
            if job.timer.when() <= loop.time() + seconds:
                return
            job.timer.cancel()
        job.timer = loop.call_later(seconds, self._timer_fired, job)

    async def remove(self, job: Job) -> None:
        """Never run it again; a run under way is cancelled and waited for."""
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
        """Start nothing more; `tasks` cancels what runs."""
        self._closed = True
        self._ready.clear()
        self._looks.leave(self._look)

    def _timer_fired(self, job: Job) -> None:
        job.timer = None
        self.wake(job)

    def _start_ready(self) -> None:
        while self._ready and self._running < self._running_max and not self._closed and not self.is_away:
            self._start_next()

    def _start_next(self) -> None:
        job = self._ready[0]
        job.task = self._tasks.spawn(job.name, _run(job))  # where that is refused it stays the next one
        self._ready.popleft()
        job.queued = False
        job.woken = False
        self._running += 1
        job.task.add_done_callback(lambda task, job=job: self._ended(job, task))  # type: ignore[misc]

    def _look(self) -> bool:
        """Our turn: one job goes out, and finds out."""
        if not self._ready or self._running >= self._running_max:
            return False
        self._start_next()
        return True

    def _answered(self) -> None:
        """A run succeeded: the store is there."""
        was_away, self._refusals = self.is_away, 0
        if was_away:
            self._looks.leave(self._look)
            self._looks.back()

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
            job.queued = True  # its turn to look comes after all others that wait
            self._ready.append(job)
            self._looks.join(self._look)
            return
        wait_s = self._backoff.wait_s(job.failures, self._rng)
        job.retry_at_s = asyncio.get_running_loop().time() + wait_s
        self.wake_in(job, wait_s)


async def _run(job: Job) -> float | Retryable | None:
    """What the world refused for now is an outcome; anything else is an exception and goes to the report."""
    try:
        return await job.run()
    except Retryable as failure:
        return failure


class Queues:
    """The broker's kinds of background work, each with its own places: reservations never wait for uploads."""

    def __init__(self, commits: WorkQueue, copies: WorkQueue, expiry: WorkQueue, gc: WorkQueue) -> None:
        self.commits = commits
        self.copies = copies
        self.expiry = expiry
        self.gc = gc

    @property
    def all(self) -> tuple[WorkQueue, ...]:
        return (self.commits, self.copies, self.expiry, self.gc)
