"""Timeouts between brokers: sessions, heartbeats, the lease. Pure.

Two heartbeats fit into a session, two renewals into a lease. A session ends sooner after a closed connection than after
silence. If the broker's port then refuses connections, the session ends at once.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broker.config.sources import ConfigError

_LEASE_S: Final = (3.0, 10.0)
"""Renewal and lease on a remote store: a renewal is a PUT, and PUTs cost money."""
_LEASE_ON_DIRECTORY_S: Final = (1.0, 5.0)
"""On a directory bucket a renewal is two small files and a sync."""
_CLOSED_S: Final = 2.0
_PARKED_MS_MIN: Final = 10


class ClusterTimes(msgspec.Struct, frozen=True):
    """Timeouts between brokers, in seconds.

    * `session_s`: time of silence after which a broker loses its session (`broker.session.timeout.ms`).
    * `parked_s`: longest wait of a heartbeat for news, and thus the interval of heartbeats
      (`broker.heartbeat.interval.ms`).
    * `interval_s`: time between two renewals of the lease, and between two polls of the lease
      (`thermocline.lease.interval.ms`).
    * `lease_s`: time without renewal after which another broker may take over (`thermocline.lease.ms`).
    """

    session_s: float = 9.0
    parked_s: float = 1.5
    interval_s: float = _LEASE_S[0]
    lease_s: float = _LEASE_S[1]

    @property
    def closed_s(self) -> float:
        """Time from the close of a heartbeat connection to the end of the session. This time is shorter than
        `session_s`, so that a killed process is replaced sooner than a silent one. A broker that reconnects keeps its
        session: its next heartbeat may already be parked when the end of the old connection is detected.
        """
        return max(min(_CLOSED_S, self.session_s / 4), self.parked_s * 4 / 3)

    @property
    def knock_s(self) -> float:
        """Time from the close of a heartbeat connection to a single probe of the broker's port. If the port refuses,
        the process is gone and its session ends. A broker that reconnects within this time is not probed; a
        reconnection takes 0.3 s."""
        return self.closed_s / 4

    @property
    def heard_s(self) -> float:
        """A broker counts as alive if its last heartbeat is not older than this time (two intervals)."""
        return 2 * self.parked_s

    @property
    def answer_s(self) -> float:
        """Time-out of a heartbeat's response. Two time-outs fit into a session."""
        return self.session_s / 2

    @property
    def duplicate_s(self) -> float:
        """Longest wait of a starting process for the end of another process's session with the same node id. After the
        wait the other process counts as alive, and the starting process is refused. The wait is the longer of two
        times. The first is two session timeouts, because a new controller restarts each timeout (D8). The second is a
        session, a lease and one poll, because the last replica of a partition is replaced only after its holder was
        silent for a session and a lease.
        """
        return max(2 * self.session_s, self.session_s + self.lease_s + self.interval_s)

    @property
    def away_s(self) -> float:
        """Time without a successful renewal after which a controller reports the store as away."""
        return self.lease_s / 2


def cluster_times(
    *, session_ms: int, parked_ms: int, interval_ms: int, lease_ms: int, is_directory: bool
) -> ClusterTimes:
    """The times that the configs give. If a lease config is −1, the kind of bucket decides the time. Raises ConfigError
    for contradicting values."""
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
