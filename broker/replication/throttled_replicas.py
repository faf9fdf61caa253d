"""Which copies a fetcher leaves out of its next question because too much came, and when they come back (KIP-73).

Owns the throttled replicas of one leader and those that are held back. Always true: only who is throttled, is not in
the in-sync set, and lacks what is committed is held, so that nobody falls out of sync by it, and who caught up stays;
what comes for a throttled replica counts whether it is held or not, over all leaders together (`ReplicationQuota`); a
look costs something only when the rate begins or ceases to be exceeded. Pure. Must not know sessions, connections, nor
configs. Source: Kafka's RemoteLeaderEndPoint.shouldFollowerThrottle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.replication.fetch_session_handler import Key, Limits
from broker.replication.follower import FetchPosition
from broker.replication.replication_quota import ReplicationQuota


class ThrottledReplicas:
    """Of one fetcher. `replication_quota` is the broker's, shared by all its fetchers; `is_in_sync`: as the image has
    it. `now_s` of each call never goes back."""

    def __init__(self, rate: ReplicationQuota, is_in_sync: Callable[[Key], bool]) -> None:
        self._rate = rate
        self._is_in_sync = is_in_sync
        self._high_watermarks: dict[Key, int | None] = {}  # of those that are throttled, as the leader said last
        self._held: dict[Key, None] = {}
        self._free_s = float("-inf")
        self._is_over = False

    def __contains__(self, key: Key) -> bool:
        return key in self._high_watermarks

    def set(self, key: Key, *, is_throttled: bool) -> None:
        """From the next look on; whoever calls has it looked at."""
        if not is_throttled:
            self._high_watermarks.pop(key, None)
            self._held.pop(key, None)
        else:
            self._high_watermarks.setdefault(key, None)

    def began(self, key: Key) -> None:
        """It follows in a new leader epoch: nothing is known of its leader's high watermark."""
        if key in self._high_watermarks:
            self._high_watermarks[key] = None

    def came(self, key: Key, size: int, high_watermark: int, now_s: float) -> None:
        """So many bytes for one that is throttled."""
        self._high_watermarks[key] = high_watermark
        if size:
            self._rate.record(size, now_s)

    def look(self, now_s: float) -> Iterable[Key]:
        """Whom to look at anew: nobody, but where the rate began or ceased to be exceeded."""
        if not self._high_watermarks:
            return ()
        was_over, self._is_over = self._is_over, False
        if self._rate.is_limited:
            self._free_s = self._rate.free_s(now_s)
            self._is_over = self._free_s > now_s
        if self._is_over == was_over:
            return ()
        if self._is_over:
            return tuple(self._high_watermarks)
        held, self._held = self._held, {}
        return held

    def holds(self, key: Key, at: FetchPosition) -> bool:
        """Whether it is left out of the next question, in which it would ask for what is at `at`."""
        if not self._is_over or key not in self._high_watermarks:
            return False
        committed = self._high_watermarks[key]
        if (committed is not None and at.offset >= committed) or self._is_in_sync(key):
            return False
        self._held[key] = None
        return True

    def wait_s(self, now_s: float) -> float | None:
        """Until those that are held come back; None: nobody is."""
        return max(self._free_s - now_s, 0.0) if self._held else None

    def limits(self, of: Limits, now_s: float) -> Limits:
        """Those of the next question: it brings what a second lets, and is parked no longer than somebody is held."""
        if not self._high_watermarks or not self._rate.is_limited:
            return of
        bytes_max = min(of.bytes_max, max(self._rate.limit, of.partition_bytes_max))
        held_s = self.wait_s(now_s)
        wait_ms = of.wait_ms if held_s is None else min(of.wait_ms, int(1000 * held_s) + 1)
        return of._replace(bytes_max=bytes_max, wait_ms=wait_ms)
