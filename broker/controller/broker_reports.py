"""What sessions say of themselves, as one controller heard it last: how fit they are, and which logs they lost. Pure.

Always true: what is kept is of sessions that the image has; a log is undecided from the moment its loss was told until
a row says so, and again when it is lost anew, however soon that is. Must not know heartbeats, nor what follows.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.controller.decisions.fitness import FIT, Fitness
from broker.controller.decisions.registrations import SessionId
from broker.metadata.image import ClusterImage
from broker.metadata.records import LogPlace


class BrokerReports:
    """Of one controller epoch."""

    def __init__(self) -> None:
        self._fitness: dict[SessionId, Fitness] = {}
        self._undecided: dict[SessionId, set[LogPlace]] = {}

    def clear(self) -> None:
        """Another one decides."""
        self._fitness.clear()
        self._undecided.clear()

    def obey(self, image: ClusterImage) -> None:
        """The image is this: who has no session there says nothing any more."""
        for session in [session for session in self._fitness if not image.has_session(*session)]:
            del self._fitness[session]
            self._undecided.pop(session, None)

    def hear(self, session: SessionId, fitness: Fitness) -> bool:
        """It says so; whether that is new."""
        before = self._fitness.get(session, FIT)
        self._fitness[session] = fitness
        if fitness == before:
            return False
        lost = set(fitness.lost_logs)
        self._undecided[session] = (self._undecided.get(session, set()) & lost) | (lost - set(before.lost_logs))
        return True

    def has_spoken(self, session: SessionId) -> bool:
        """Whether this controller heard it."""
        return session in self._fitness

    def said(self, image: ClusterImage) -> dict[int, Fitness]:
        """Of the sessions that `image` has, what those that spoke say, by node id."""
        return {session[0]: fitness for session, fitness in self._fitness.items() if image.has_session(*session)}

    def unfit(self, image: ClusterImage) -> dict[int, Fitness]:
        """Of the sessions that `image` has, those that are not to lead all that they could, by node id."""
        return {node_id: fitness for node_id, fitness in self.said(image).items() if not fitness.may_lead_all}

    @property
    def with_lost(self) -> list[SessionId]:
        """Sessions that lost logs of which nothing is decided."""
        return [session for session, places in self._undecided.items() if places]

    def take_lost(self, session: SessionId) -> frozenset[LogPlace]:
        """Logs of it that are to be decided about; those of which nothing came true are given back (`undecided`)."""
        return frozenset(self._undecided.pop(session, ()))

    def undecided(self, session: SessionId, places: Iterable[LogPlace]) -> None:
        """To be asked about again, unless it says by now that it has them."""
        if (fitness := self._fitness.get(session)) is not None:
            self._undecided.setdefault(session, set()).update(set(places) & set(fitness.lost_logs))
