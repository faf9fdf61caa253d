"""Freshness of this broker's image and session: the last times at which the image was proved to be the newest, and the
session to be live (R23, R25).

Each time is that of *sending* a request, not of its response. A "store away" response keeps a session and does not
prove freshness. The controller is in session while no other broker can have claimed. A lone broker is always in
session.
"""

from __future__ import annotations

from broker.membership.controller_term import ControllerTerm
from broker.membership.heartbeat import Heartbeats
from seams.clock import Clock


class ImageFreshness:
    """Freshness of a process's image and session. Times are seconds of the boot clock; −inf: no response yet."""

    def __init__(self, clock: Clock, session_s: float) -> None:
        self._clock = clock
        self._session_s = session_s
        self._controller_term: ControllerTerm | None = None
        self._heartbeats: Heartbeats | None = None
        self.polled_s = float("-inf")  # when the last answered poll of `cluster.json` was sent
        self.is_alone = False  # whether the image has no other broker

    def follow(self, controller_term: ControllerTerm, heartbeats: Heartbeats) -> None:
        self._controller_term, self._heartbeats = controller_term, heartbeats

    @property
    def confirmed_s(self) -> float:
        """Time of the last proof that the applied image is the newest (R23): the time at which a request was sent. The
        request is a poll of `cluster.json`, or a heartbeat to a controller that bumps its lease."""
        heard_s = float("-inf") if self._heartbeats is None else self._heartbeats.fresh_s
        return max(self.polled_s, heard_s)

    @property
    def heartbeat_s(self) -> float:
        """Time at which the last answered heartbeat was sent, "store away" included."""
        return float("-inf") if self._heartbeats is None else self._heartbeats.answered_s

    @property
    def is_in_session(self) -> bool:
        """Whether no other broker can lead this broker's partitions yet (R25). The session timeout counts from the
        sending of the last answered heartbeat, "store away" included. The controller counts from the *arrival*, which
        is later. A claim ends the session of the replaced controller at once."""
        listener = (
            None
            if self._controller_term is None or not self._controller_term.is_controller
            else self._controller_term.listener
        )
        if listener is None:
            return self._clock.boottime_s() - self.heartbeat_s < self._session_s
        return self.is_alone or not listener.is_disputed
