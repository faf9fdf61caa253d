"""The fetch sessions of a broker (KIP-227): ids, epochs and eviction as in Kafka 4.3.

The number of sessions and their memory are bounded. A client that gets no session (id 0) sends full fetches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.fetch_sessions.session import FINAL_EPOCH, INITIAL_EPOCH, FetchSession, Key, Target, next_epoch, weight
from broker.wire.messages import FetchRequest
from broker.wire.primitives import ZERO_UUID
from seams.rng import Rng

NO_SESSION: Final = 0
_INT32_MAX: Final = (1 << 31) - 1
EVICTION_MS_MIN: Final = 120_000  # Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS: time without eviction
SESSION_BYTES_TOTAL: Final = 128 << 20  # 335 000 partitions over all sessions; further clients fetch in full
PARTITIONS_MAX: Final = 10_000
"""Most partitions of one session. All may be due at once, 4 µs each. Clients with more send full fetches."""
_TOPIC_IDS_FROM: Final = 13


class Names(Protocol):
    """Topic names by id; a dict has this interface."""

    def get(self, topic_id: UUID, /) -> str | None: ...


class Full(NamedTuple):
    """Every partition of the request is answered; a session may begin with the response."""

    targets: dict[Key, Target]
    wants_session: bool


class Incremental(NamedTuple):
    """Only changes are answered, if the session's epoch is still `epoch`."""

    session: FetchSession
    epoch: int


class FetchSessions:
    """The cache of fetch sessions. Times are milliseconds of a monotonic clock."""

    def __init__(self, rng: Rng, slots_max: int, bytes_max: int = SESSION_BYTES_TOTAL) -> None:
        self._rng = rng
        self._slots_max = slots_max
        self._bytes_max = bytes_max
        self._sessions: dict[int, FetchSession] = {}  # least recently used first
        self.bytes = 0
        self.created_count = 0
        self.incremental_count = 0
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Partitions of all sessions, for metrics."""
        return sum(len(session.targets) for session in self._sessions.values())

    def begin(self, request: FetchRequest, version: int, names: Names, now_ms: int) -> Full | Incremental | ErrorCode:
        """The fetch that the request asks for, or its error. `names`: topics by id."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # A full fetch ends the session that it names: the client restarts the session, or leaves.
            self._close(self._sessions.get(request.session_id))
            wants_session = request.session_epoch == INITIAL_EPOCH
            return Full(wanted_by(request, version, names), wants_session=wants_session)
        session = self._sessions.get(request.session_id)
        if session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != (version >= _TOPIC_IDS_FROM):
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        wanted = wanted_by(request, version, names)
        held = session.bytes
        session.update(wanted, forgotten_by(request, version))
        self.bytes += session.bytes - held
        if not session.targets:
            self._close(session)
            return Full(wanted, wants_session=False)
        if session.bytes > held and (self.bytes > self._bytes_max or len(session.targets) > PARTITIONS_MAX):
            self._close(session)  # too large for one session, or for the cache: the client restarts without a session
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.uses_topic_ids:
            _resolve(session, names)
        self._touch(session, now_ms)
        session.epoch = next_epoch(session.epoch)
        if session.waiter is not None:
            session.waiter()  # a request of the previous epoch still waits here
        self.incremental_count += 1
        return Incremental(session, session.epoch)

    def create(self, targets: dict[Key, Target], version: int, now_ms: int) -> int:
        """Create a session for `targets`, which were just answered. Returns the session's id; 0 if there is no room."""
        if len(targets) > PARTITIONS_MAX:
            return NO_SESSION
        size = sum(map(weight, targets.values()))
        if self.bytes + size > self._bytes_max or not self._make_room(len(targets), now_ms):
            return NO_SESSION
        session = FetchSession(self._new_id(), targets, now_ms, uses_topic_ids=version >= _TOPIC_IDS_FROM)
        self._sessions[session.session_id] = session
        self.bytes += session.bytes
        self.created_count += 1
        return session.session_id

    def _new_id(self) -> int:
        while True:
            session_id = 1 + self._rng.randrange(_INT32_MAX)
            if session_id not in self._sessions:
                return session_id

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        session.used_ms = now_ms
        session.is_old = now_ms - session.created_ms > EVICTION_MS_MIN
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)

    def _make_room(self, size: int, now_ms: int) -> bool:
        """Whether there is a slot: a free slot, or the slot of a long unused session or of an old session with fewer
        partitions."""
        if len(self._sessions) < self._slots_max:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms <= EVICTION_MS_MIN:
            # At most slots_max steps, and only when all slots are taken.
            old = (session for session in self._sessions.values() if session.is_old)
            smallest = min(old, key=lambda session: (len(session.targets), session.session_id), default=None)
            if smallest is None or size <= len(smallest.targets):
                return False
            oldest = smallest
        self._close(oldest)
        self.evicted_count += 1
        return True

    def _close(self, session: FetchSession | None) -> None:
        if session is not None:
            del self._sessions[session.session_id]
            self.bytes -= session.bytes
            session.close()


def wanted_by(request: FetchRequest, version: int, names: Names) -> dict[Key, Target]:
    """The request's partitions. A partition that is named twice keeps its first place in the order, with the last
    position.
    """
    found: dict[Key, Target] = {}
    by_id = version >= _TOPIC_IDS_FROM
    for topic in request.topics:
        name = names.get(topic.topic_id) if by_id else topic.topic
        identity = topic.topic_id.bytes if by_id else topic.topic
        for wanted in topic.partitions:
            found[identity, wanted.partition] = Target(name, topic.topic_id if by_id else ZERO_UUID, wanted)
    return found


def forgotten_by(request: FetchRequest, version: int) -> Iterable[Key]:
    for topic in request.forgotten_topics_data:
        identity = topic.topic_id.bytes if version >= _TOPIC_IDS_FROM else topic.topic
        for index in topic.partitions:
            yield identity, index


def _resolve(session: FetchSession, names: Names) -> None:
    """Look up topics whose id was unknown; a partition of an unknown topic is always due."""
    for target in session.due:
        if target.topic is None:
            target.topic = names.get(target.topic_id)
