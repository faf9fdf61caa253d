"""When this broker last knew that what it obeys is the newest image, and that it is in session (R23, R25).

Owns two moments, and what either rests on. Always true: a moment is when a question was *sent*, never when its answer
came; "store away" keeps a session and says nothing of how fresh an image is; the controller is in session while nobody
can have claimed, and alone always. Must not know what an age means for whoever reads it.
"""

from __future__ import annotations

from broker.membership.controller_term import ControllerTerm
from broker.membership.heartbeat import Heartbeats
from seams.clock import Clock


class ImageFreshness:
    """Of one process. All is in seconds of the boot clock; −inf: nothing was answered yet."""

    def __init__(self, clock: Clock, session_s: float) -> None:
        self._clock = clock
        self._session_s = session_s
        self._controller_term: ControllerTerm | None = None
        self._heartbeats: Heartbeats | None = None
        self.polled_s = float("-inf")
        """When the last poll of `cluster.json` was sent that was answered."""
        self.is_alone = False
        """Whether the image has no other broker."""

    def follow(self, controller_term: ControllerTerm, heartbeats: Heartbeats) -> None:
        """From now on heartbeats count, too."""
        self._controller_term, self._heartbeats = controller_term, heartbeats

    @property
    def confirmed_s(self) -> float:
        """When the last question was sent whose answer showed what this broker obeys to be the newest: a poll of
        `cluster.json`, or a heartbeat to a controller that beats its lease (R23)."""
        heard_s = float("-inf") if self._heartbeats is None else self._heartbeats.fresh_s
        return max(self.polled_s, heard_s)

    @property
    def heartbeat_s(self) -> float:
        """When the last heartbeat was sent that the controller answered, "store away" too."""
        return float("-inf") if self._heartbeats is None else self._heartbeats.answered_s

    @property
    def is_in_session(self) -> bool:
        """Whether nobody can lead by now what this broker leads (R25): a session lasts from a heartbeat that the
        controller answered, "store away" too, for it ends so long after it was *heard*, which is later than it was
        sent. A claim ends that of the controller it replaces at once."""
        listener = (
            None
            if self._controller_term is None or not self._controller_term.is_controller
            else self._controller_term.listener
        )
        if listener is None:
            return self._clock.boottime_s() - self.heartbeat_s < self._session_s
        return self.is_alone or not listener.is_disputed
