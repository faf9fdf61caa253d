"""Follower's side of a fetch session: selects the positions of the next request (KIP-227). Pure.

Each response belongs to the last request. After an error, and in a new session of this broker, the next request starts
a new fetch session with all positions, because a leader discards reports of an ended broker session (R16). The cost of
all other requests depends only on the number of changes. Source: Kafka's FetchSessionHandler.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.replication.follower import FetchPosition
from broker.wire.messages import (
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
)

VERSION: Final = 17
_INT32_MAX: Final = (1 << 31) - 1
_NO_SESSION: Final = 0

Key = tuple[int, int]
"""A partition: topic id as an integer, and index. Hashing and comparing a UUID runs in Python, fifty times a round."""


def key_of(topic_id: UUID, index: int) -> Key:
    return topic_id.int, index


@lru_cache(1024)
def topic_id_of(number: int) -> UUID:
    return UUID(int=number)


class Limits(NamedTuple):
    """Limits of one fetch. `wait_ms`: how long the leader may park it."""

    wait_ms: int
    bytes_max: int
    partition_bytes_max: int


class FetchSessionHandler:
    def __init__(self) -> None:
        self.sent: dict[Key, FetchPosition] = {}  # positions in the last request
        self._wanted: dict[Key, FetchPosition] = {}
        self._changed: dict[Key, None] = {}  # keys whose wanted and sent positions may differ
        self._resend: set[Key] = set()
        self._session_id = _NO_SESSION
        self._epoch = 0
        self._broker_epoch = -1
        self._was_refused = False  # the leader had no room for another session

    @property
    def wants_any(self) -> bool:
        return bool(self._wanted)

    def want(self, key: Key, at: FetchPosition | None) -> None:
        """Fetch `key` at this position from the next request on. With None `key` is not fetched any more, and the
        leader forgets it."""
        if at is None:
            self._wanted.pop(key, None)
        else:
            self._wanted[key] = at
        self._changed[key] = None

    def next_request(self, node_id: int, broker_epoch: int, incarnation: str, of: Limits) -> FetchRequest:
        """The next request. It names the positions that its leader does not know."""
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self.reset()
        is_full = self._epoch == 0
        forgotten: list[Key] = []
        if is_full:
            self.sent = named = dict(self._wanted)
        else:
            named = self._news(forgotten)
        self._changed.clear()
        self._resend.clear()
        return FetchRequest(
            replica_state=FetchRequestReplicaState(node_id, broker_epoch, incarnation),
            max_wait_ms=of.wait_ms,
            min_bytes=0 if is_full and not self._was_refused else 1,  # a new session is answered at once
            max_bytes=of.bytes_max,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=_by_topic(named, of.partition_bytes_max),
            forgotten_topics_data=_forgotten(forgotten),
        )

    def _news(self, forgotten: list[Key]) -> dict[Key, FetchPosition]:
        """The wanted positions that the leader does not know. They count as sent. `forgotten` gets the keys that the
        leader has to forget."""
        sent, named = self.sent, {}
        for key in self._changed:
            at = self._wanted.get(key)
            if at is None:
                if sent.pop(key, None) is not None:
                    forgotten.append(key)
            elif sent.get(key) != at or key in self._resend:
                sent[key] = named[key] = at
        return named

    def answered(self, answer: FetchResponse) -> bool:
        """Apply the response to the session. Returns whether it has partitions to read."""
        if answer.error_code != ErrorCode.NONE:
            self.reset()
            return False
        if self._epoch == 0:
            self._session_id = answer.session_id
            self._was_refused = answer.session_id == _NO_SESSION
        if self._session_id != _NO_SESSION:
            self._epoch = 1 if self._epoch == _INT32_MAX else self._epoch + 1
        return True

    def resend(self, key: Key) -> None:
        """Name the key in the next request even if its position is unchanged: the response was not applied, and the
        leader does not repeat it."""
        self._resend.add(key)
        self._changed[key] = None

    def reset(self) -> None:
        """Start a new fetch session, because no usable response arrived."""
        self._session_id, self._epoch = _NO_SESSION, 0
        self.sent = {}


def _by_topic(named: Mapping[Key, FetchPosition], bytes_max: int) -> list[FetchRequestTopic]:
    topics: dict[int, FetchRequestTopic] = {}
    for (number, index), at in named.items():
        topic = topics.get(number)
        if topic is None:
            topic = topics[number] = FetchRequestTopic(topic_id=topic_id_of(number), partitions=[])
        topic.partitions.append(
            FetchRequestPartition(
                partition=index,
                current_leader_epoch=at.leader_epoch,
                fetch_offset=at.offset,
                last_fetched_epoch=at.last_fetched_epoch,
                log_start_offset=at.log_start_offset,
                copies_on=at.copies_on,
                clean_end=at.clean_end,
                partition_max_bytes=bytes_max,
            )
        )
    return list(topics.values())


def _forgotten(keys: list[Key]) -> list[FetchRequestForgottenTopic]:
    topics: dict[int, FetchRequestForgottenTopic] = {}
    for number, index in keys:
        topic = topics.setdefault(number, FetchRequestForgottenTopic(topic_id=topic_id_of(number), partitions=[]))
        topic.partitions.append(index)
    return list(topics.values())
