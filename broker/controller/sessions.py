"""Which sessions end for silence: a pure machine of one controller epoch.

Owns how long a broker may be silent. Always true: every session of the image has its full time anew when the epoch
begins (D8); time is that of the controller's own loop, so that its stall extends every session by as much (D9); one
whose connection closed ends sooner, and sooner still where its port refuses; who is heard before its end is decided
stays, and is heard no more from then on, for the commit may land at any time (R25); before more than half of all
brokers are given up, the controller steps back: then it is more likely itself that is cut off (R27). Must not know
clocks, connections, nor what the end of a session does to rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from broker.config.times import ClusterTimes
from broker.controller.decisions.registrations import SessionId
from broker.metadata.image import ClusterImage

_STEP_MAX_S: Final = 1.0  # more than this between two looks is a stall of ours
UNTIMED_S: Final = 30.0
"""So long after a claim that follows a step back, sessions end without the more-than-half rule; two sessions, where
those are longer: each has its full time anew, so none ends before one is over."""


@dataclass(slots=True)
class _Session:
    broker_epoch: int
    heard_s: float | None  # in loop time; None: not in this epoch
    ends_s: float
    is_closed: bool = False  # the connection of its heartbeats, and none came since
    knock_s: float = inf  # when its port is to be asked
    is_ending: bool = False  # its end was decided, or that of another process' session in its place


@dataclass(frozen=True, slots=True)
class ExpiredSessions:
    """What is to be done: sessions that end, or (`steps_back`) the controller gives its lease away instead. Of `knocks`
    it is to be asked whether anybody listens there, once."""

    ended: tuple[SessionId, ...] = ()
    knocks: tuple[SessionId, ...] = ()
    steps_back: bool = False


class Sessions:
    """`own`: the controller's node, which needs no heartbeat. `now_s` of each call: monotonic seconds, never going
    back. `is_sure`: this claim follows a step back that nobody answered with a claim of his own."""

    def __init__(
        self,
        own: int,
        now_s: float,
        times: ClusterTimes,
        *,
        is_sure: bool = False,
    ) -> None:
        self._own = own
        self._session_s, self._closed_s, self._heard_s = times.session_s, times.closed_s, times.heard_s
        self._knock_s = times.knock_s
        self._looked_s = now_s
        self._time_s = 0.0  # of this loop: stalls left out
        self._sure_until_s = max(UNTIMED_S, 2 * times.session_s) if is_sure else 0.0
        self._lease_s = times.lease_s
        self._sessions: dict[int, _Session] = {}
        self._without_s: dict[int, float] = {}  # since when a node that is registered has no session
        self._had: deque[tuple[float, frozenset[int]]] = deque()  # who had a session, since when, oldest first

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────
    def follow(self, image: ClusterImage, now_s: float) -> None:
        """The image is this: sessions that are new to us have their full time from now."""
        time_s = self._at(now_s)
        active = {node_id: node.broker_epoch for node_id, node in image.nodes.items() if node.active}
        self._sessions = {
            node_id: known
            if (known := self._sessions.get(node_id)) is not None and known.broker_epoch == broker_epoch
            else _Session(broker_epoch, None, time_s + self._session_s)
            for node_id, broker_epoch in active.items()
            if node_id != self._own
        }
        self._without_s = {
            node_id: self._without_s.get(node_id, time_s) for node_id, node in image.nodes.items() if not node.active
        }
        members = frozenset(active) | {self._own}
        if not self._had or self._had[-1][1] != members:
            self._had.append((time_s, members))

    def heard(self, node_id: int, broker_epoch: int, now_s: float) -> bool:
        """A heartbeat came; whether of a session that there is, and goes on."""
        session = self._sessions.get(node_id)
        if session is None or session.broker_epoch != broker_epoch or session.is_ending:
            return False
        session.heard_s = self._at(now_s)
        session.ends_s = session.heard_s + self._session_s
        session.is_closed, session.knock_s = False, inf
        return True

    def end(self, due: Collection[SessionId], now_s: float) -> tuple[SessionId, ...]:
        """The end of `due` is decided now: of those whose time is over still. Nothing is heard of them any more."""
        time_s, found = self._at(now_s), []
        for node_id, broker_epoch in due:
            session = self._sessions.get(node_id)
            if session is not None and session.broker_epoch == broker_epoch and session.ends_s <= time_s:
                session.is_ending = True
                found.append((node_id, broker_epoch))
        return tuple(found)

    def replaced(self, node_id: int) -> None:
        """Another process of this node gets a session, which is decided now: nothing is heard of the one there was."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.is_ending = True

    def closed(self, node_id: int, broker_epoch: int, now_s: float) -> None:
        """The connection of its heartbeats was closed: unless it comes again, it ends soon. That is a word of it too:
        who is cut off hears no farewells (R27)."""
        session = self._sessions.get(node_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.heard_s = self._at(now_s)
            session.ends_s = min(session.ends_s, session.heard_s + self._closed_s)
            session.is_closed, session.knock_s = True, session.heard_s + self._knock_s

    def refused(self, node_id: int, broker_epoch: int, now_s: float) -> None:
        """Nobody listens at its port: its process is gone, unless a heartbeat came since its connection closed."""
        session = self._sessions.get(node_id)
        if session is not None and session.broker_epoch == broker_epoch and session.is_closed:
            session.ends_s = self._at(now_s)

    def look(self, now_s: float) -> ExpiredSessions:
        """What is due now; called several times a second."""
        time_s = self._time_s = self._at(now_s)
        self._looked_s = now_s
        ended = tuple(
            (node_id, session.broker_epoch)
            for node_id, session in sorted(self._sessions.items())
            if session.ends_s <= time_s
        )
        if ended and time_s >= self._sure_until_s and self._is_blind(time_s):
            return ExpiredSessions(steps_back=True)
        return ExpiredSessions(ended, self._to_knock(time_s))

    def _to_knock(self, time_s: float) -> tuple[SessionId, ...]:
        due = [(node_id, session) for node_id, session in self._sessions.items() if session.knock_s <= time_s]
        for _, session in due:
            session.knock_s = inf
        return tuple((node_id, session.broker_epoch) for node_id, session in due)

    def soonest_s(self, now_s: float) -> float:
        """In how many seconds the first session's time is over, if nothing is heard of it, or its port is to be asked;
        at least a hundredth."""
        due_s = min((min(session.ends_s, session.knock_s) for session in self._sessions.values()), default=inf)
        return max(due_s - self._at(now_s), 0.01)

    # ── what it means ────────────────────────────────────────────────────────────────────────────────────────────
    def is_live(self, node_id: int, now_s: float) -> bool:
        """Whether its session is heard of: its connection stands, and its time is not over; of one that has not spoken
        to this controller yet, for as long as it takes to find it."""
        session, time_s = self._sessions.get(node_id), self._at(now_s)
        if node_id == self._own:
            return True
        if session is None or (session.heard_s is None and time_s > self._heard_s):
            return False
        return session.ends_s - time_s > self._closed_s

    def is_silent(self, node_id: int, now_s: float) -> bool:
        """Whether it has had no session for a lease, as far as this controller saw: its process, if there is one, knows
        by then, and answers nobody (R22)."""
        since_s = self._without_s.get(node_id)
        return since_s is not None and self._at(now_s) - since_s >= self._lease_s

    def _is_blind(self, time_s: float) -> bool:
        """Whether fewer than half of the brokers that had sessions a session-time ago were heard lately."""
        while len(self._had) > 1 and self._had[1][0] <= time_s - self._session_s:
            self._had.popleft()
        had = self._had[0][1]
        heard = sum(self._is_heard(node_id, time_s) for node_id in had)
        return 2 * heard < len(had)

    def _is_heard(self, node_id: int, time_s: float) -> bool:
        if node_id == self._own:
            return True
        session = self._sessions.get(node_id)
        return session is not None and session.heard_s is not None and time_s - session.heard_s <= self._heard_s

    def _at(self, now_s: float) -> float:
        return self._time_s + min(max(now_s - self._looked_s, 0.0), _STEP_MAX_S)
