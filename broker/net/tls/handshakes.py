"""TLS handshakes of one server: limits their number, orders them by address, and runs their steps in workers.

A step (a signature, 0.2 ms with P-256, 4 ms with RSA 4096) runs in `Lane.HANDSHAKE`, so the loop serves other
connections meanwhile. A session that waits for its first step holds only its ClientHello. The address with the fewest
sessions starts the next one, in turns among equals, so many sessions of one address delay another address by one step
each. Steps of started sessions come before new sessions. If all places are taken, a session of an address with few
sessions takes the place of the oldest session of the address with the most. Otherwise four silent addresses could delay
all other clients by the time of a handshake.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Final, Protocol

from seams.loop.tasks import FailureReport, Tasks, failure_of_task
from seams.loop.workers import Lane, Workers

UNDER_WAY_MAX: Final = 1_000
"""Sessions that began and are not complete: about 50 KiB each in OpenSSL."""

UNDER_WAY_PER_ADDRESS_MAX: Final = 250
STEPS_MAX: Final = 2
"""Steps at a time: the threads of the lane. Further steps wait here, so that their order is fair."""


class Handshaking(Protocol):
    """One session, hashed by identity."""

    @property
    def address(self) -> str: ...

    def step(self) -> None:
        """Take the next step, in a worker."""
        ...

    def stepped(self, failure: BaseException | None) -> None:
        """Called on the loop when the step is done, even if the session has ended."""
        ...

    def give_way(self) -> None:
        """End at once, even during a step: another address takes the place."""
        ...


class HandshakeTurns:
    """Decides which session may take its next step. Pure."""

    def __init__(self, under_way_max: int = UNDER_WAY_MAX, per_address_max: int = UNDER_WAY_PER_ADDRESS_MAX) -> None:
        self._under_way_max = under_way_max
        self._per_address_max = per_address_max
        self._continuing: dict[Handshaking, None] = {}
        self._starting: dict[str, dict[Handshaking, None]] = {}  # by address, in the order of their turns
        self._under_way: dict[Handshaking, None] = {}
        self._of_address: Counter[str] = Counter()

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        return len(self._continuing) + sum(map(len, self._starting.values()))

    def ask(self, session: Handshaking) -> None:
        """The session has bytes for a step."""
        if session in self._under_way:
            self._continuing[session] = None
        else:
            self._starting.setdefault(session.address, {})[session] = None

    def next(self) -> Handshaking | None:
        """The next session in turn, if a step may run now."""
        for session in self._continuing:
            del self._continuing[session]
            return session
        if len(self._under_way) >= self._under_way_max:
            return None
        address = self._next_address()
        if address is None or self._of_address[address] >= self._per_address_max:
            return None
        sessions = self._starting.pop(address)
        session = next(iter(sessions))
        del sessions[session]
        if sessions:
            self._starting[address] = sessions  # the address now waits behind the other addresses
        self._under_way[session] = None
        self._of_address[address] += 1
        return session

    def _next_address(self) -> str | None:
        """The waiting address with the fewest sessions; of several, the one that waited longest. The search ends at the
        first address without a session. Each address before it has a session, so there are at most as many as
        places."""
        address = next((address for address in self._starting if not self._of_address[address]), None)
        return min(self._starting, key=self._of_address.__getitem__, default=None) if address is None else address

    def crowded_out(self) -> Handshaking | None:
        """Free a place for an address that waits, if all are taken and another address has at least two more. Returns
        the session that loses its place."""
        if len(self._under_way) < self._under_way_max or not (self._under_way and self._starting):
            return None
        ((crowd, most),) = self._of_address.most_common(1)
        address = self._next_address()
        if address is None or self._of_address[address] + 2 > most:
            return None
        oldest = next(session for session in self._under_way if session.address == crowd)
        self.leave(oldest)
        return oldest

    def leave(self, session: Handshaking) -> None:
        """The handshake is complete, or the session is over."""
        if session in self._under_way:
            del self._under_way[session]
            self._continuing.pop(session, None)
            self._of_address[session.address] -= 1
            if not self._of_address[session.address]:
                del self._of_address[session.address]
        elif session in (starting := self._starting.get(session.address, {})):
            del starting[session]
            if not starting:
                del self._starting[session.address]


class Handshakes:
    """Runs steps in `workers`."""

    def __init__(self, workers: Workers, report: FailureReport, turns: HandshakeTurns | None = None) -> None:
        self._workers = workers
        self._tasks = Tasks(report)
        self._steps = 0
        self.turns = turns or HandshakeTurns()

    def ask(self, session: Handshaking) -> None:
        self.turns.ask(session)
        if (crowded_out := self.turns.crowded_out()) is not None:
            crowded_out.give_way()
        self._go_on()

    def leave(self, session: Handshaking) -> None:
        self.turns.leave(session)
        self._go_on()

    async def close(self) -> None:
        await self._tasks.close()

    def _go_on(self) -> None:
        while self._steps < STEPS_MAX and (session := self.turns.next()) is not None:
            self._steps += 1
            work = self._workers.run(session.step, lane=Lane.HANDSHAKE)
            self._tasks.spawn_with_callback("handshake", work, partial(self._done, session))

    def _done(self, session: Handshaking, step: asyncio.Future[None]) -> None:
        self._steps -= 1
        try:
            session.stepped(failure_of_task(step))
        finally:
            self._go_on()
