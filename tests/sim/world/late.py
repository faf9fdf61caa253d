"""Late: work that begins, or is heard of, long after it was asked for; by more than a role, a topic or a session lasts.

Owns how late what is, and what it holds back. Three kinds of work may be late: a call of a worker's lane, before its
effect and after it; a request to the store, before its effect there and on the way back; an answer of one broker to
another, on its way. Always true: a late call goes on though whoever awaited it was cancelled, killed processes
excepted; it sits in its lane's thread all the while, as a slow disk's call does, because a call that overtook another
of a lane with one thread would show what no thread pool does; one thread of a lane with several is never late, and the
only thread of a lane is in time for as long as it was late before, so that a run goes on; `calm` ends all lateness at
once: what is held goes on, in the order in which it would have. Late is counted by kind when it takes effect. Must not
know what the work is, nor why its caller may be gone.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable
from contextvars import Context

from seams.loop.workers import Lane
from seams.rng import Rng, SeededRng

NAME = "late"
LONG_S = (0.01, 0.2, 0.2, 2.0, 2.0, 8.0, 8.0, 30.0)
"""How late, at most: a few turns of the loop, a round trip, an election, a session, a topic's whole life."""
SHORT_S = (0.01, 0.2, 0.2, 2.0, 2.0, 6.0)
"""Of runs in which roles are short, so that many of them are met."""
OF_PEERS_S = (0.01, 0.2, 2.0, 8.0)
"""What comes behind a late answer on its connection waits for it."""
CHANCES = (0.01, 0.05, 0.2)
SELDOM = 8
"""A broker asks the store, and other brokers, again and again, and waits for a dozen answers of the store before it
serves: so many times seldomer than calls of workers are these late."""


class Late:
    """Of one run, for all its processes, whose clocks are one. `chance`: that a call is late; `longest_s`: how late."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: Rng, chance: float, longest_s: tuple[float, ...] = LONG_S
    ) -> None:
        self.is_on = True
        self._longest_s = longest_s
        self.hits: Counter[str] = Counter()
        self._loop = loop
        self._rng = rng
        self._chance = chance
        self._held: list[tuple[float, int, Callable[[], None], Context | None, asyncio.TimerHandle]] = []
        self._count = 0

    # --- how late ---
    def drawn_s(self, kind: str, chance: float, longest_s: tuple[float, ...] = ()) -> float:
        """Seconds, 0.0 where it is in time: one more of this kind."""
        rng = self._rng
        if not self.is_on or rng.uniform(0.0, 1.0) >= chance:
            return 0.0
        self.hits[f"{NAME}, {kind}"] += 1
        drawn = longest_s or self._longest_s
        return drawn[rng.randrange(len(drawn))] * rng.uniform(0.5, 1.0)

    def begins_s(self, lane: Lane) -> float:
        return self.drawn_s(f"{lane.value[0]} begins", self._chance)

    def is_heard_s(self, lane: Lane) -> float:
        return self.drawn_s(f"{lane.value[0]} is heard", self._chance)

    def answered_s(self) -> float:
        """An answer of a peer."""
        return self.drawn_s("peer", self._chance / SELDOM, OF_PEERS_S)

    # --- what waits ---
    def after(self, delay_s: float, go_on: Callable[[], None], context: Context | None = None) -> None:
        """Call it so much later, or when all is calm."""
        self._count += 1
        at_s = self._loop.time() + delay_s
        number = self._count

        def due() -> None:
            self._held = [held for held in self._held if held[1] != number]
            heapq.heapify(self._held)
            go_on()

        handle = self._loop.call_at(at_s, due, context=context)
        heapq.heappush(self._held, (at_s, number, go_on, context, handle))

    async def pause(self, kind: str) -> None:
        """A request to the store: as late as is drawn, or until all is calm."""
        delay_s = self.drawn_s(kind, self._chance / SELDOM)
        if delay_s == 0.0:
            return
        over: asyncio.Future[None] = self._loop.create_future()
        self.after(delay_s, lambda: over.done() or over.set_result(None))  # type: ignore[arg-type,func-returns-value]
        await over

    def calm(self) -> None:
        """No more of it, and nothing is held any longer."""
        self.is_on = False
        held, self._held = self._held, []
        while held:
            _, _, go_on, context, handle = heapq.heappop(held)
            handle.cancel()
            self._loop.call_soon(go_on, context=context)


def late_of(
    loop: asyncio.AbstractEventLoop, seed: str, chance: float, longest_s: tuple[float, ...] = LONG_S
) -> Late | None:
    """Of a run with this chance; off until its faults begin. None: nothing of it is late."""
    if not chance:
        return None
    late = Late(loop, SeededRng(f"{seed}/late"), chance, longest_s)
    late.is_on = False
    return late


def drawn_chance(seed: str, *, always: bool) -> float:
    """Of the run that a seed stands for, drawn apart: one in three has it, unless all are to."""
    rng = SeededRng(f"{seed}/late")
    has_it = rng.randrange(3) == 0
    chance = CHANCES[rng.randrange(len(CHANCES))]
    return chance if has_it or always else 0.0


class LaneLate:
    """Which calls of one process's lanes are late; see the module for how many at once."""

    def __init__(self, late: Late) -> None:
        self.late = late
        self._loop = late._loop
        self._now_late = dict.fromkeys(Lane, 0)
        self._in_time_until_s = dict.fromkeys(Lane, 0.0)

    def begins_s(self, lane: Lane) -> float:
        """How much later than in time a call begins that its thread took."""
        return self._of(lane, self.late.begins_s)

    def is_heard_s(self, lane: Lane, *, is_late: bool) -> float:
        """How much later its end is heard of; `is_late`: it began late."""
        return self.late.is_heard_s(lane) if is_late else self._of(lane, self.late.is_heard_s)

    def over(self, lane: Lane) -> None:
        """A late call left its thread."""
        self._now_late[lane] -= 1

    def _of(self, lane: Lane, drawn: Callable[[Lane], float]) -> float:
        threads, now_s = lane.value[1], self._loop.time()
        if self._now_late[lane] >= max(threads - 1, 1) or now_s < self._in_time_until_s[lane]:
            return 0.0
        delay_s = drawn(lane)
        if delay_s > 0.0:
            self._now_late[lane] += 1
            if threads == 1:
                self._in_time_until_s[lane] = now_s + 2 * delay_s
        return delay_s
