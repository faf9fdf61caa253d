"""How long brokers of one cluster wait for one another: sessions, heartbeats, the lease. Pure.

Owns how these times hang together. Always true: two heartbeats fit into a session, two bumps into a lease; what a
connection's end says is believed sooner than silence, and sooner still where the port refuses then. Must not know what
is done when a time is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from broker.config.sources import ConfigError

_LEASE_S: Final = (3.0, 10.0)
"""Bump and lease on a store that is asked by requests: a bump is a PUT, of which a stream costs money."""
_LEASE_ON_DIRECTORY_S: Final = (1.0, 5.0)
"""On a directory bucket it is two small files and a sync."""
_CLOSED_S: Final = 2.0
_PARKED_MS_MIN: Final = 10


@dataclass(frozen=True, slots=True)
class ClusterTimes:
    """In seconds. `session_s`: a broker silent for so long has no session any more (`broker.session.timeout.ms`).
    `parked_s`: how long a heartbeat waits for news, so how often one comes (`broker.heartbeat.interval.ms`).
    `interval_s`: between two bumps of the lease, and two looks of who watches it; `lease_s`: how long it stands still
    before anybody may take over (`thermocline.lease.interval.ms`, `thermocline.lease.ms`)."""

    session_s: float = 9.0
    parked_s: float = 1.5
    interval_s: float = _LEASE_S[0]
    lease_s: float = _LEASE_S[1]

    @property
    def closed_s(self) -> float:
        """A session ends so long after the connection of its heartbeats closed: a process that was killed is missed
        sooner than one that is silent, one that connects anew is not missed: its next heartbeat may be parked when the
        end of the connection before is noticed."""
        return max(min(_CLOSED_S, self.session_s / 4), self.parked_s * 4 / 3)

    @property
    def knock_s(self) -> float:
        """So long after that connection closed its port is asked, once: where it refuses, the process is gone, and its
        session ends at once. Not sooner: who connects anew (0.3 s) is not asked."""
        return self.closed_s / 4

    @property
    def heard_s(self) -> float:
        """Who was heard within this is certainly there: two heartbeats."""
        return 2 * self.parked_s

    @property
    def answer_s(self) -> float:
        """A heartbeat's answer is waited for so long: two fit into a session."""
        return self.session_s / 2

    @property
    def duplicate_s(self) -> float:
        """So long is waited for the session of this node's other process to end, as one controller has it; then that
        one lives, and this one is refused. Two sessions: a new controller gives each its full time anew (D8). Or a look
        after the session and the lease: nobody takes a partition's last seat before its holder was silent for both."""
        return max(2 * self.session_s, self.session_s + self.lease_s + self.interval_s)

    @property
    def away_s(self) -> float:
        """A controller that could not bump its lease for so long says that the store is away from it."""
        return self.lease_s / 2


def cluster_times(
    *, session_ms: int, parked_ms: int, interval_ms: int, lease_ms: int, is_directory: bool
) -> ClusterTimes:
    """By the configs; −1 of the lease's: as the kind of bucket has it. Raises ConfigError where they do not agree."""
    interval_s, lease_s = _LEASE_ON_DIRECTORY_S if is_directory else _LEASE_S
    if interval_ms >= 0:
        interval_s = interval_ms / 1000
    if lease_ms >= 0:
        lease_s = lease_ms / 1000
    if lease_s < 2 * interval_s:
        raise ConfigError(
            f"thermocline.lease.ms={lease_s * 1000:.0f} must be at least twice thermocline.lease.interval.ms="
            f"{interval_s * 1000:.0f}"
        )
    if parked_ms < _PARKED_MS_MIN:
        raise ConfigError(f"broker.heartbeat.interval.ms={parked_ms} must be at least {_PARKED_MS_MIN}")
    if session_ms < 4 * parked_ms:
        raise ConfigError(
            f"broker.session.timeout.ms={session_ms} must be at least four times "
            f"broker.heartbeat.interval.ms={parked_ms}"
        )
    return ClusterTimes(session_ms / 1000, parked_ms / 1000, interval_s, lease_s)
