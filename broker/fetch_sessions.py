"""Fetch sessions (KIP-227): what each session asked for, what it was told, and which of its partitions need a look.

Owns the cache of sessions and the rules of Kafka 4.3 for them: ids, epochs, what an incremental answer leaves out,
whose turn it is, who is evicted. Always true: a partition of a session is either *due* (the next fetch looks at it) or
its source was asked to tell when anything moves, so a fetch costs what changed and not what the session holds; sessions
and the memory they hold are bounded, and a client that gets no session (id 0) is served by full fetches. Must not know
how a partition is read, nor who waits.

A source tells once and forgets: what is due already is never told again, so sessions whose clients are gone cost
producers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.wire.messages import FetchRequest, FetchRequestPartition, FetchResponsePartition
from broker.wire.primitives import ZERO_UUID
from seams.rng import Rng

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_INT32_MAX: Final = (1 << 31) - 1
EVICTION_MS_MIN: Final = 120_000  # Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS: how long a session is safe
TARGET_BYTES: Final = 400  # one partition of a session, with its request and its places in the dicts; measured
SESSION_BYTES_TOTAL: Final = 128 << 20  # 335 000 partitions over all sessions; whoever comes later fetches in full
PARTITIONS_MAX: Final = 10_000
"""Of one session: all may be due at once, and a partition that is unknown always is; a look takes 4 µs each. Who wants
more fetches in full."""
_TOPIC_IDS_FROM: Final = 13

Key = tuple[str | UUID, int]
"""A partition as the request names it: by topic name below version 13, by topic id from there on."""


class Source(Protocol):
    """A partition that can tell a session that something about it moved."""

    def tell_once(self, reader: Target) -> None:
        """Call `reader.changed()` at the next move of high watermark, log start or failure, then forget it."""
        ...

    def forget(self, reader: Target) -> None: ...
    def hurry(self) -> None:
        """Somebody waits for what was appended and is not visible yet."""
        ...


class Target:
    """One partition of a fetch; of a session when `session` is set. Offsets are those last answered; −1: none."""

    __slots__ = (
        "high_watermark",
        "index",
        "log_start_offset",
        "session",
        "source",
        "topic",
        "topic_id",
        "turn",
        "wanted",
    )

    def __init__(self, topic: str | None, topic_id: UUID, wanted: FetchRequestPartition) -> None:
        self.topic = topic  # None: the id is unknown
        self.topic_id = topic_id  # zero: asked by name
        self.index = wanted.partition
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1
        self.turn = 0
        self.session: FetchSession | None = None
        self.source: Source | None = None

    def changed(self) -> None:
        """Called by the source, which forgot us by now."""
        session = self.session
        self.source = None
        if session is not None:
            session.due[self] = None
            if session.waiter is not None:
                session.waiter()

    def awaits_flush(self) -> bool:
        """Whether a client waits right now for what is not visible yet; if not, it will ask when it comes."""
        session = self.session
        if session is None:
            return False
        if session.waiter is None:
            session.put_off[self] = None
        return session.waiter is not None

    def must_answer(self, answer: FetchResponsePartition) -> bool:
        """Whether an incremental answer has to carry this partition."""
        return bool(
            answer.high_watermark != self.high_watermark
            or answer.error_code
            or answer.log_start_offset != self.log_start_offset
            or answer.records
            or answer.diverging_epoch is not None
        )

    def answered(self, answer: FetchResponsePartition) -> None:
        """`answer` leaves. After an error the partition is told again, whatever it says by then."""
        self.high_watermark = -1 if answer.error_code else answer.high_watermark
        self.log_start_offset = answer.log_start_offset

    def follow(self, source: Source) -> None:
        """Let `source` tell the session of the next move."""
        if self.session is not None and not self.session.closed and self.source is not source:
            self.leave()
            self.source = source
            source.tell_once(self)

    def leave(self) -> None:
        if self.source is not None:
            self.source.forget(self)
            self.source = None


class FetchSession:
    """One session. `waiter` is set while a request is parked on it: called when something became due."""

    __slots__ = (
        "_turn",
        "bytes",
        "closed",
        "created_ms",
        "due",
        "epoch",
        "is_old",
        "put_off",
        "session_id",
        "targets",
        "used_ms",
        "uses_topic_ids",
        "waiter",
    )

    def __init__(self, session_id: int, targets: dict[Key, Target], now_ms: int, *, uses_topic_ids: bool) -> None:
        self.session_id = session_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.uses_topic_ids = uses_topic_ids
        self.targets = targets
        self.due: dict[Target, None] = dict.fromkeys(targets.values())
        self.put_off: dict[Target, None] = {}  # their sources would have flushed at once, had a client waited
        self.waiter: Callable[[], None] | None = None
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.is_old = False  # as of its last use: may be evicted for a greater one
        self.closed = False
        self.bytes = 0
        self._turn = 0
        for target in targets.values():
            self._join(target)

    def _join(self, target: Target) -> None:
        target.session = self
        self.last(target)
        self.bytes += _weight(target)

    def last(self, target: Target) -> None:
        """Every other partition has its turn before this one again."""
        self._turn += 1
        target.turn = self._turn

    def update(self, wanted: dict[Key, Target], forgotten: Iterable[Key]) -> None:
        """What the client changed: new partitions, new positions, and those it does not want any more."""
        for key, target in wanted.items():
            known = self.targets.get(key)
            if known is None:
                self.targets[key] = known = target
                self._join(target)
            else:
                known.wanted = target.wanted
            self.due[known] = None
        for key in forgotten:
            gone = self.targets.pop(key, None)
            if gone is not None:
                gone.leave()
                gone.session = None
                self.bytes -= _weight(gone)
                self.due.pop(gone, None)
                self.put_off.pop(gone, None)

    def look(self) -> list[Target]:
        """What the next answer may have to carry, in turn."""
        return sorted(self.due, key=_turn_of)

    def park(self, waiter: Callable[[], None]) -> None:
        """A request waits: let everything move on its way to being visible, and tell `waiter`."""
        self.waiter = waiter
        for target in self.put_off:
            if target.source is not None:
                target.source.hurry()
        self.put_off.clear()

    def close(self) -> None:
        """Nothing may tell this session any more; a request that waits answers with what it has."""
        self.closed = True
        for target in self.targets.values():
            target.leave()
        if self.waiter is not None:
            self.waiter()


class Full:
    """Every partition the request names is answered; a session may begin with the answer."""

    __slots__ = ("targets", "wants_session")

    def __init__(self, targets: dict[Key, Target], *, wants_session: bool) -> None:
        self.targets = targets
        self.wants_session = wants_session


class Incremental:
    """Only what changed is answered, while the session's epoch is still `epoch`."""

    __slots__ = ("epoch", "session")

    def __init__(self, session: FetchSession) -> None:
        self.session = session
        self.epoch = session.epoch


class FetchSessions:
    """The cache. Times are milliseconds of one clock that never goes back."""

    def __init__(self, rng: Rng, slots_max: int, bytes_max: int = SESSION_BYTES_TOTAL) -> None:
        self._rng = rng
        self._slots_max = slots_max
        self._bytes_max = bytes_max
        self._sessions: dict[int, FetchSession] = {}  # the one unused for longest comes first
        self.bytes = 0
        self.created_count = 0
        self.incremental_count = 0
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Of all sessions, for metrics."""
        return sum(len(session.targets) for session in self._sessions.values())

    def begin(
        self, request: FetchRequest, version: int, names: dict[UUID, str], now_ms: int
    ) -> Full | Incremental | ErrorCode:
        """What the request asks for, or why it cannot be answered. `names`: topics by id."""
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            # A full fetch ends the session it names: the client lost its thread, or goes.
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
            self._close(session)  # it outgrew what one, or all, may hold: its client begins again and gets none
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.uses_topic_ids:
            _resolve(session, names)
        self._touch(session, now_ms)
        session.epoch = next_epoch(session.epoch)
        if session.waiter is not None:
            session.waiter()  # another request on this session still waits: its epoch is over
        self.incremental_count += 1
        return Incremental(session)

    def create(self, targets: dict[Key, Target], version: int, now_ms: int) -> int:
        """The id of a session over `targets`, all of them just answered; 0 when there is no room for one."""
        if len(targets) > PARTITIONS_MAX:
            return NO_SESSION
        size = sum(map(_weight, targets.values()))
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
        """Whether there is a slot, if need be that of a session unused for long, or of a smaller one that is old."""
        if len(self._sessions) < self._slots_max:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_ms <= EVICTION_MS_MIN:
            # At most slots_max looks, and only for a client that came when all slots are taken.
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


def next_epoch(epoch: int) -> int:
    """1 follows the greatest; a session that ended stays ended."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _INT32_MAX else epoch + 1


def wanted_by(request: FetchRequest, version: int, names: dict[UUID, str]) -> dict[Key, Target]:
    """The request's partitions; of one named twice the last counts, at the first's place."""
    found: dict[Key, Target] = {}
    by_id = version >= _TOPIC_IDS_FROM
    for topic in request.topics:
        name = names.get(topic.topic_id) if by_id else topic.topic
        identity = topic.topic_id if by_id else topic.topic
        for wanted in topic.partitions:
            found[identity, wanted.partition] = Target(name, topic.topic_id if by_id else ZERO_UUID, wanted)
    return found


def forgotten_by(request: FetchRequest, version: int) -> Iterable[Key]:
    for topic in request.forgotten_topics_data:
        identity = topic.topic_id if version >= _TOPIC_IDS_FROM else topic.topic
        for index in topic.partitions:
            yield identity, index


def _resolve(session: FetchSession, names: dict[UUID, str]) -> None:
    """A topic whose id was unknown may be known by now; what is unknown is always due."""
    for target in session.due:
        if target.topic is None:
            target.topic = names.get(target.topic_id)


def _weight(target: Target) -> int:
    """A name is the client's; of a topic asked by id it is ours."""
    return TARGET_BYTES + (4 * len(target.topic or "") if target.topic_id is ZERO_UUID else 0)


def _turn_of(target: Target) -> int:
    return target.turn
