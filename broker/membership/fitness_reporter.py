"""Tells the controller, here or on another node, whether this broker is fit to lead partitions.

A change is reported at once: directly to a controller in this process, or by a second heartbeat beside the parked
heartbeat. A stopping broker first reports that it stops (R9).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.controller.decisions.fitness import FIT
from broker.membership import controlled_shutdown
from broker.membership.broker_fitness import CUT_OFF_S, BrokerFitness
from broker.membership.controller_term import ControllerTerm
from broker.membership.heartbeat import Heartbeats
from broker.metadata.cluster_root import ImageAt
from broker.metrics.outage_log import OutageLog


@dataclass(eq=False, repr=False)
class FitnessReporter:
    """Reports the fitness of node `node_id`. `at`: the applied image. `outage`: this process's outages of the
    bucket."""

    _node_id: int
    _fitness: BrokerFitness
    _heartbeats: Heartbeats
    _controller_term: ControllerTerm
    _outage: OutageLog
    _at: Callable[[], ImageAt]

    def __post_init__(self) -> None:
        self._reported = FIT
        self._fitness.watch(self.report)

    @property
    def unfit_because(self) -> str:
        """The reason to lead only partitions that no other broker can lead; empty while the broker is fit."""
        return self._fitness.why

    def report(self) -> None:
        fitness, controller_term = self._fitness, self._controller_term
        fitness.is_cut_off = min(self._outage.seconds, self._heartbeats.heard_for_s) >= CUT_OFF_S
        now = fitness.now()
        if controller_term.is_controller and controller_term.listener is not None:
            controller_term.listener.record_fitness(
                self._node_id, self._at().image.nodes[self._node_id].broker_epoch, now
            )
        elif now != self._reported:
            self._heartbeats.report_fitness()
        self._reported = now

    async def hand_over(self) -> None:
        self._fitness.is_stopping = True
        if self._controller_term.is_controller:
            self.report()
        await controlled_shutdown.hand_over(self._controller_term, self._heartbeats)
