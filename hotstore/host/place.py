"""A place of a data directory: one directory name, the log that lies there, and the blocking calls that work in it.

Owns the turn at the name and the ledger of calls. Always true: topics that follow each other under one name take turns
here, whatever their ids; a call is counted from the moment it is asked for until its thread is done, and no
cancellation takes it out: a caller that is cut off only stops waiting; once `quiesce` began, no call begins; files are
replaced or removed in the turn, after `quiesce`, with an empty ledger. Everything here runs on the loop.
Must not know what calls do, roles, topics' configs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from logformat.errors import Retryable
from logformat.values import TopicPartition
from seams.tasks import FailureReport, log_failure
from seams.workers import Lane, Workers

if TYPE_CHECKING:
    from hotstore.host.open_log import OpenLog

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

VACATED_S: Final = 30.0  # that a topic waits for the log of the topic before it to be closed; then it asks again

CALLER: Final[ContextVar[tuple[TopicPartition, bytes | None] | None]] = ContextVar("caller", default=None)
"""Of a blocking call in a place: its name, and the id of the topic whose log it works for (None: whatever lies there).
For the simulated disk, which compares it with what lies in the directory."""


class PlaceQuiesced(Retryable):
    """The log is being closed, cut or begun elsewhere: ask for its next one."""


class Place:
    """See the module. One for a name, as long as somebody has it in hand; `LogHost` makes it."""

    __slots__ = (
        "__weakref__",
        "_calls",
        "_is_quiet",
        "_report",
        "_turn",
        "_turns",
        "_vacated",
        "_workers",
        "name",
        "occupant",
    )

    def __init__(self, name: TopicPartition, workers: Workers, report: FailureReport | None = None) -> None:
        self.name = name
        self.occupant: OpenLog | None = None
        """The open log that lies here; None: none is open."""
        self._workers = workers
        self._report = report or log_failure
        self._turn = asyncio.Lock()
        self._turns: dict[asyncio.Future[Any], None] = {}
        self._calls: dict[asyncio.Future[Any], None] = {}
        self._is_quiet = False
        self._vacated: asyncio.Event | None = None  # while somebody waits for it: there are thousands of places

    # --- calls beside each other ----------------------------------------------------------------------------------

    def begin(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> asyncio.Task[T]:
        """Begin a blocking call for the log that lies here. Raises PlaceQuiesced."""
        if self._is_quiet:
            raise PlaceQuiesced(f"{self.name}: its log is being closed or replaced")
        return self._begin(function, *args, lane=lane)

    async def call(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        """`begin`, and wait for it. Raises PlaceQuiesced, and what `function` raises."""
        return await self.waited(self.begin(function, *args, lane=lane))

    def _begin(
        self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane, topic_id: bytes | None = None
    ) -> asyncio.Task[T]:
        if self.occupant is not None:
            topic_id = self.occupant.log.topic_id

        async def run() -> T:
            CALLER.set((self.name, topic_id))
            return await self._workers.run(function, *args, lane=lane)

        task = asyncio.get_running_loop().create_task(run())
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
        return task

    async def waited(self, task: asyncio.Task[T]) -> T:
        """What it returns or raises; whoever is cut off leaves it running, and its failure is reported."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._unheard)
            raise

    def _unheard(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._report(f"late call in {self.name}", failure)

    # --- alone ----------------------------------------------------------------------------------------------------

    async def alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` when it is this caller's turn at the name. Who is cut off before that has begun nothing; after it
        the work goes on to its end, and the next turn begins then."""
        has_begun = False

        async def take_turn() -> T:
            nonlocal has_begun
            async with self._turn:
                has_begun = True
                return await work()

        task = asyncio.get_running_loop().create_task(take_turn())
        self._turns[task] = None
        task.add_done_callback(self._turns.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if has_begun:
                task.add_done_callback(self._unheard)
            else:
                task.cancel()
            raise

    async def settled(self) -> None:
        """Wait until nobody has or wants the turn."""
        while self._turns:
            await asyncio.wait(tuple(self._turns))

    async def quiesce(self) -> None:
        """In the turn: begin no more calls, and wait until none runs; `resume` ends it."""
        assert self._turn.locked(), self.name
        self._is_quiet = True
        while self._calls:
            await asyncio.wait(tuple(self._calls))

    def resume(self) -> None:
        """Calls may begin again."""
        self._is_quiet = False

    async def run_alone(self, function: Callable[[*Ts], T], *args: *Ts, topic_id: bytes | None = None) -> T:
        """In the turn: a blocking call that makes, replaces or removes files, which nobody else works with. `topic_id`:
        of the topic that it works for, where no log of it is open."""
        assert self._turn.locked() and not self._calls, f"{self.name}: {len(self._calls)} calls work in it"
        assert self.occupant is None or self._is_quiet, f"{self.name} is not quiesced"
        return await self._begin(function, *args, lane=Lane.FILES, topic_id=topic_id)

    # --- the log that lies here -----------------------------------------------------------------------------------

    def occupy(self, opened: OpenLog) -> None:
        """In the turn: `opened` lies here, open, from now on."""
        assert self.occupant is None, self.name
        self.occupant = opened
        self._is_quiet = False

    def vacate(self) -> None:
        """In the turn: the log that lay here is closed."""
        self.occupant = None
        self._is_quiet = False
        if self._vacated is not None:
            self._vacated.set()
            self._vacated = None

    async def vacated_by(self, topic_id: bytes) -> None:
        """Out of turn: wait until no log of another topic than `topic_id` is open here. Raises Retryable after
        `VACATED_S`."""
        try:
            async with asyncio.timeout(VACATED_S):
                while self.occupant is not None and self.occupant.log.topic_id != topic_id:
                    self._vacated = self._vacated or asyncio.Event()
                    await self._vacated.wait()
        except TimeoutError as late:
            raise Retryable(f"{self.name}: the log of the topic that had the name before is still open") from late
