"""What each peer does again and again: heads of requests that the general way took, and where a peer's next ones go.

Owns what is learned, and its bound. Always true: a head is remembered only of a request that was read in full and whose
every topic here its principal was allowed, and is given to no other principal or listener; names that nobody knows are
not kept. Must not know how requests are walked, nor what is appended.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from broker.context import Call
from broker.handlers.produce.batch_checks import BatchChecks
from broker.handlers.produce.frame_parser import AlikeHead, Head, Row, alike_head, head_bytes
from broker.handlers.produce.produce import ACKS
from broker.handlers.produce.responses import ALIKE_SINCE, AlikeAnswer
from broker.net.dispatch import Peer
from broker.wire.messages import ProduceRequest

_TOPICS_MAX: Final = 10_000
"""Topics of all heads together: clients with ever new names cost the general way, not memory (1.3 KB each at most)."""

HeadKey = tuple[str, str, bytes, bytes]
"""Listener and principal of the peer, and a head: what one principal was allowed is never taken for another."""


class Route:
    """What one peer does again and again, as that principal."""

    __slots__ = ("alike", "checks", "form", "head", "key", "principal")

    def __init__(self, head: Head, principal: str) -> None:
        self.head = head
        self.principal = principal
        self.key: tuple[str, int] | None = None  # of its last request for one partition
        # These three once it was not the first for that partition:
        self.alike: AlikeHead | None = None
        self.form: AlikeAnswer
        self.checks: BatchChecks

    def expect(self, view: memoryview, pos: int, row: Row, checks: BatchChecks) -> None:
        """The request at `pos` is for one partition: after the second one for the same, more of them are expected."""
        head, topic, index = self.head, row[0], row[1]
        if self.key != (topic, index):
            self.key = topic, index
            self.alike = None
        elif self.alike is None and head.version >= ALIKE_SINCE:
            self.alike = alike_head(head, view, pos, row)
            self.form = AlikeAnswer(head.version, topic, index)
            self.checks = checks


class Routes:
    """One table of heads for all connections; each peer has a Route (`Peer.produce_route`)."""

    def __init__(self, partitions: Container[tuple[str, int]]) -> None:
        self._partitions = partitions
        self._heads: dict[HeadKey, Head] = {}
        self._topics_count = 0

    def learn(self, peer: Peer, frame: memoryview, body_at: int, call: Call, request: ProduceRequest) -> None:
        """The general way took this request, whose body begins at `body_at`: remember its head and its topics."""
        if request.transactional_id is not None or request.acks not in ACKS:
            return  # refused
        partitions = self._partitions
        names = [
            topic.name
            for topic in request.topic_data
            if any((topic.name, data.index) in partitions for data in topic.partition_data)
        ]  # those nobody knows may be of any length and number
        begins = head_bytes(frame, body_at, call.version)
        if not names or begins is None:
            return
        key = (peer.listener, peer.principal, *begins)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = Head(call.version, request.acks, request.timeout_ms, *begins)
        for name in names:
            self._remember(key, head, name)
        route = peer.produce_route
        if not isinstance(route, Route) or route.head is not head:
            peer.produce_route = Route(head, peer.principal)

    def _remember(self, key: HeadKey, head: Head, name: str) -> None:
        encoded = name.encode()
        if encoded in head.topics:
            return
        if self._topics_count >= _TOPICS_MAX:
            for other in self._heads.values():
                other.topics.clear()  # peers hold on to their heads
            self._heads = {key: head}
            self._topics_count = 0
        head.topics[encoded] = name
        self._topics_count += 1
