"""Remembers heads of requests on the general path, and the partition to which each peer produces.

A head is stored only from a request that was read in full and whose principal may write to every topic that the head
names. A head is not used for another principal, host or listener. Unknown topic names are not stored. When the
authorizer's decisions change, all heads are dropped (`Routes.forget`), and the next request of each peer takes the
general path.
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
"""Most topics of all heads together (1.3 KB each at most). Above it the table is cleared, so clients that always send
new names cost time, not memory.
"""

HeadKey = tuple[str, str, str, bytes, bytes]
"""Listener, principal and host of the peer, and the two parts of a head."""


class ProduceRoute:
    """The repeated bytes of one peer, for one principal."""

    __slots__ = ("alike", "allowed_at", "checks", "client_id", "form", "head", "key", "principal")

    def __init__(self, head: Head, principal: str, client_id: str, allowed_at: int) -> None:
        self.head = head
        self.principal = principal
        self.client_id = client_id  # client id of the head
        self.allowed_at = allowed_at  # `Routes.forgotten` when this route was made
        self.key: tuple[str, int] | None = None  # topic and index of the last request for one partition
        # Set after a second request for that partition:
        self.alike: AlikeHead | None = None
        self.form: AlikeAnswer
        self.checks: BatchChecks

    def expect(self, view: memoryview, pos: int, row: Row, checks: BatchChecks) -> None:
        """Note that the request at `pos` is for one partition. After the second request for the same partition, more
        such requests are expected."""
        head, topic, index = self.head, row[0], row[1]
        if self.key != (topic, index):
            self.key = topic, index
            self.alike = None
        elif self.alike is None and head.version >= ALIKE_SINCE:
            self.alike = alike_head(head, view, pos, row)
            self.form = AlikeAnswer(head.version, topic, index)
            self.checks = checks


class Routes:
    """The heads of all connections; each peer has a ProduceRoute (`Peer.produce_route`). `forgotten`: number of calls
    of `forget`; older routes are not used."""

    def __init__(self, partitions: Container[tuple[str, int]]) -> None:
        self._partitions = partitions
        self.forgotten = 0
        self._heads: dict[HeadKey, Head] = {}
        self._topics_count = 0

    def learn(self, peer: Peer, frame: memoryview, body_at: int, call: Call, request: ProduceRequest) -> None:
        """Store the head and the topics of a request that the general path took; its body begins at `body_at`."""
        if request.transactional_id is not None or request.acks not in ACKS:
            return  # the request was refused
        partitions = self._partitions
        names = [
            topic.name
            for topic in request.topic_data
            if any((topic.name, data.index) in partitions for data in topic.partition_data)
        ]  # unknown names may be of any length and number
        begins = head_bytes(frame, body_at, call.version)
        if not names or begins is None:
            return
        host = peer.host if call.access.is_enforced else ""  # an ACL may be for one host only
        key = (peer.listener, peer.principal, host, *begins)
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = Head(call.version, request.acks, request.timeout_ms, *begins)
        for name in names:
            self._remember(key, head, name)
        route = peer.produce_route
        if not isinstance(route, ProduceRoute) or route.head is not head or route.allowed_at != self.forgotten:
            peer.produce_route = ProduceRoute(head, peer.principal, call.client_id, self.forgotten)

    def forget(self) -> None:
        """Drop every head and route, because permissions may have changed."""
        self.forgotten += 1
        for head in self._heads.values():
            head.topics.clear()  # peers still refer to their heads
        self._heads = {}
        self._topics_count = 0

    def _remember(self, key: HeadKey, head: Head, name: str) -> None:
        encoded = name.encode()
        if encoded in head.topics:
            return
        if self._topics_count >= _TOPICS_MAX:
            for other in self._heads.values():
                other.topics.clear()  # peers still refer to their heads
            self._heads = {key: head}
            self._topics_count = 0
        head.topics[encoded] = name
        self._topics_count += 1
