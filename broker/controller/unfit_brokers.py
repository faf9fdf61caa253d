"""What follows from what brokers say of themselves: who is unfit hands over, lost logs leave sets, moves are over.

Owns what was told, and whether all of it was decided about. Always true: how fit brokers are to lead is known from
their own words alone, and of this controller epoch; an image that comes, or a word that is new, is looked at again;
what could not be committed is tried again. Must not know heartbeats, sessions, nor when it is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.controller.broker_reports import BrokerReports
from broker.controller.commit_queue import CommitQueue
from broker.controller.decisions import fitness as fitnesses
from broker.controller.decisions import reassignments, registrations
from broker.controller.decisions.fitness import Fitness
from broker.controller.decisions.registrations import SessionId
from broker.metadata.image import ClusterImage
from broker.metadata.records import LogPlace
from logformat.errors import ThermoclineError

log = logging.getLogger(__name__)

_REFUSED_S: Final = 1.0  # after a commit that failed, before the next try


class UnfitBrokers:
    """Of one broker, while it is the controller. `wake` is called when there is something to settle at once."""

    def __init__(self, commit_queue: CommitQueue, wake: Callable[[], None]) -> None:
        self._commit_queue = commit_queue
        self._wake = wake
        self._image = ClusterImage()
        self.told = BrokerReports()
        self.is_settled = True
        """Nobody unfit leads what somebody fitter could, and no move waits for a word that was said."""

    def clear(self) -> None:
        """Another one decides."""
        self.told.clear()

    def obey(self, image: ClusterImage) -> None:
        """The image is this."""
        self._image = image
        self.is_settled = False
        self.told.obey(image)

    def hear(self, session: SessionId, fitness: Fitness) -> bool:
        """This session says how fit it is to lead; whether that is new."""
        is_first = not self.told.has_spoken(session)
        is_new = self.told.hear(session, fitness)
        if is_first or is_new:  # a move may wait for its word
            self.is_settled = False
            self._wake()
        if not is_new:
            return False
        if fitness.may_lead_all:
            log.info("broker %d is fit to lead again", session[0])
        else:
            what = "anything" if fitness.unfit_all else f"{len(fitness.unfit)} partitions whose logs failed there"
            log.warning("broker %d is unfit to lead %s", session[0], what)
        return True

    async def settle(self) -> bool:
        """Let fitter brokers lead what unfit ones do, where there are any, and moves be over that waited for them;
        whether nothing is left to settle."""
        self.is_settled = True  # but for what is said, and for an image that comes, meanwhile
        try:
            await self._settle_lost()
            if self.told.unfit(self._image) or fitnesses.waits(self._image):
                await self._commit_queue.decide(lambda image: fitnesses.moved(image, self.told.unfit(image)))
            if reassignments.over(self._image, self.told.said(self._image)).records:
                await self._commit_queue.decide(lambda image: reassignments.over(image, self.told.said(image)))
        except (ThermoclineError, OSError) as refused:
            self.is_settled = False
            log.warning("unfit brokers lead on for now: %s", refused)
            await asyncio.sleep(_REFUSED_S)
        return self.is_settled

    async def _settle_lost(self) -> None:
        """Take brokers out of the in-sync sets of the logs that they lost while they run, once each (R18)."""
        for session in self.told.with_lost:
            places = self.told.take_lost(session)
            decided = frozenset[LogPlace]()
            try:
                decided = await self._commit_queue.decide(
                    partial(registrations.lost_logs, session=session, places=places)
                )
            finally:
                self.told.undecided(session, places - decided)
