"""How fast replicas that catch up may be copied: a rate over a sliding window, and which replicas it holds (KIP-73).

Owns the arithmetic of `follower.replication.throttled.rate` and the lists of `follower.replication.throttled.replicas`.
Always true: what came is counted whether it was allowed or not, so that what was too much is waited for; the rate is
what came in the last windows by the time since the first of them began, of one window at least (Kafka's SimpleRate);
who is over it is told when that ends. Pure. Must not know clocks, fetches, nor who is in sync. Source: Kafka's
ReplicationQuotaManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

THROTTLED_REPLICAS: Final = "follower.replication.throttled.replicas"
NO_LIMIT: Final = (1 << 63) - 1
"""Of the rate: Kafka's default."""


@dataclass(slots=True)
class _Window:
    began_s: float
    size: int = 0


class ReplicationQuota:
    """Of one broker, over all that it copies and that is throttled. `limit`: bytes a second; it may be changed at any
    time, what came already counts for the new one too. `window_s` and `windows`: how far is looked back
    (`replication.quota.window.size.seconds`, `replication.quota.window.num`). `now_s` of each call never goes back."""

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
        """So many bytes came."""
        self._forget(now_s)
        if not self._windows or now_s - self._windows[-1].began_s >= self._window_s:
            self._windows.append(_Window(now_s))
        self._windows[-1].size += size
        self._total += size

    def free_s(self, now_s: float) -> float:
        """From when on more may come: `now_s`, or later where too much came."""
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
    """`partition:broker,…` as it was accepted; None: `*`, all of them."""
    if text.strip() == "*":
        return None
    pairs = (entry.partition(":") for entry in text.split(","))
    return frozenset((int(index), int(node_id)) for index, _, node_id in pairs)
