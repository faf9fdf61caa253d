"""A place of a data directory: one directory name, its open log, and the blocking calls that work in it.

Successive topics of the same name take turns here. A call lasts until its thread is done, even if its caller is
cancelled. After `quiesce` no call begins. Files are replaced or removed in the turn, after `quiesce`, while no call
runs. All methods run on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from logformat.errors import Retryable
from logformat.values import TopicPartition
from seams.loop.tasks import FailureReport, log_failure
from seams.loop.workers import Lane, Workers

if TYPE_CHECKING:
    from hotstore.host.open_log import OpenLog

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

VACATED_S: Final = 30.0  # longest wait of a topic until the log of the previous topic is closed

CALLER: Final[ContextVar[tuple[TopicPartition, bytes | None] | None]] = ContextVar("caller", default=None)
"""Name of a blocking call in a place, and the id of its topic (None: any log there). The simulated disk compares the id
with the directory's content."""


class PlaceQuiesced(Retryable):
    """The log is being closed, truncated or restarted. The caller has to get the new state and try again."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Place:
    """The place of one name. `LogHost` creates it, and it exists while it is referenced."""

    name: TopicPartition
    workers: Workers
    report: FailureReport = log_failure
    occupant: OpenLog | None = None
    """The open log here; None: none is open."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _turns: dict[asyncio.Future[Any], None] = field(default_factory=dict)
    _calls: dict[asyncio.Future[Any], None] = field(default_factory=dict)
    _is_quiet: bool = False
    _vacated: asyncio.Event | None = None  # exists only while a caller waits, because there are thousands of places

    # --- concurrent calls -----------------------------------------------------------------------------------------

    def begin(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> asyncio.Task[T]:
        """Begin a blocking call for the log here. Raises PlaceQuiesced."""
        if self._is_quiet:
            raise PlaceQuiesced(f"{self.name}: its log is being closed or replaced")
        return self._begin(function, *args, lane=lane)

    async def call(self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane = Lane.FILES) -> T:
        """Begin a blocking call and wait for it. Raises PlaceQuiesced, and the errors of `function`."""
        return await self.wait_for(self.begin(function, *args, lane=lane))

    def _begin(
        self, function: Callable[[*Ts], T], *args: *Ts, lane: Lane, topic_id: bytes | None = None
    ) -> asyncio.Task[T]:
        if self.occupant is not None:
            topic_id = self.occupant.log.topic_id

        async def run() -> T:
            CALLER.set((self.name, topic_id))
            return await self.workers.run(function, *args, lane=lane)

        task = asyncio.get_running_loop().create_task(run())
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
        return task

    async def wait_for(self, task: asyncio.Task[T]) -> T:
        """Wait for the task. If the caller is cancelled, the task continues, and its failure is reported."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._report_late_failure)
            raise

    def _report_late_failure(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or (failure := task.exception()) is None:
            return
        if not isinstance(failure, Retryable):  # a refusal that nobody waits for any more
            self.report(f"late call in {self.name}", failure)

    # --- alone ----------------------------------------------------------------------------------------------------

    async def alone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` in the caller's turn. If the caller is cancelled before its turn, `work` does not begin. If it is
        cancelled later, `work` continues to its end before the next turn begins."""
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
                task.add_done_callback(self._report_late_failure)
            else:
                task.cancel()
            raise

    async def settled(self) -> None:
        """Wait until no turn is taken or waited for."""
        while self._turns:
            await asyncio.wait(tuple(self._turns))

    async def quiesce(self) -> None:
        """Allow no new calls until `resume`, and wait until none runs. The caller holds the turn."""
        assert self._turn.locked(), self.name
        self._is_quiet = True
        while self._calls:
            await asyncio.wait(tuple(self._calls))

    def resume(self) -> None:
        """Allow new calls again."""
        self._is_quiet = False

    async def run_alone(self, function: Callable[[*Ts], T], *args: *Ts, topic_id: bytes | None = None) -> T:
        """Run a blocking call that makes, replaces or removes files, while no other call runs. The caller holds the
        turn. `topic_id`: the topic that the call works for, if no log of that topic is open."""
        assert self._turn.locked() and not self._calls, f"{self.name}: {len(self._calls)} calls are still running in it"
        assert self.occupant is None or self._is_quiet, f"{self.name} is not quiesced"
        return await self._begin(function, *args, lane=Lane.FILES, topic_id=topic_id)

    # --- the open log ---------------------------------------------------------------------------------------------

    def occupy(self, opened: OpenLog) -> None:
        """Make `opened` the open log of this place. The caller holds the turn."""
        assert self.occupant is None, self.name
        self.occupant = opened
        self._is_quiet = False

    def vacate(self) -> None:
        """Note that the log of this place was closed. The caller holds the turn."""
        self.occupant = None
        self._is_quiet = False
        if self._vacated is not None:
            self._vacated.set()
            self._vacated = None

    async def wait_vacated(self, topic_id: bytes) -> None:
        """Wait until no log of another topic is open here. The caller does not hold the turn. Raises Retryable after
        `VACATED_S`."""
        try:
            async with asyncio.timeout(VACATED_S):
                while self.occupant is not None and self.occupant.log.topic_id != topic_id:
                    self._vacated = self._vacated or asyncio.Event()
                    await self._vacated.wait()
        except TimeoutError as late:
            raise Retryable(f"{self.name}: the log of the topic that had the name before is still open") from late
