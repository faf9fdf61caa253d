"""Tracks which bytes of local files are in the page cache, so that sendfile does not block the loop on a disk (C25).

It remembers steps of 4 MiB that a worker recently found in the page cache or read into it, and the running reads.
`ready` never blocks or touches a file. It answers yes only if at most `budget_bytes` were requested since the bytes
were read. Concurrent callers share one read of each step. A failed read is reported, and the next caller gets its
error. Then the step is read again, even if its pages look cached. Under memory pressure the kernel may still evict a
page, and the loop then waits for the disk. The budget should be a fraction of the RAM that is free for the page cache.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from logformat.errors import Fenced, Retryable, ThermoclineError
from seams.files.disk import File
from seams.files.page_cache import is_cached
from seams.loop.tasks import FailureReport, Tasks, log_failure
from seams.loop.workers import Lane, Workers

T = TypeVar("T")

STEP_BYTES: Final = 4 << 20
BUDGET_BYTES: Final = 256 << 20
WAITING_MAX: Final = 1024  # queued and running reads: 4 GiB for two threads
_STEPS_MIN: Final = 16  # room for one answer of fetch.max.bytes (55 MiB)
_PIECE_BYTES: Final = 256 << 10

Step = tuple[str, int]  # path and number of the step, or name and number of a call


class Residency:
    """The residency of one broker's files. `budget_bytes`: bytes that are assumed to stay in the page cache.
    `waiting_max`: most reads that may be queued or running."""

    def __init__(
        self,
        workers: Workers,
        budget_bytes: int = BUDGET_BYTES,
        *,
        step_bytes: int = STEP_BYTES,
        waiting_max: int = WAITING_MAX,
        report: FailureReport | None = None,
    ) -> None:
        self._workers = workers
        self._step_bytes = step_bytes
        self._steps_max = max(_STEPS_MIN, budget_bytes // step_bytes)
        self._waiting_max = waiting_max
        self._report = report or log_failure
        self._tasks = Tasks(report, bound=2 * waiting_max)
        self._files: WeakValueDictionary[str, File] = WeakValueDictionary()  # file of the remembered steps, by path
        self._known: OrderedDict[Step, None] = OrderedDict()
        self._reading: dict[Step, asyncio.Future[None]] = {}
        self._failed: OrderedDict[Step, OSError | ThermoclineError] = OrderedDict()
        self._suspect: OrderedDict[Step, None] = OrderedDict()  # steps whose read failed and was not repeated yet

    @property
    def waiting(self) -> int:
        """Number of queued and running reads."""
        return len(self._reading)

    def ready(self, file: File, position: int, length: int) -> asyncio.Future[None] | None:
        """None if `length` bytes from `position` may be sent by sendfile now. Otherwise a future: the caller calls
        again when it is done. The future never has an error. The next call for those bytes raises the OSError of the
        read. Raises Retryable if too many reads wait."""
        path = file.path
        if self._files.get(path) is not file:  # the known steps belong to an old file of this path
            self._forget(path)
            self._files[path] = file
        first = position // self._step_bytes
        last = max(first, (position + length - 1) // self._step_bytes)
        # A longer range would evict its own first steps.
        last = min(last, first + self._steps_max - 1)
        known = self._known
        missing = None
        for number in range(first, last + 1):
            step = (path, number)
            if step in known:
                known.move_to_end(step)
            elif missing is None:
                missing = number
        if missing is None:
            self._read_ahead(file, last + 1)
            return None
        return self._read(file, missing, last)

    def once(self, name: str, number: int, call: Callable[[], Coroutine[None, None, None]]) -> asyncio.Future[None]:
        """Run `call` once for all concurrent callers with the same (name, number); `name` belongs to one role of one
        log. The caller calls again when the future is done. The next call raises the call's OSError, or its error that
        the log was removed. Other errors are only reported. Raises Retryable if too many calls wait."""
        key = (name, number)
        failure = self._failed.pop(key, None)
        if failure is not None:
            raise failure
        if key not in self._reading:
            self._check_room(name)
            self._begin(key, f"{name} {number}", self._call(key, call))
        return self._future(key)

    async def _call(self, key: Step, call: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await call()
        except OSError as failure:
            self._met(key, failure)
        except (Fenced, Retryable) as gone:
            _note(self._failed, key, gone, self._waiting_max)
        finally:
            waiting = self._reading.pop(key, None)
            if waiting is not None:
                _finish(waiting)

    def _met(self, step: Step, failure: OSError) -> None:
        self._report(f"read of {step[0]} {step[1]}", failure)
        _note(self._failed, step, failure, self._waiting_max)

    def _check_room(self, what: str) -> None:
        if len(self._reading) >= self._waiting_max:
            raise Retryable(f"{what}: {self._waiting_max} reads of old segments wait already; fetch again")

    def _forget(self, path: str) -> None:
        for memory in (self._known, self._failed, self._suspect):
            for step in [step for step in memory if step[0] == path]:
                del memory[step]

    async def close(self) -> None:
        """Cancel waiting reads. After this every returned future is done."""
        await self._tasks.close()
        for waiting in self._reading.values():
            _finish(waiting)
        self._reading.clear()

    def _read(self, file: File, first: int, last: int) -> asyncio.Future[None]:
        """Start to read the range, as far as there is room. Returns the future of the first missing step."""
        path = file.path
        for number in range(first, last + 1):
            failure = self._failed.pop((path, number), None)
            if failure is not None:
                raise failure
        if (path, first) not in self._reading:
            self._check_room(path)
        for number in range(first, last + 1):
            self._start(file, number)
        return self._future((path, first))

    def _read_ahead(self, file: File, number: int) -> None:
        # Half of the slots stay free for reads for which a request waits.
        if len(self._reading) < self._waiting_max // 2:
            self._start(file, number)

    def _start(self, file: File, number: int) -> None:
        step = (file.path, number)
        if step in self._known or step in self._reading or len(self._reading) >= self._waiting_max:
            return
        self._begin(step, f"read in {file.path}", self._bring_in(file, step))

    def _begin(self, step: Step, name: str, work: Coroutine[None, None, None]) -> None:
        try:
            self._tasks.spawn(name, work)
        except RuntimeError as refused:
            raise Retryable(f"{refused}; fetch again") from refused
        self._reading[step] = asyncio.get_running_loop().create_future()

    async def _bring_in(self, file: File, step: Step) -> None:
        position = step[1] * self._step_bytes
        try:
            await self._workers.run(
                read_through, file, position, self._step_bytes, step in self._suspect, lane=Lane.HOT_READ
            )
        except OSError as failure:
            if self._files.get(file.path) is file:
                self._met(step, failure)
                _note(self._suspect, step, None, self._waiting_max)
        else:
            if self._files.get(file.path) is file:
                self._suspect.pop(step, None)
                _note(self._known, step, None, self._steps_max)
        finally:
            waiting = self._reading.pop(step, None)
            if waiting is not None:
                _finish(waiting)

    def _future(self, step: Step) -> asyncio.Future[None]:
        waiting = self._reading[step]
        if waiting.cancelled():  # another caller that shares the future cancelled it
            waiting = self._reading[step] = asyncio.get_running_loop().create_future()
        return waiting


def _finish(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _note(memory: OrderedDict[Step, T], step: Step, value: T, count_max: int) -> None:
    """Remember `step` as the newest. Above `count_max` the oldest step is dropped."""
    memory[step] = value
    if len(memory) > count_max:
        memory.popitem(last=False)


def read_through(file: File, position: int, length: int, suspect: bool = False) -> int:
    """Bring the bytes into the page cache by reading them in pieces. Blocking. Returns the number of bytes read.

    Bytes that are cached already are not read. The end of a log is usually cached, so it is not read twice for readers
    near the end. Pages of a failed read look cached, so `suspect` bytes are always read.
    """
    descriptor = None if suspect else file.descriptor()
    if descriptor is not None and is_cached(descriptor, position, min(length, file.size() - position)):
        return 0
    scratch = memoryview(bytearray(min(_PIECE_BYTES, length)))
    end = position + length
    at = position
    while at < end:
        piece = scratch[: min(len(scratch), end - at)]
        got = file.read_into(at, piece)
        at += got
        if got < len(piece):
            break
    return at - position
