"""Broker sessions of one controller epoch: expired sessions, and whether another controller may exist. Pure.

- Every session has its full time again when the epoch begins (D8). Time is the controller's loop time, so its own
  stalls extend every session (D9).
- A session ends sooner after its connection closed, and at once if the broker's port refuses connections.
- A heartbeat that arrives before the end is decided keeps the session. After the decision no heartbeat is accepted,
  because the commit may land at any time (R25).
- When the sessions of more than half of all brokers expire, the controller resigns instead of ending them: it is
  probably cut off itself (R27).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final

import msgspec

from broker.config.times import ClusterTimes
from broker.controller.decisions.registrations import SessionId
from broker.metadata.image import ClusterImage

_STEP_MAX_S: Final = 1.0  # a longer step between two checks is a stall of this loop
UNTIMED_S: Final = 30.0
"""For this time a controller that resigned and claimed again ends sessions without the more-than-half rule. It is at
least two session timeouts, because a new claim restarts the timeout of each session.
"""


@dataclass(slots=True)
class _Session:
    broker_epoch: int
    heard_s: float | None  # in loop time; None: not in this epoch
    ends_s: float
    is_closed: bool = False  # the heartbeat connection closed, and no heartbeat arrived after that
    knock_s: float = inf  # time to probe its port
    is_ending: bool = False  # the end of the session is decided, or another process replaces it


class ExpiredSessions(msgspec.Struct, frozen=True):
    """The sessions that are due. `ended`: sessions to end. `steps_back`: release the lease instead. `knocks`: sessions
    whose port to probe once."""

    ended: tuple[SessionId, ...] = ()
    knocks: tuple[SessionId, ...] = ()
    steps_back: bool = False


class Sessions:
    """The sessions of one controller epoch. `own`: the controller's node, which needs no heartbeat. `now_s` of each
    call: monotonic seconds that never go back. `is_sure`: this controller resigned before this claim, and no other
    broker claimed in between."""

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
        self._time_s = 0.0  # time of this loop, without stalls
        self._sure_until_s = max(UNTIMED_S, 2 * times.session_s) if is_sure else 0.0
        self._lease_s = times.lease_s
        self._sessions: dict[int, _Session] = {}
        self._without_s: dict[int, float] = {}  # registered nodes without a session, and since when
        self._had: deque[tuple[float, frozenset[int]]] = deque()  # nodes with a session, and since when; oldest first

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────
    def follow(self, image: ClusterImage, now_s: float) -> None:
        """Apply a new image: sessions that are new to this controller have their full time from now."""
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
        """A heartbeat arrived. Returns whether its session exists and continues."""
        session = self._sessions.get(node_id)
        if session is None or session.broker_epoch != broker_epoch or session.is_ending:
            return False
        session.heard_s = self._at(now_s)
        session.ends_s = session.heard_s + self._session_s
        session.is_closed, session.knock_s = False, inf
        return True

    def end(self, due: Collection[SessionId], now_s: float) -> tuple[SessionId, ...]:
        """Decide the end of the sessions in `due` that are still expired, and return them. Their heartbeats are
        rejected from now on."""
        time_s, found = self._at(now_s), []
        for node_id, broker_epoch in due:
            session = self._sessions.get(node_id)
            if session is not None and session.broker_epoch == broker_epoch and session.ends_s <= time_s:
                session.is_ending = True
                found.append((node_id, broker_epoch))
        return tuple(found)

    def replaced(self, node_id: int) -> None:
        """Another process of this node registers now. Heartbeats of the old session are rejected from now on."""
        session = self._sessions.get(node_id)
        if session is not None:
            session.is_ending = True

    def closed(self, node_id: int, broker_epoch: int, now_s: float) -> None:
        """The connection of the session's heartbeats closed: the session ends soon unless the broker reconnects. The
        close counts as a sign of life, because a controller that is cut off does not see the close (R27)."""
        session = self._sessions.get(node_id)
        if session is not None and session.broker_epoch == broker_epoch:
            session.heard_s = self._at(now_s)
            session.ends_s = min(session.ends_s, session.heard_s + self._closed_s)
            session.is_closed, session.knock_s = True, session.heard_s + self._knock_s

    def refused(self, node_id: int, broker_epoch: int, now_s: float) -> None:
        """The broker's port refuses connections. Its process is gone, unless a heartbeat arrived after its connection
        closed."""
        session = self._sessions.get(node_id)
        if session is not None and session.broker_epoch == broker_epoch and session.is_closed:
            session.ends_s = self._at(now_s)

    def check(self, now_s: float) -> ExpiredSessions:
        """Sessions that are due now; called several times a second."""
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
        """Whether the broker is connected and its session has not expired. A session that is new to this controller
        counts as live while the broker may still be connecting."""
        session, time_s = self._sessions.get(node_id), self._at(now_s)
        if node_id == self._own:
            return True
        if session is None or (session.heard_s is None and time_s > self._heard_s):
            return False
        return session.ends_s - time_s > self._closed_s

    def is_silent(self, node_id: int, now_s: float) -> bool:
        """Whether the node had no session with this controller for one lease duration. By then the node's process knows
        that it has no session, and answers no request (R22)."""
        since_s = self._without_s.get(node_id)
        return since_s is not None and self._at(now_s) - since_s >= self._lease_s

    def _is_blind(self, time_s: float) -> bool:
        """Whether fewer than half of the brokers that had a session one session timeout ago sent a heartbeat
        recently."""
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
    """Whether another broker may have become the controller, judged by the controller of one epoch (R25). Two proofs
    exclude another controller:

    - A broker claims only if the lease did not change for a whole lease duration after the last bump.
    - Each heartbeat says for how long its sender will not claim (`membership.lease_watch`). This proof is needed when
      the store answers no broker, so that the lease cannot be bumped. The time counts from the last response of this
      controller that the sender had read, because a heartbeat may take long to arrive.

    Each proof expires before any claim that it excludes can be stored. All times are seconds of the boot clock.
    `bumped_s`: the time at which the claim was sent, or an earlier time; −inf: unknown. `others`, of each call: the
    other brokers in session.
    """

    def __init__(self, bumped_s: float, times: ClusterTimes) -> None:
        self._bumped_s = bumped_s
        self._late_s = float("-inf")  # time of the last bump that did not count as proof
        self._interval_s = times.interval_s
        # A controller that releases its lease early ends no session, so the shorter time counts.
        self._proof_s = min(times.lease_s, times.session_s)
        self._free_s: dict[int, float] = {}  # earliest time of a claim, by the node's last heartbeat

    def heartbeat(self, node_id: int, no_claim_s: float, since_s: float) -> None:
        """A broker with a session will not claim for `no_claim_s` seconds after `since_s`."""
        # The broker counts from the start of its read of the lease, at most one interval earlier.
        self._free_s[node_id] = since_s + min(no_claim_s, self._proof_s) - self._interval_s

    def bumped(self, sent_s: float, others: Collection[int], now_s: float) -> None:
        """The lease was bumped by a request sent at `sent_s`, after a read of `cluster.json`."""
        if self.may_have_claimed(others, now_s):
            # A broker that read the lease just before this bump may still claim. The next bump excludes that.
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
