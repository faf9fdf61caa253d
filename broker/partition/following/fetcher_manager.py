"""Two fetchers for each broker that leads something of ours, and what all of them share: session, connections, rate.

Owns when they begin: with the first partition that is copied from their broker; none ends before all do. Always
true: what they fetch together is held to one rate (`follower.replication.throttled.rate`); a question goes to the
session of its broker that the image names. Must not know logs, nor roles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from broker.config.broker_config import BrokerConfig
from broker.config.live import LiveConfig
from broker.following.metadata_cache import MetadataCache
from broker.metadata.records import NO_EPOCH, Node
from broker.replication.fetch_lane import FetchLane
from broker.replication.fetch_session_handler import VERSION, Key, Limits, topic_id_of
from broker.replication.fetcher import Fetcher, FetchTarget
from broker.replication.leader_fetchers import LeaderFetchers
from broker.replication.replication_quota import ReplicationQuota
from broker.replication.throttled_replicas import ThrottledReplicas
from broker.wire.message import Message
from broker.wire.messages import FetchRequest, FetchResponse
from seams.rng import Rng
from seams.tasks import FailureReport, Tasks, supervise

_LIMITS: Final = Limits(wait_ms=500, bytes_max=8 << 20, partition_bytes_max=1 << 20)
_ANSWER_S: Final = 10.0


class Connection(Protocol):
    """To one session of a broker."""

    async def ask(self, request: Message, version: int, timeout_s: float) -> Message: ...


class FetcherManager:
    """Of one broker. `to`: the connection to a node's session, for a purpose (ConnectionError where there is none)."""

    def __init__(
        self,
        config: LiveConfig,
        rng: Rng,
        metadata: MetadataCache,
        to: Callable[[Node, str], Connection],
        tasks: Tasks,
        report: FailureReport,
    ) -> None:
        self._rng = rng
        self._metadata = metadata
        self._to = to
        self._tasks = tasks
        self._report = report
        self._node_id = config.now.node_id
        self._from: dict[int, LeaderFetchers] = {}
        self._quiet_ms: dict[FetchLane, int] = {}
        self._keeping: list[asyncio.Task[None]] = []
        now = config.now
        self._rate = ReplicationQuota(
            now.follower_rate_max, now.replication_quota_window_s, now.replication_quota_windows
        )
        config.subscribe(self._obey_rate)

    def of(self, leader_id: int) -> LeaderFetchers:
        """Those that copy from this broker."""
        known = self._from.get(leader_id)
        if known is None:
            fetcher = partial(self._fetcher, leader_id)
            known = self._from[leader_id] = LeaderFetchers(fetcher, self._is_in_sync, self._quiet_ms)
        return known

    def _fetcher(self, leader_id: int, lane: FetchLane) -> Fetcher:
        purpose = "replicas behind" if lane.is_behind else "replicas"  # a connection each: answers come in order
        throttled = ThrottledReplicas(self._rate, self._is_in_sync)
        fetcher = Fetcher(leader_id, partial(self._ask, leader_id, purpose), self._session, _LIMITS, throttled, lane)
        name = f"fetch {purpose} from {leader_id}"
        self._keeping.append(self._tasks.spawn(name, supervise(name, fetcher.keep, self._rng, self._report)))
        return fetcher

    def leave(self, key: Key, copy: FetchTarget) -> None:
        """Nothing is fetched into it any more, whoever led it."""
        for of in self._from.values():
            of.leave(key, copy)

    def cancel(self) -> None:
        """Ask nothing more."""
        for keeping in self._keeping:
            keeping.cancel()

    def broker_epoch(self) -> int:
        """This broker's, as the image has it."""
        return self._metadata.broker_epoch(self._node_id)

    def _session(self) -> tuple[int, int, str]:
        node = self._metadata.image.nodes.get(self._node_id)
        return (self._node_id, NO_EPOCH, "") if node is None else (node.node_id, node.broker_epoch, node.incarnation)

    def _obey_rate(self, now: BrokerConfig) -> None:
        if now.follower_rate_max != self._rate.limit:
            self._rate.limit = now.follower_rate_max
            for of in self._from.values():
                of.look_again()

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
