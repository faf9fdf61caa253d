"""The fetchers of this broker: two for each leader that it follows, with shared session, connections and rate. A
fetcher starts with the first partition that is followed from its broker. All fetchers end together and share the rate
`follower.replication.throttled.rate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.following.metadata_cache import MetadataCache
from broker.metadata.records import NO_EPOCH, Node
from broker.peers.connection import PeerConnection
from broker.replication.fetch_lane import FetchLane
from broker.replication.fetch_session_handler import VERSION, Key, Limits, topic_id_of
from broker.replication.fetcher import Fetcher, FetchTarget
from broker.replication.replication_quota import ReplicationQuota, ThrottledReplicas
from broker.wire.messages import FetchRequest, FetchResponse
from seams.loop.tasks import FailureReport, Tasks, supervise
from seams.rng import Rng


class LeaderFetchers:
    """The two fetchers from one broker, one for each lane. A replica is in one of the lanes. While one fetcher has a
    fetch of the replica in flight, the other fetcher does not fetch the replica, so the leader gets one position at a
    time. `fetcher` makes the fetcher of a lane. `quiet_ms`: see `FetchLane`.
    """

    def __init__(
        self, fetcher: Callable[[FetchLane], Fetcher], is_in_sync: Callable[[Key], bool], quiet_ms: dict[FetchLane, int]
    ) -> None:
        self.keeping_up = fetcher(FetchLane(is_in_sync, quiet_ms, is_behind=False))
        self.behind = fetcher(FetchLane(is_in_sync, quiet_ms, is_behind=True))
        self.keeping_up.other, self.behind.other = self.behind, self.keeping_up
        self.both = self.keeping_up, self.behind

    def follow(self, key: Key, copy: FetchTarget, *, is_throttled: bool = False) -> None:
        """Fetch into `copy` from the next request on, in the in-sync lane until a response shows that the replica is
        behind."""
        first = self.behind if self.behind.is_asking(key) else self.keeping_up
        first.follow(key, copy, is_throttled=is_throttled)

    def leave(self, key: Key, copy: FetchTarget) -> None:
        """End fetching, because the replica's role ended: later responses are dropped."""
        for fetcher in self.both:
            fetcher.leave(key, copy)

    def throttle(self, key: Key, *, is_throttled: bool) -> None:
        for fetcher in self.both:
            if fetcher.has(key):
                fetcher.throttle(key, is_throttled=is_throttled)

    def wake(self, key: Key) -> None:
        """The next fetch position of `copy` changed."""
        for fetcher in self.both:
            if fetcher.has(key):
                fetcher.wake(key)

    def rate_changed(self) -> None:
        for fetcher in self.both:
            fetcher.rate_changed()


_LIMITS: Final = Limits(wait_ms=500, bytes_max=8 << 20, partition_bytes_max=1 << 20)
_ANSWER_S: Final = 10.0


@dataclass(eq=False, repr=False)
class FetcherManager:
    """All fetchers of this broker. `to`: the connection to a node's session for a purpose; raises ConnectionError if
    there is no session."""

    _config: LiveConfig
    _rng: Rng
    _metadata: MetadataCache
    _to: Callable[[Node, str], PeerConnection]
    _tasks: Tasks
    _report: FailureReport

    def __post_init__(self) -> None:
        self._node_id = self._config.now.node_id
        self._from: dict[int, LeaderFetchers] = {}
        self._quiet_ms: dict[FetchLane, int] = {}
        self._keeping: list[asyncio.Task[None]] = []
        now = self._config.now
        self._rate = ReplicationQuota(
            now.follower_rate_max, now.replication_quota_window_s, now.replication_quota_windows
        )
        self._config.subscribe(self._apply_rate)

    def of(self, leader_id: int) -> LeaderFetchers:
        known = self._from.get(leader_id)
        if known is None:
            fetcher = partial(self._fetcher, leader_id)
            known = self._from[leader_id] = LeaderFetchers(fetcher, self._is_in_sync, self._quiet_ms)
        return known

    def _fetcher(self, leader_id: int, lane: FetchLane) -> Fetcher:
        purpose = "replicas behind" if lane.is_behind else "replicas"  # separate connections: each answers in order
        throttled = ThrottledReplicas(self._rate, self._is_in_sync)
        fetcher = Fetcher(leader_id, partial(self._ask, leader_id, purpose), self._session, _LIMITS, throttled, lane)
        name = f"fetch {purpose} from {leader_id}"
        self._keeping.append(self._tasks.spawn(name, supervise(name, fetcher.run, self._rng, self._report)))
        return fetcher

    def leave(self, key: Key, copy: FetchTarget) -> None:
        """Stop fetching into `copy`, from any leader."""
        for of in self._from.values():
            of.leave(key, copy)

    def cancel(self) -> None:
        for keeping in self._keeping:
            keeping.cancel()

    def _session(self) -> tuple[int, int, str]:
        node = self._metadata.image.nodes.get(self._node_id)
        return (self._node_id, NO_EPOCH, "") if node is None else (node.node_id, node.broker_epoch, node.incarnation)

    def _apply_rate(self, now: BrokerConfig) -> None:
        if now.follower_rate_max != self._rate.limit:
            self._rate.limit = now.follower_rate_max
            for of in self._from.values():
                of.rate_changed()

    def _is_in_sync(self, key: Key) -> bool:
        topic = self._metadata.image.topics.get(str(topic_id_of(key[0])))
        return topic is not None and self._node_id in topic.rows[key[1]].in_sync

    async def _ask(self, leader_id: int, purpose: str, request: FetchRequest) -> FetchResponse:
        node = self._metadata.image.nodes.get(leader_id)
        if node is None:
            raise ConnectionError(f"broker {leader_id} is not registered")
        answer = await self._to(node, purpose).ask(request, VERSION, _ANSWER_S)
        assert isinstance(answer, FetchResponse)
        return answer
