"""Sends the markers of decided transactions to the leaders of their partitions, until each is answered (TX15).

- One WriteTxnMarkers has the waiting markers of a broker. Each broker has a few requests in flight. Markers that failed
  before are sent in separate requests, so that a partition that cannot commit does not delay others.
- A marker carries the coordinator's epoch. If the role ends while a request is in flight, its response is ignored. A
  partition that has a marker of the next coordinator refuses the older marker.
- One task is the service, and each request in flight is a task. All tasks end with the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec

from broker.error_codes import ErrorCode
from broker.metadata.records import Node
from broker.peers.links import Links
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.pending_markers import Ending, LeaderOf, Pair, PendingMarkers
from broker.transactions.shard import TransactionShard
from broker.wire.messages import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestMarker,
    WriteTxnMarkersRequestTopic,
    WriteTxnMarkersResponse,
)
from seams.clock import Clock
from seams.loop.tasks import Tasks
from seams.loop.turns import Turns, next_turn

log = logging.getLogger(__name__)

_VERSION: Final = 2
_TIMEOUT_S: Final = 15.0  # a leader waits up to 10 s for its replicas
_LANES: Final = 3  # requests in flight to one broker
_SLOW_LANES: Final = 1
_TOLD_AFTER: Final = 6  # failed attempts before a warning: some seconds

_DONE: Final = (
    ErrorCode.NONE,
    # The log has a later marker of this producer, so the transaction of this marker is not open there.
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


class _Lane(msgspec.Struct, frozen=True):
    node: int
    is_slow: bool


class MarkerSender:
    """The marker sender of one broker. `ended` is called once when all markers of a transaction are written, unless the
    shard's role ended. The ending is pending until `completed`."""

    def __init__(
        self,
        links: Links,
        node_of: Callable[[int], Node | None],
        leader_of: LeaderOf,
        clock: Clock,
        tasks: Tasks,
        ended: Callable[[Ending], None],
    ) -> None:
        self._links = links
        self._node_of = node_of
        self._clock = clock
        self._tasks = tasks
        self._ended = ended
        self.pending = PendingMarkers(leader_of)
        self._under_way: dict[_Lane, set[int]] = {}
        self._wake = asyncio.Event()
        self._has_moved = False
        self.sent = 0
        self.failures = 0

    def add(self, ending: Ending) -> None:
        """Send the markers of a durable decision, unless they are being sent already."""
        if self.pending.add(ending):
            self._finish(ending)
            self._wake.set()

    def completed(self, ending: Ending) -> None:
        """The completion of the transaction is durable: drop its ending."""
        self.pending.completed(ending)

    def forget(self, shard: TransactionShard) -> None:
        self.pending.forget(shard)

    def image_changed(self) -> None:
        self._has_moved = True
        self._wake.set()

    async def run(self) -> None:
        """Send due markers until cancelled."""
        while True:
            self._wake.clear()
            now_s = self._clock.monotonic_s()
            if self._has_moved:
                self._has_moved = False
                changed = self.pending.moved()
            else:
                changed = self.pending.due(now_s)
            for ending in changed:
                self._finish(ending)
            for node, is_slow in list(self.pending.nodes()):
                self._send(_Lane(node, is_slow))
            next_s = self.pending.next_s()
            try:
                async with asyncio.timeout(None if next_s is None else max(next_s - now_s, 0.001)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _send(self, lane: _Lane) -> None:
        busy = self._under_way.setdefault(lane, set())
        free = next((at for at in range(_SLOW_LANES if lane.is_slow else _LANES) if at not in busy), None)
        if free is None:
            return  # the answer of a request in flight wakes this service
        pairs = self.pending.take(lane.node, is_slow=lane.is_slow)
        if pairs:
            busy.add(free)
            self._tasks.spawn(f"markers to {lane.node}", self._round(lane, free, pairs))

    async def _round(self, lane: _Lane, at: int, pairs: list[Pair]) -> None:
        answered: list[ErrorCode] = []
        try:
            answered = await self._ask(lane, at, pairs)
        except (ConnectionError, TimeoutError) as unanswered:
            self.failures += 1
            if any(pair.failures == _TOLD_AFTER for pair in pairs):
                log.warning("%d markers to broker %d are sent again: %s", len(pairs), lane.node, unanswered)
        finally:
            self._under_way[lane].discard(at)
            self._settle(pairs, answered or [ErrorCode.NETWORK_EXCEPTION] * len(pairs))
            self._wake.set()

    def _settle(self, pairs: list[Pair], errors: list[ErrorCode]) -> None:
        now_s = self._clock.monotonic_s()
        changed: dict[int, Ending] = {}
        for pair, error in zip(pairs, errors, strict=True):
            if pair.ending.is_over:
                continue
            if error in _DONE:
                self.pending.answered(pair)
                changed[id(pair.ending)] = pair.ending
                continue
            self.pending.failed(pair, now_s)
            if pair.failures == _TOLD_AFTER:
                at = pair.partition
                log.warning(
                    "the marker of producer %d for %s-%d is refused, and sent again: %s",
                    pair.ending.marker.producer_id,
                    at.topic,
                    at.partition,
                    error.name,
                )
        for ending in changed.values():
            self._finish(ending)

    def _finish(self, ending: Ending) -> None:
        if self.pending.marked(ending):
            self._ended(ending)

    async def _ask(self, lane: _Lane, at: int, pairs: list[Pair]) -> list[ErrorCode]:
        """Send the markers. Returns the error of each pair. Raises ConnectionError, TimeoutError."""
        node = self._node_of(lane.node)
        if node is None:
            raise ConnectionError(f"broker {lane.node} has no session")
        pairs.sort(key=_request_order)
        request = await _request_of(pairs)
        purpose = f"markers-{'slow' if lane.is_slow else at}"
        self.sent += 1
        answer = await self._links.to(node, purpose).ask(request, _VERSION, _TIMEOUT_S)
        return _errors_of(cast(WriteTxnMarkersResponse, answer), pairs)


def _request_order(pair: Pair) -> tuple[float, int, int, TransactionalPartition]:
    """Sort key of a request: older endings come first, and pairs of one ending are neighbours."""
    marker = pair.ending.marker
    return pair.ending.began_s, marker.producer_id, marker.producer_epoch, pair.partition


async def _request_of(pairs: Sequence[Pair]) -> WriteTxnMarkersRequest:
    request = WriteTxnMarkersRequest()
    ending: Ending | None = None
    topic = WriteTxnMarkersRequestTopic()
    turns = Turns()
    for pair in pairs:
        partition = pair.partition
        if pair.ending is not ending:
            ending = pair.ending
            marker = ending.marker
            request.markers.append(
                WriteTxnMarkersRequestMarker(
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    transaction_result=marker.is_commit,
                    coordinator_epoch=marker.coordinator_epoch,
                    transaction_version=marker.transaction_version,
                )
            )
            topic = WriteTxnMarkersRequestTopic()
        if (topic.name, topic.topic_id) != (partition.topic, partition.topic_id) or not topic.partition_indexes:
            topic = WriteTxnMarkersRequestTopic(name=partition.topic, topic_id=partition.topic_id)
            request.markers[-1].topics.append(topic)
        topic.partition_indexes.append(partition.partition)
        if turns.over():
            await next_turn()
    return request


def _errors_of(answer: WriteTxnMarkersResponse, pairs: Sequence[Pair]) -> list[ErrorCode]:
    """The errors in the order of the request, which is also the order of the answer. Raises ConnectionError if the
    answer is for another request."""
    rows = [
        (marker.producer_id, topic.name, row.partition_index, row.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for row in topic.partitions
    ]
    asked = [(pair.ending.marker.producer_id, pair.partition.topic, pair.partition.partition) for pair in pairs]
    if [row[:3] for row in rows] != asked:
        raise ConnectionError("the answer to WriteTxnMarkers names other partitions than the request")
    return [ErrorCode(row[3]) for row in rows]
