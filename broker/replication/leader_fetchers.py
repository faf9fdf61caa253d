"""What is copied from one broker: two fetchers, one for each lane, and which of them has a replica.

Owns that choice. Always true: a replica is in one of them; no question is under way that has it while the other asks
for it, so its leader hears of one position at a time. Must not know logs, requests, nor how a lane is chosen
(`fetch_lane`).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.replication.fetch_lane import FetchLane
from broker.replication.fetch_session_handler import Key
from broker.replication.fetcher import Fetcher, FetchTarget


class LeaderFetchers:
    """One broker's. `fetcher` makes one for a lane; `quiet_ms` as in `FetchLane`."""

    def __init__(
        self, fetcher: Callable[[FetchLane], Fetcher], is_in_sync: Callable[[Key], bool], quiet_ms: dict[FetchLane, int]
    ) -> None:
        self.keeping_up = fetcher(FetchLane(is_in_sync, quiet_ms, is_behind=False))
        self.behind = fetcher(FetchLane(is_in_sync, quiet_ms, is_behind=True))
        self.keeping_up.other, self.behind.other = self.behind, self.keeping_up
        self.both = self.keeping_up, self.behind

    def follow(self, key: Key, copy: FetchTarget, *, is_throttled: bool = False) -> None:
        """Fetch into it from the next question on: it is taken to keep up, until an answer says otherwise."""
        first = self.behind if self.behind.is_asking(key) else self.keeping_up
        first.follow(key, copy, is_throttled=is_throttled)

    def leave(self, key: Key, copy: FetchTarget) -> None:
        """Its role is over: what comes for it is dropped."""
        for fetcher in self.both:
            fetcher.leave(key, copy)

    def throttle(self, key: Key, *, is_throttled: bool) -> None:
        """Whether it is held back when too much came."""
        for fetcher in self.both:
            if fetcher.has(key):
                fetcher.throttle(key, is_throttled=is_throttled)

    def wake(self, key: Key) -> None:
        """What it asks for next is something else, or nothing, or something at last."""
        for fetcher in self.both:
            if fetcher.has(key):
                fetcher.wake(key)

    def look_again(self) -> None:
        """The rate is another one."""
        for fetcher in self.both:
            fetcher.look_again()
