"""How fit this broker is to lead, told to whoever decides, which may be this process itself.

Owns what was told last. Always true: what is new is told at once, to the controller's own ears or behind the heartbeat
that is parked; a broker that stops says so first (R9). Must not know what makes a broker unfit (fitness), but for how
long the bucket has been away from it alone; nor what follows (controller.fitness).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.controller.fitness import FIT
from broker.membership import leaving
from broker.membership.fitness import CUT_OFF_S, OwnFitness
from broker.membership.heartbeat import Heartbeats
from broker.membership.reign import Reign
from broker.metadata.cluster_root import ImageAt
from broker.outage import Outage


class Telling:
    """Of node `node_id`. `at`: the image obeyed now; `outage`: of the bucket, as this process finds it."""

    def __init__(
        self,
        node_id: int,
        fitness: OwnFitness,
        heartbeats: Heartbeats,
        reign: Reign,
        outage: Outage,
        at: Callable[[], ImageAt],
    ) -> None:
        self._node_id = node_id
        self._fitness = fitness
        self._heartbeats = heartbeats
        self._reign = reign
        self._outage = outage
        self._at = at
        self._told = FIT
        fitness.watch(self.look)

    @property
    def unfit_because(self) -> str:
        """Why this broker is to lead only what no other can; empty while it may lead all."""
        return self._fitness.why

    def look(self) -> None:
        """What is new about it is told at once."""
        fitness, reign = self._fitness, self._reign
        fitness.is_cut_off = min(self._outage.seconds, self._heartbeats.heard_for_s) >= CUT_OFF_S
        now = fitness.now()
        if reign.is_controller and reign.ruling is not None:
            reign.ruling.told(self._node_id, self._at().image.nodes[self._node_id].broker_epoch, now)
        elif now != self._told:
            self._heartbeats.tell()
        self._told = now

    async def hand_over(self) -> None:
        """This broker stops: others lead what they can."""
        self._fitness.is_stopping = True
        if self._reign.is_controller:
            self.look()
        await leaving.hand_over(self._reign, self._heartbeats)
