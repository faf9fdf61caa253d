"""DeleteRecords on the topics of transactions: below what is open there, into it, and beyond it (E14).

Owns where it cuts. Always true: each request goes into the history as one of any other topic does, with the offset that
it names. Must not know faults, or what becomes of a transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from tests.sim.actors import NO_ANSWER, Stage
from tests.sim.checks.history import Delete, Outcome, Place
from tests.sim.client import EARLIEST, LATEST, READ_COMMITTED, ServerError


class Trimmer:
    """Of one run. `hits` counts what was answered, by where it cut."""

    def __init__(self, stage: Stage, places: Sequence[Place], hits: Counter[str]) -> None:
        self._stage, self._places, self._hits = stage, places, hits
        self._rng = stage.rng("tx trimmer")
        self._clients = [stage.client(place) for place in places]
        self._asked: Counter[Place] = Counter()

    async def run(self) -> None:
        """Until told to stop."""
        while not self._stage.stopping.is_set():
            await asyncio.sleep(self._rng.uniform(0.2, 2.5))
            at = self._rng.randrange(len(self._places))
            try:
                await self._cut(at)
            except ServerError as failure:
                self._stage.answered(failure.code, "tx trimmer")
                self._clients[at].refused(failure.code)
            except NO_ANSWER:
                self._clients[at].drop()

    async def _cut(self, at: int) -> None:
        """Half of the time within what is open, if something is; else it takes little."""
        stage, rng = self._stage, self._rng
        place, client = self._places[at], self._clients[at]
        start = await client.list_offset(*place, EARLIEST)
        if start > self._asked[place]:
            self._hits["txn start moved by retention"] += 1
        stable = await client.list_offset(*place, LATEST, isolation=READ_COMMITTED)
        end = await client.list_offset(*place, LATEST)
        is_within = stable < end and rng.randrange(2) == 0
        offset = (
            stable + 1 + rng.randrange(end - stable) if is_within else start + rng.randrange(1 + (end - start) // 4)
        )
        self._asked[place] = max(self._asked[place], offset)
        invoked_s, outcome = stage.now(), Outcome.INFO
        try:
            await client.delete_records(*place, offset)
            outcome = Outcome.OK
            self._hits[f"txn records deleted {'into' if is_within else 'below'} what is open"] += 1
        finally:
            stage.history.add(Delete(place, offset, invoked_s, stage.now(), outcome))
