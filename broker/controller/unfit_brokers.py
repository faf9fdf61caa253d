"""Acts on brokers' health reports: unfit leaders hand over, lost logs leave in-sync sets, waiting reassignments
complete.

Each new image and each new report is checked. A failed commit is retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.controller.commit_queue import CommitQueue
from broker.controller.decisions import fitness as fitnesses
from broker.controller.decisions import reassignments, registrations
from broker.controller.decisions.fitness import FIT, Fitness
from broker.controller.decisions.registrations import SessionId
from broker.metadata.image import ClusterImage
from broker.metadata.records import LogPlace
from logformat.errors import ThermoclineError


class BrokerReports:
    """Reports of sessions to one controller: health, and lost logs. A lost log stays pending until a partition row
    removes the replica. A second loss makes it pending again."""

    def __init__(self) -> None:
        self._fitness: dict[SessionId, Fitness] = {}
        self._pending: dict[SessionId, set[LogPlace]] = {}

    def clear(self) -> None:
        self._fitness.clear()
        self._pending.clear()

    def apply_image(self, image: ClusterImage) -> None:
        """Apply a new image: drop the reports of sessions that ended."""
        for session in [session for session in self._fitness if not image.has_session(*session)]:
            del self._fitness[session]
            self._pending.pop(session, None)

    def record(self, session: SessionId, fitness: Fitness) -> bool:
        """Record a report. Returns whether it is new."""
        before = self._fitness.get(session, FIT)
        self._fitness[session] = fitness
        if fitness == before:
            return False
        lost = set(fitness.lost_logs)
        self._pending[session] = (self._pending.get(session, set()) & lost) | (lost - set(before.lost_logs))
        return True

    def has_reported(self, session: SessionId) -> bool:
        return session in self._fitness

    def fitness(self, image: ClusterImage) -> dict[int, Fitness]:
        """The reports of the sessions of `image`, by node id."""
        return {session[0]: fitness for session, fitness in self._fitness.items() if image.has_session(*session)}

    def unfit(self, image: ClusterImage) -> dict[int, Fitness]:
        """The sessions of `image` that should not lead every partition, by node id."""
        return {node_id: fitness for node_id, fitness in self.fitness(image).items() if not fitness.may_lead_all}

    @property
    def with_lost_logs(self) -> list[SessionId]:
        return [session for session, places in self._pending.items() if places]

    def take_lost_logs(self, session: SessionId) -> frozenset[LogPlace]:
        """Take the pending lost logs of a session, to decide on them. The caller passes logs that got no new row to
        `restore_lost_logs`."""
        return frozenset(self._pending.pop(session, ()))

    def restore_lost_logs(self, session: SessionId, places: Iterable[LogPlace]) -> None:
        """Make these logs pending again, except logs that the session's newest report no longer counts as lost."""
        if (fitness := self._fitness.get(session)) is not None:
            self._pending.setdefault(session, set()).update(set(places) & set(fitness.lost_logs))


log = logging.getLogger(__name__)

_REFUSED_S: Final = 1.0  # wait after a failed commit, before the next try


class UnfitBrokers:
    """The controller's actions on health reports, active while this broker is the controller. `wake` is called when
    there is something to decide at once."""

    def __init__(self, commit_queue: CommitQueue, wake: Callable[[], None]) -> None:
        self._commit_queue = commit_queue
        self._wake = wake
        self._image = ClusterImage()
        self.reports = BrokerReports()
        self.is_done = True
        """Set while no unfit broker leads a partition that a fitter one could lead, and no reassignment waits for a
        received report."""

    def clear(self) -> None:
        self.reports.clear()

    def apply_image(self, image: ClusterImage) -> None:
        self._image = image
        self.is_done = False
        self.reports.apply_image(image)

    def record(self, session: SessionId, fitness: Fitness) -> bool:
        """Record the health report of a session. Returns whether it is new."""
        is_first = not self.reports.has_reported(session)
        is_new = self.reports.record(session, fitness)
        if is_first or is_new:  # a reassignment may wait for this report
            self.is_done = False
            self._wake()
        if not is_new:
            return False
        if fitness.may_lead_all:
            log.info("broker %d is fit to lead again", session[0])
        else:
            what = "anything" if fitness.unfit_all else f"{len(fitness.unfit)} partitions whose logs failed there"
            log.warning("broker %d is unfit to lead %s", session[0], what)
        return True

    async def act(self) -> bool:
        """Move leaderships off unfit brokers and complete reassignments that waited for a report. Returns whether all
        of this is done."""
        self.is_done = True  # false again if a report or an image arrives meanwhile
        try:
            await self._remove_lost_logs()
            if self.reports.unfit(self._image) or fitnesses.waits(self._image):
                await self._commit_queue.decide(lambda image: fitnesses.moved(image, self.reports.unfit(image)))
            if reassignments.over(self._image, self.reports.fitness(self._image)).records:
                await self._commit_queue.decide(lambda image: reassignments.over(image, self.reports.fitness(image)))
        except (ThermoclineError, OSError) as refused:
            self.is_done = False
            log.warning("unfit brokers keep leading for now: %s", refused)
            await asyncio.sleep(_REFUSED_S)
        return self.is_done

    async def _remove_lost_logs(self) -> None:
        """Remove brokers from the in-sync sets of the logs that they lost while running, once for each loss (R18)."""
        for session in self.reports.with_lost_logs:
            places = self.reports.take_lost_logs(session)
            decided = frozenset[LogPlace]()
            try:
                decided = await self._commit_queue.decide(
                    partial(registrations.lost_logs, session=session, places=places)
                )
            finally:
                self.reports.restore_lost_logs(session, places - decided)
