"""All machines of a cluster lose power at one moment, a few times in a run, among all that breaks some of them.

Owns that one fault, drawn from a stream of its own, so that a seed breaks and shapes everything else as it does without
it. Always true: machines whose broker is down lose power too; each keeps of what it did not sync what is drawn for it,
and has power again in its own time; with `sync` nothing may be lost by it, with `os` what the bucket does not hold.
"""

from __future__ import annotations

import asyncio
from functools import partial

from seams.rng import SeededRng
from tests.sim.nemesis import KEEPS
from tests.sim.several.faults.kinds import Times
from tests.sim.several.fleet import Fleet
from tests.sim.several.run import SeveralBrokers, Shape, simulate_beside

NAME = "power cut, all machines"


class Blackouts(SeveralBrokers):
    """The acts of one run."""

    def __init__(self, shape: Shape, fleet: Fleet) -> None:
        super().__init__(shape, fleet)
        self._sync, self._duration_s = shape.sync, shape.duration_s
        self._drawn = SeededRng(f"power/{shape.seed}/cuts")

    async def break_things(self) -> None:
        async with asyncio.TaskGroup() as breaking:
            breaking.create_task(super().break_things())
            breaking.create_task(self._cut_now_and_then())

    async def _cut_now_and_then(self) -> None:
        """From one to three times."""
        rng, pauses_s = self._drawn, self._duration_s / 4
        for _ in range(1 + rng.randrange(3)):
            await asyncio.sleep(rng.uniform(0.2, 1.3) * pauses_s)
            if self._stage.stopping.is_set():
                return
            await self._cut()

    async def _cut(self) -> None:
        """A request that is under way to the bucket may still land."""
        fleet, losses, rng = self._fleet, self._losses, self._drawn
        self._nemesis.note(NAME)
        down = Times().down
        together_s = rng.uniform(*down[rng.randrange(len(down))])
        for seat in fleet.seats:
            seat.back_at_s = self._stage.now() + together_s + rng.uniform(*down[rng.randrange(2)])
            seat.blank = seat.blank or not self._sync
            fleet.cut_power(seat, KEEPS[rng.randrange(len(KEEPS))], rng)
        self._nemesis.hits[f"{NAME}, {'sync' if self._sync else 'os'}"] += 1
        if not self._sync:
            for seat in fleet.seats:
                await losses.lose(seat, NAME)


simulate = partial(simulate_beside, "power", Blackouts)
"""As `several.run.simulate`, with no power anywhere now and then."""
