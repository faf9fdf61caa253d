"""What clients were told to be written, and by whom: noted when they hear it.

Owns the end of what was acknowledged of each partition, and when each leader epoch began. Always true: what was
acknowledged stays so until the history says that it may be lost; who acknowledges what was first sent after a leader of
a higher epoch began is a zombie (an isolated in-sync set may lawfully go on while nobody leads in a higher epoch). Must
not know disks or images.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.sim.checks.history import Loss, Place, Send


class Began(NamedTuple):
    """A process leads a partition in an epoch from then on."""

    at_s: float
    leader_epoch: int
    node: str


class Acks:
    """Of one run."""

    def __init__(self) -> None:
        self._ends: dict[Place, int] = {}
        self._lost_s: dict[Place, float] = {}
        self._began: dict[Place, list[Began]] = {}

    def end(self, place: Place) -> int:
        """Everything below was acknowledged, and nothing of it may be lost."""
        return self._ends.get(place, 0)

    def began(self, place: Place, began: Began) -> None:
        self._began.setdefault(place, []).append(began)

    def lost(self, loss: Loss) -> None:
        """What was acknowledged until then may be gone."""
        self._ends.pop(loss.place, None)
        self._lost_s[loss.place] = loss.at_s

    def acknowledged(self, send: Send) -> str:
        """Note it; what is wrong with it, if anything is."""
        if send.offset < 0:
            return ""
        if send.done_s > self._lost_s.get(send.place, -1.0):
            self._ends[send.place] = max(self._ends.get(send.place, 0), send.offset + len(send.values))
        epochs = self._began.get(send.place, [])
        own = max((began.leader_epoch for began in epochs if began.node == send.node), default=None)
        newer = [began for began in epochs if own is not None and began.leader_epoch > own]
        if newer and (first := min(newer)).at_s < send.invoked_s:
            return (
                f"zombie-visible: {send.node}, which led {send.place} in epoch {own}, acknowledged offset {send.offset}"
                f", first sent at {send.invoked_s:.3f} s; {first.node} led in epoch {first.leader_epoch} since "
                f"{first.at_s:.3f} s"
            )
        return ""
