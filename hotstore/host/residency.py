"""Which bytes of local files may be sent now without the loop waiting for a disk (C25).

Owns a bounded memory of the pieces ("steps" of 4 MiB) of files that a worker thread found in the page cache, or brought
there, a short while ago, and the reads under way. Always true: `ready` never blocks and never touches a file; it says
yes only for bytes that were there while at most `budget_bytes` were asked for after them; one step is looked at once
however many ask for it; a failed read is reported, told to the next asker, then tried again, and from then on nobody's
word is taken for that step but a read's. Must not know segments, tiers or sockets.

A yes is a memory, not a promise of the kernel: under memory pressure a page may be gone again, and the loop then waits
for that one page. The budget is what keeps that rare: give it a fraction of the RAM that is free for the page cache.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from logformat.errors import Fenced, Retryable, ThermoclineError
from seams.disk import File
from seams.page_cache import is_cached
from seams.tasks import FailureReport, Tasks, log_failure
from seams.workers import Lane, Workers

T = TypeVar("T")

STEP_BYTES: Final = 4 << 20
BUDGET_BYTES: Final = 256 << 20
WAITING_MAX: Final = 1024  # reads queued or under way; 4 GiB of them is more than two threads should owe anybody
_STEPS_MIN: Final = 16  # one answer of fetch.max.bytes (55 MiB) must fit
_PIECE_BYTES: Final = 256 << 10

Step = tuple[str, int]  # path, number of the step; or name and number of a call


class Residency:
    """`budget_bytes`: how much is believed to stay in the page cache. `waiting_max`: reads queued or under way."""

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
        self._files: WeakValueDictionary[str, File] = WeakValueDictionary()  # whose steps these are, by path
        self._known: OrderedDict[Step, None] = OrderedDict()
        self._reading: dict[Step, asyncio.Future[None]] = {}
        self._failed: OrderedDict[Step, OSError | ThermoclineError] = OrderedDict()
        self._suspect: OrderedDict[Step, None] = OrderedDict()  # failed, and not read since

    @property
    def waiting(self) -> int:
        """Reads queued or under way."""
        return len(self._reading)

    def ready(self, file: File, position: int, length: int) -> asyncio.Future[None] | None:
        """None: `length` bytes from `position` may be sent by sendfile now. Else a future: ask again when it is done.

        The future never carries an error: what a read met (OSError) is raised by the next call for those bytes.
        Raises Retryable when too many reads wait already.
        """
        path = file.path
        if self._files.get(path) is not file:  # the path has another file since: nothing that is remembered is of it
            self._forget(path)
            self._files[path] = file
        first = position // self._step_bytes
        last = max(first, (position + length - 1) // self._step_bytes)
        # More than that would push out its own beginning; only that much is vouched for.
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
        """A call that has to come first, made once however many ask for it under (name, number) meanwhile; `name` is of
        one role of one log. Ask again when the future is done. As with `ready`, what it met (OSError, or that the log
        is taken away) is raised by the next call; anything else is reported, and is for the call's owner to remember.
        Raises Retryable when too many wait already."""
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
        """Told to the operator now, to the client at its next call."""
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
        """Cancel what waits; every future handed out is done afterwards."""
        await self._tasks.close()
        for waiting in self._reading.values():
            _finish(waiting)
        self._reading.clear()

    def _read(self, file: File, first: int, last: int) -> asyncio.Future[None]:
        """The future of the first missing step; the rest of the range is started as well, as far as there is room."""
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
        # Half of the places stay free for what somebody waits for.
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
        if waiting.cancelled():  # by somebody who shared it and gave up
            waiting = self._reading[step] = asyncio.get_running_loop().create_future()
        return waiting


def _finish(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


def _note(memory: OrderedDict[Step, T], step: Step, value: T, count_max: int) -> None:
    """Remember it as the newest; the oldest goes when there are too many."""
    memory[step] = value
    if len(memory) > count_max:
        memory.popitem(last=False)


def read_through(file: File, position: int, length: int, suspect: bool = False) -> int:
    """Blocking: read the bytes in pieces and drop them, so that they are in the page cache; how many were read.

    Nothing is read where the kernel has them, so that a log that is followed closely is read once, by sendfile; but the
    pages of a failed read count as had, so not when they are `suspect`.
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
