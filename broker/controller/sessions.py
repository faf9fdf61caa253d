"""Sessions of one controller epoch: which end for silence, and whether another controller may exist. Pure.

- Every session has its full time again when the epoch begins (D8). Time is the controller's loop time, so its own
  stalls extend every session (D9).
- A session whose connection closed ends sooner, and at once if its port refuses.
- A heartbeat before the end is decided keeps the session. After the decision none is accepted, because the commit may
  land at any time (R25).
- Before more than half of all brokers are ended the controller steps back: more likely it is cut off itself (R27).
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

_STEP_MAX_S: Final = 1.0  # a longer step between two checks is a stall of this loop
UNTIMED_S: Final = 30.0
"""Time after a claim that follows a step back in which sessions end without the more-than-half rule; at least two
session times, because each session has its full time anew."""


@dataclass(slots=True)
class _Session:
    broker_epoch: int
    heard_s: float | None  # in loop time; None: not in this epoch
    ends_s: float
    is_closed: bool = False  # the connection of its heartbeats closed, and none came since
    knock_s: float = inf  # when to probe its port
    is_ending: bool = False  # its end was decided, or another process replaces it


@dataclass(frozen=True, slots=True)
class ExpiredSessions:
    """Sessions to end, or (`steps_back`) the lease is to be given away instead. The ports of `knocks` are to be probed
    once."""

    ended: tuple[SessionId, ...] = ()
    knocks: tuple[SessionId, ...] = ()
    steps_back: bool = False


class Sessions:
    """`own`: the controller's node, which needs no heartbeat. `now_s` of each call: monotonic seconds that never go
    back. `is_sure`: this claim follows a step back after which no other broker claimed."""

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
        self._checked_s = now_s
        self._time_s = 0.0  # of this loop, without stalls
        self._sure_until_s = max(UNTIMED_S, 2 * times.session_s) if is_sure else 0.0
        self._lease_s = times.lease_s
        self._sessions: dict[int, _Session] = {}
        self._without_s: dict[int, float] = {}  # since when a registered node has no session
        self._had: deque[tuple[float, frozenset[int]]] = deque()  # nodes with a session, and since when; oldest first

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────
    def follow(self, image: ClusterImage, now_s: float) -> None:
        """A new image: sessions new to this controller have their full time from now."""
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

    def heartbeat(self, node_id: int, broker_epoch: int, now_s: float) -> bool:
        """A heartbeat came. Returns whether its session exists and continues."""
        session = self._sessions.get(node_id)
        if session is None or session.broker_epoch != broker_epoch or session.is_ending:
            return False
        session.heard_s = self._at(now_s)
        session.ends_s = session.heard_s + self._session_s
        session.is_closed, session.knock_s = False, inf
        return True

    def end(self, due: Collection[SessionId], now_s: float) -> tuple[SessionId, ...]:
        """The end of `due` is decided now, for those whose time is still over. Their heartbeats are rejected from here
        on."""
        time_s, found = self._at(now_s), []
        for node_id, broker_epoch in due:
            session = self._sessions.get(node_id)
            if session is not None and session.broker_epoch == broker_epoch and session.ends_s <= time_s:
                session.is_ending = True
                found.append((node_id, broker_epoch))
        return tuple(found)

    def replaced(self, node_id: int) -> None:
        """Another process of this node gets a session, decided now: heartbeats of the old session are rejected."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.is_ending = True

    def closed(self, node_id: int, broker_epoch: int, now_s: float) -> None:
        """The connection of its heartbeats closed: it ends soon unless it reconnects. This counts as hearing from it,
        because a controller that is cut off sees no close (R27)."""
        session = self._sessions.get(node_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.heard_s = self._at(now_s)
            session.ends_s = min(session.ends_s, session.heard_s + self._closed_s)
            session.is_closed, session.knock_s = True, session.heard_s + self._knock_s

    def refused(self, node_id: int, broker_epoch: int, now_s: float) -> None:
        """Its port refuses: its process is gone, unless a heartbeat came since its connection closed."""
        session = self._sessions.get(node_id)
        if session is not None and session.broker_epoch == broker_epoch and session.is_closed:
            session.ends_s = self._at(now_s)

    def check(self, now_s: float) -> ExpiredSessions:
        """What is due now; called several times a second."""
        time_s = self._time_s = self._at(now_s)
        self._checked_s = now_s
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
        """Seconds until the first session expires or a port is to be probed; at least 0.01."""
        due_s = min((min(session.ends_s, session.knock_s) for session in self._sessions.values()), default=inf)
        return max(due_s - self._at(now_s), 0.01)

    # ── state ────────────────────────────────────────────────────────────────────────────────────────────────────
    def is_live(self, node_id: int, now_s: float) -> bool:
        """Whether its connection is open and its time is not over. A session new to this controller counts as live for
        the time it needs to connect."""
        session, time_s = self._sessions.get(node_id), self._at(now_s)
        if node_id == self._own:
            return True
        if session is None or (session.heard_s is None and time_s > self._heard_s):
            return False
        return session.ends_s - time_s > self._closed_s

    def is_silent(self, node_id: int, now_s: float) -> bool:
        """Whether it has had no session for a lease, as far as this controller saw. By then its process knows it and
        answers no request (R22)."""
        since_s = self._without_s.get(node_id)
        return since_s is not None and self._at(now_s) - since_s >= self._lease_s

    def _is_blind(self, time_s: float) -> bool:
        """Whether fewer than half of the brokers with sessions a session time ago were heard lately."""
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
        return self._time_s + min(max(now_s - self._checked_s, 0.0), _STEP_MAX_S)


class RivalControllers:
    """Whether another broker may have become the controller, as far as the one of an epoch can know (R25). Two proofs
    that none has:

    - No broker claims before the lease stood still for its duration, counted from its last bump.
    - Each heartbeat says for how long its sender will not claim (`membership.lease_watch`). It counts while the store
      answers no broker and the lease cannot be bumped.

    Each proof ends before the first claim that it excludes can land. All times are seconds of the boot clock.
    `bumped_s`: when the claim was sent, or before; −inf: unknown. `others`, of each call: the other brokers in session.
    """

    def __init__(self, bumped_s: float, times: ClusterTimes) -> None:
        self._bumped_s = bumped_s
        self._late_s = float("-inf")  # when a bump was sent that proved nothing
        self._interval_s = times.interval_s
        # A controller that gives its lease away early ends no session, so the shorter of both counts.
        self._proof_s = min(times.lease_s, times.session_s)
        self._free_s: dict[int, float] = {}  # when each may claim at the earliest, by its last heartbeat

    def heartbeat(self, node_id: int, no_claim_s: float, now_s: float) -> None:
        """A broker in session will not claim for so long."""
        # Its read of the lease counts from when it began: at most an interval earlier.
        self._free_s[node_id] = now_s + min(no_claim_s, self._proof_s) - self._interval_s

    def bumped(self, sent_s: float, others: Collection[int], now_s: float) -> None:
        """The lease was bumped by a request sent at `sent_s`, after a read of `cluster.json`."""
        if self.may_have_claimed(others, now_s):
            # A broker that read the lease just before this bump may be about to claim: only the next bump proves not.
            since_s = sent_s - self._late_s
            if since_s >= self._proof_s:
                self._late_s = sent_s
            if not self._interval_s / 2 <= since_s < self._proof_s:
                return
        self._bumped_s = sent_s

    def may_have_claimed(self, others: Collection[int], now_s: float) -> bool:
        if now_s - self._bumped_s < self._proof_s:
            return False
        return any(self._free_s.get(node_id, float("-inf")) <= now_s for node_id in others)
