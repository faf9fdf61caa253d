"""Replication throttling (KIP-73): the follower rate over a sliding window, and the throttled replicas. Pure.

The rate is the bytes of the last windows divided by the time since the first of them began, at least one window
(Kafka's SimpleRate). Configs: `follower.replication.throttled.rate`, `follower.replication.throttled.replicas`. Source:
Kafka's ReplicationQuotaManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from broker.replication.fetch_session_handler import Key, Limits
from broker.replication.follower import FetchPosition

THROTTLED_REPLICAS: Final = "follower.replication.throttled.replicas"
NO_LIMIT: Final = (1 << 63) - 1  # bytes a second; Kafka's default


@dataclass(slots=True)
class _Window:
    began_s: float
    size: int = 0


class ReplicationQuota:
    """The quota of one broker over all throttled replicas. `limit`: bytes a second. A new limit also counts earlier
    bytes. `window_s`, `windows`: the span measured (`replication.quota.window.size.seconds`,
    `replication.quota.window.num`). `now_s` never goes back between calls."""

    def __init__(self, limit: int = NO_LIMIT, window_s: float = 1.0, windows: int = 11) -> None:
        self.limit = limit
        self._window_s = window_s
        self._span_s = window_s * windows
        self._windows: deque[_Window] = deque()  # at most `windows`
        self._total = 0

    @property
    def is_limited(self) -> bool:
        return self.limit != NO_LIMIT

    def record(self, size: int, now_s: float) -> None:
        self._forget(now_s)
        if not self._windows or now_s - self._windows[-1].began_s >= self._window_s:
            self._windows.append(_Window(now_s))
        self._windows[-1].size += size
        self._total += size

    def free_s(self, now_s: float) -> float:
        """Time at which more bytes may be fetched: `now_s`, or later if the quota is exceeded."""
        self._forget(now_s)
        total, at_s = self._total, now_s
        for first in self._windows:
            if total <= self.limit * max(at_s - first.began_s, self._window_s):
                break
            forgotten_s = first.began_s + self._span_s
            if self.limit and (fits_s := first.began_s + total / self.limit) < forgotten_s:
                return max(fits_s, at_s)
            total, at_s = total - first.size, forgotten_s
        return at_s

    def _forget(self, now_s: float) -> None:
        while self._windows and now_s - self._windows[0].began_s >= self._span_s:
            self._total -= self._windows.popleft().size


def is_throttled(configs: Mapping[str, str], index: int, node_id: int) -> bool:
    """Whether a topic's `configs` name the replica of partition `index` on `node_id`."""
    text = configs.get(THROTTLED_REPLICAS)
    if not text:
        return False
    named = _named(text)
    return named is None or (index, node_id) in named


@lru_cache(maxsize=64)
def _named(text: str) -> frozenset[tuple[int, int]] | None:
    """The pairs in `partition:broker,…`, which was validated earlier. None for `*`, which names all replicas."""
    if text.strip() == "*":
        return None
    pairs = (entry.partition(":") for entry in text.split(","))
    return frozenset((int(index), int(node_id)) for index, _, node_id in pairs)


class ThrottledReplicas:
    """The throttled replicas of one fetcher, and those left out while the quota is exceeded. A throttled replica is
    left out only if it is not in sync and lacks committed records, so throttling removes no replica from the in-sync
    set. The bytes of all throttled replicas count, from all leaders together. Replicas are visited only when the quota
    begins or ceases to be exceeded. `is_in_sync`: whether the image has the replica in sync. `now_s` never goes back
    between calls. Source: Kafka's RemoteLeaderEndPoint.shouldFollowerThrottle."""

    def __init__(self, rate: ReplicationQuota, is_in_sync: Callable[[Key], bool]) -> None:
        self._rate = rate
        self._is_in_sync = is_in_sync
        self._high_watermarks: dict[Key, int | None] = {}  # of each throttled replica, by its leader's last response
        self._held: dict[Key, None] = {}
        self._free_s = float("-inf")
        self._is_over = False

    def __contains__(self, key: Key) -> bool:
        return key in self._high_watermarks

    def set(self, key: Key, *, is_throttled: bool) -> None:
        """Set whether the replica is throttled, from the next fetch on."""
        if not is_throttled:
            self._high_watermarks.pop(key, None)
            self._held.pop(key, None)
        else:
            self._high_watermarks.setdefault(key, None)

    def began(self, key: Key) -> None:
        """The replica follows in a new leader epoch. Its high watermark is unknown until the first response."""
        if key in self._high_watermarks:
            self._high_watermarks[key] = None

    def came(self, key: Key, size: int, high_watermark: int, now_s: float) -> None:
        """Count a response of `size` bytes for a throttled replica."""
        self._high_watermarks[key] = high_watermark
        if size:
            self._rate.record(size, now_s)

    def look(self, now_s: float) -> Iterable[Key]:
        """The replicas to visit: all throttled ones when the quota begins to be exceeded, those left out when it ceases
        to be, else none."""
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
        """Whether the replica is left out of the next fetch, whose position would be `at`."""
        if not self._is_over or key not in self._high_watermarks:
            return False
        committed = self._high_watermarks[key]
        if (committed is not None and at.offset >= committed) or self._is_in_sync(key):
            return False
        self._held[key] = None
        return True

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the replicas that are left out are fetched again; None if there are none."""
        return max(self._free_s - now_s, 0.0) if self._held else None

    def limits(self, of: Limits, now_s: float) -> Limits:
        """Limits of the next fetch. It gets at most the quota's bytes of one second, and is not parked longer than a
        replica is left out."""
        if not self._high_watermarks or not self._rate.is_limited:
            return of
        bytes_max = min(of.bytes_max, max(self._rate.limit, of.partition_bytes_max))
        held_s = self.wait_s(now_s)
        wait_ms = of.wait_ms if held_s is None else min(of.wait_ms, int(1000 * held_s) + 1)
        return of._replace(bytes_max=bytes_max, wait_ms=wait_ms)
