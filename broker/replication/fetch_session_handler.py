"""A follower's half of a fetch session: what its next question names, and what its leader knows already (KIP-227).

Owns the session's number, what is wanted, and the positions that were told. Always true: an answer is of the positions
told last; after anything unexpected, and in another session of this broker, the next question names all of them anew,
as the first of another fetch session: a leader forgets what a broker reported before its session ended, and looks in
vain at a fetch session in which nothing moves (R16); any other question costs what changed since the last one, however
much is wanted. Pure. Must not know connections, logs, nor what is done with answers. Source: Kafka's
FetchSessionHandler.
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
"""A partition by topic id, as its integer, and index: a UUID is hashed and compared in Python, fifty times a round."""


def key_of(topic_id: UUID, index: int) -> Key:
    """Of one partition."""
    return topic_id.int, index


@lru_cache(1024)
def topic_id_of(number: int) -> UUID:
    """Of a key's first half."""
    return UUID(int=number)


class Limits(NamedTuple):
    """Of one question. `wait_ms`: how long the leader may park it when there is nothing to tell."""

    wait_ms: int
    bytes_max: int
    partition_bytes_max: int


class FetchSessionHandler:
    """With one leader, over one connection after the other."""

    def __init__(self) -> None:
        self.told: dict[Key, FetchPosition] = {}
        """As of the last question."""
        self._wanted: dict[Key, FetchPosition] = {}
        self._changed: dict[Key, None] = {}  # of which `told` may say something else
        self._anew: set[Key] = set()
        self._session_id = _NO_SESSION
        self._epoch = 0
        self._broker_epoch = -1
        self._was_refused = False  # the leader has no room for a session

    @property
    def wants_any(self) -> bool:
        """Whether there is anything to ask for."""
        return bool(self._wanted)

    def want(self, key: Key, at: FetchPosition | None) -> None:
        """From the next question on; None: it is not asked for, and its leader is told to forget it."""
        if at is None:
            self._wanted.pop(key, None)
        else:
            self._wanted[key] = at
        self._changed[key] = None

    def question(self, node_id: int, broker_epoch: int, incarnation: str, of: Limits) -> FetchRequest:
        """The next question, of all that is wanted; it names what its leader does not know."""
        if broker_epoch != self._broker_epoch:
            self._broker_epoch = broker_epoch
            self.lost()
        is_full = self._epoch == 0
        forgotten: list[Key] = []
        if is_full:
            self.told = named = dict(self._wanted)
        else:
            named = self._news(forgotten)
        self._changed.clear()
        self._anew.clear()
        return FetchRequest(
            replica_state=FetchRequestReplicaState(node_id, broker_epoch, incarnation),
            max_wait_ms=of.wait_ms,
            min_bytes=0 if is_full and not self._was_refused else 1,  # the first one makes the session: at once
            max_bytes=of.bytes_max,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=_by_topic(named, of.partition_bytes_max),
            forgotten_topics_data=_forgotten(forgotten),
        )

    def _news(self, forgotten: list[Key]) -> dict[Key, FetchPosition]:
        """What the leader does not know of what is wanted; from here on it counts as told."""
        told, named = self.told, {}
        for key in self._changed:
            at = self._wanted.get(key)
            if at is None:
                if told.pop(key, None) is not None:
                    forgotten.append(key)
            elif told.get(key) != at or key in self._anew:
                told[key] = named[key] = at
        return named

    def answered(self, answer: FetchResponse) -> bool:
        """Whether `answer` says anything of partitions."""
        if answer.error_code != ErrorCode.NONE:
            self.lost()
            return False
        if self._epoch == 0:
            self._session_id = answer.session_id
            self._was_refused = answer.session_id == _NO_SESSION
        if self._session_id != _NO_SESSION:
            self._epoch = 1 if self._epoch == _INT32_MAX else self._epoch + 1
        return True

    def anew(self, key: Key) -> None:
        """Name it in the next question that has it, also where it asks for the same again: what the answer said was not
        taken, and its leader tells nothing twice."""
        self._anew.add(key)
        self._changed[key] = None

    def lost(self) -> None:
        """No answer came, or one that cannot be used: begin another session."""
        self._session_id, self._epoch = _NO_SESSION, 0
        self.told = {}


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
