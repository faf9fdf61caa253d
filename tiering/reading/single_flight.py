"""Shared loads: readers of the same key wait for one job, with bounds, queue and deadline for all cold reads.

A key has at most one job. A future always becomes done and never carries an error. The failure of a job that a reader
waited for is raised once, to the next reader within 30 s; the failure of a prefetch is raised to no reader. At most
`concurrency` pieces of I/O run and hold at most `bytes_in_flight_max`; a reader's request comes before a prefetch. At
most `queue_max` more jobs wait. Each job ends by its deadline.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from coldstore.retry import RetryBudget, with_retry
from logformat.errors import Retryable, ThermoclineError
from seams.clock import Clock
from seams.loop.tasks import Tasks
from seams.rng import Rng
from tiering.reading.limits import ReadLimits

KEEP_FAILURE_S: Final = 30.0
FAILURES_MAX: Final = 1024
SLOWEST_BYTES_S: Final = 48 << 10  # a link this slow still brings a chunk before its deadline

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Failure(NamedTuple):
    error: ThermoclineError
    at_s: float
    asked: bool


class SingleFlight(Generic[K]):
    """Running jobs by key, and the slots of their I/O."""

    def __init__(self, tasks: Tasks, clock: Clock, rng: Rng, limits: ReadLimits) -> None:
        self.retries = self.errors = self.queue_full = 0  # counters
        self.asked: set[K] = set()  # running jobs for which a reader has a future
        self._tasks = tasks
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._slots = ReadSlots(limits.concurrency, limits.bytes_in_flight_max)
        self._retry_budget = RetryBudget()  # shared by all readers, so that they do not flood an unavailable store
        self._running: dict[K, asyncio.Future[None]] = {}
        self._failures: OrderedDict[K, _Failure] = OrderedDict()

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, key: K) -> bool:
        return key in self._running

    def future(self, key: K) -> asyncio.Future[None] | None:
        """The future of a running job of this key."""
        waiting = self._running.get(key)
        if waiting is not None and waiting.cancelled():  # one of its readers cancelled it; the others continue
            waiting = self._running[key] = asyncio.get_running_loop().create_future()
        return waiting

    def want(self, key: K, run: Callable[[], Awaitable[None]]) -> asyncio.Future[None]:
        """Begin or join a job for a reader. Raises the last failure if unreported; Retryable if too many jobs wait."""
        failure = self.take_failure(key)
        if failure is not None:
            raise failure
        if key not in self.asked and len(self.asked) >= self._limits.concurrency + self._limits.queue_max:
            self.queue_full += 1
            raise Retryable("the queue of cold reads is full; fetch again")
        return self.start(key, run, asked=True)

    def start(self, key: K, run: Callable[[], Awaitable[None]], *, asked: bool = False) -> asyncio.Future[None]:
        """Begin the job of `key`, or join it. `asked`: a reader waits for the result. Raises Retryable when its owner
        is closed."""
        waiting = self.future(key)
        if waiting is None:
            waiting = asyncio.get_running_loop().create_future()
            try:
                self._tasks.spawn(f"cold read {key}", self._run(key, run))
            except RuntimeError as closed:
                raise Retryable(f"cold read: {closed}; fetch again") from closed
            self._running[key] = waiting
        if asked:
            self.asked.add(key)
        return waiting

    async def finished(self, key: K, run: Callable[[], Awaitable[None]]) -> None:
        """Start or join the job, wait for its end, and raise its failure. Cancelling the wait
        leaves the job running."""
        self.start(key, run)
        while (waiting := self.future(key)) is not None:  # another reader may cancel the shared future
            await asyncio.wait([waiting])
        failed = self._failures.get(key)
        if failed is not None:
            raise failed.error

    def take_failure(self, key: K) -> ThermoclineError | None:
        """The failure of the last job of `key`, if a reader waited for it and no reader got it yet."""
        failed = self._failures.pop(key, None)
        if failed is None or not failed.asked or self._clock.monotonic_s() - failed.at_s > KEEP_FAILURE_S:
            return None
        return failed.error

    def failed(self, key: K) -> bool:
        """Whether the last job of `key` failed recently and was not tried again."""
        failed = self._failures.get(key)
        return failed is not None and self._clock.monotonic_s() - failed.at_s <= KEEP_FAILURE_S

    def free_ahead(self) -> int:
        """Number of prefetches that may begin now."""
        return self._slots.free_ahead()

    async def bounded(self, attempt: Callable[[], Awaitable[T]], nbytes: int) -> T:
        """Run `attempt` in a slot, which it leaves between retries. No try begins after `deadline_s`. The last try may
        take as long as a slow link needs for `nbytes`."""
        deadline_s = self._limits.deadline_s
        end_s = deadline_s + nbytes / SLOWEST_BYTES_S

        async def in_slot() -> T:
            await self._slots.take(nbytes)
            try:
                return await attempt()
            finally:
                self._slots.give_back(nbytes)

        try:
            async with asyncio.timeout(end_s):
                return await with_retry(
                    in_slot,
                    clock=self._clock,
                    rng=self._rng,
                    deadline_s=deadline_s,
                    budget=self._retry_budget,
                    failed=self._retried,
                )
        except TimeoutError:
            self.errors += 1
            raise Retryable(f"the cold store did not answer within {end_s:.0f} s; fetch again") from None
        except ThermoclineError:
            self.errors += 1
            raise

    def _retried(self, _failure: Retryable) -> None:
        self.retries += 1

    async def _run(self, key: K, run: Callable[[], Awaitable[None]]) -> None:
        # Default failure, replaced by success or a known failure, so that no reader waits for ever or retries
        # endlessly.
        outcome: ThermoclineError | None = Retryable("a cold read failed; the broker's log has the reason")
        try:
            await run()
            outcome = None
        except ThermoclineError as failure:
            outcome = failure
        except OSError as failure:
            outcome = Retryable(f"the local disk failed: {failure}")
        finally:
            if outcome is None:
                self._failures.pop(key, None)
            else:
                self._failures[key] = _Failure(outcome, self._clock.monotonic_s(), key in self.asked)
                if len(self._failures) > FAILURES_MAX:
                    self._failures.popitem(last=False)
            self.asked.discard(key)
            waiting = self._running.pop(key)
            if not waiting.done():
                waiting.set_result(None)


class ReadSlots:
    """At most `slots_max` pieces of I/O at once, holding at most `bytes_max` bytes (or one piece, if it is larger)."""

    def __init__(self, slots_max: int, bytes_max: int) -> None:
        self._slots_max = slots_max
        # Prefetch never takes the last slot, because a reader's request would then wait for a whole round trip.
        self._ahead_max = max(1, slots_max - 1)
        self._bytes_max = bytes_max
        self._taken = 0
        self._bytes = 0
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def taken(self) -> int:
        return self._taken

    def free_ahead(self) -> int:
        """Number of prefetches that may begin now."""
        return 0 if self._queue else max(0, self._ahead_max - self._taken)

    async def take(self, nbytes: int) -> None:
        """Wait for a slot, in order; `give_back` it. The caller bounds the wait."""
        if not self._queue and self._fits(nbytes):
            self._enter(nbytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, nbytes))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(nbytes)  # the slot was taken already
            else:
                self._next()  # the next request in the queue may fit
            raise

    def give_back(self, nbytes: int) -> None:
        self._taken -= 1
        self._bytes -= nbytes
        self._next()

    def _fits(self, nbytes: int) -> bool:
        return self._taken < self._slots_max and (not self._taken or self._bytes + nbytes <= self._bytes_max)

    def _enter(self, nbytes: int) -> None:
        self._taken += 1
        self._bytes += nbytes

    def _next(self) -> None:
        while self._queue:
            turn, nbytes = self._queue[0]
            if not turn.done():  # otherwise it was cancelled
                if not self._fits(nbytes):
                    return
                self._enter(nbytes)
                turn.set_result(None)
            self._queue.popleft()
