"""Reports this broker's fitness to lead to the controller, here or on another node.

A change is reported at once: directly to the own controller, or by a second heartbeat beside the parked one. A broker
that stops reports that first (R9).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.controller.decisions.fitness import FIT
from broker.membership import controlled_shutdown
from broker.membership.broker_fitness import CUT_OFF_S, BrokerFitness
from broker.membership.controller_term import ControllerTerm
from broker.membership.heartbeat import Heartbeats
from broker.metadata.cluster_root import ImageAt
from broker.metrics.outage_log import OutageLog


class FitnessReporter:
    """Of node `node_id`. `at`: the applied image. `outage`: of the bucket, for this process."""

    def __init__(
        self,
        node_id: int,
        fitness: BrokerFitness,
        heartbeats: Heartbeats,
        controller_term: ControllerTerm,
        outage: OutageLog,
        at: Callable[[], ImageAt],
    ) -> None:
        self._node_id = node_id
        self._fitness = fitness
        self._heartbeats = heartbeats
        self._controller_term = controller_term
        self._outage = outage
        self._at = at
        self._told = FIT
        fitness.watch(self.look)

    @property
    def unfit_because(self) -> str:
        """Why this broker is to lead only what no other can; empty while it may lead all."""
        return self._fitness.why

    def look(self) -> None:
        """Report what changed."""
        fitness, controller_term = self._fitness, self._controller_term
        fitness.is_cut_off = min(self._outage.seconds, self._heartbeats.heard_for_s) >= CUT_OFF_S
        now = fitness.now()
        if controller_term.is_controller and controller_term.listener is not None:
            controller_term.listener.told(self._node_id, self._at().image.nodes[self._node_id].broker_epoch, now)
        elif now != self._told:
            self._heartbeats.tell()
        self._told = now

    async def hand_over(self) -> None:
        """This broker stops: others lead what they can."""
        self._fitness.is_stopping = True
        if self._controller_term.is_controller:
            self.look()
        await controlled_shutdown.hand_over(self._controller_term, self._heartbeats)
