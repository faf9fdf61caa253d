"""One fetch session (KIP-227): its partitions, the values that were last sent for each partition, and the partitions
that are due.

If a partition is *due*, the next fetch reads it. Otherwise its source notifies the session of the next move. The cost
of a fetch thus depends on the number of changes, not on the session's size. A source notifies once: a due partition
gets no more notifications, so sessions of disconnected clients cost producers nothing. A new high watermark alone does
not make a replica's partition due. The high watermark is *unreported* until it is sent with records, or until its
longest delay has passed (`handlers.fetch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol
from uuid import UUID

from broker.wire.messages import FetchRequestPartition, FetchResponsePartition
from broker.wire.primitives import ZERO_UUID

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_INT32_MAX: Final = (1 << 31) - 1
TARGET_BYTES: Final = 400  # one partition of a session, with its request and its places in the dicts; measured

Key = tuple[str | bytes, int]
"""A partition as in the request: by topic name below version 13, by the bytes of its topic id from then on. A client
could choose many ids of which Python's hash is the same, but not their bytes."""


class WatchedPartition(Protocol):
    """A partition that can notify a session of a move."""

    def tell_once(self, reader: Target) -> None:
        """Call `reader.changed()` at the next move of high watermark, log start or failure, then forget the reader. If
        `reader.is_at_tail`, the next append is also such a move, and `reader.advanced()` is called at each move of the
        high watermark."""
        ...

    def forget(self, reader: Target) -> None: ...
    def hurry(self) -> None:
        """A client waits for appended records that are not visible yet."""
        ...


class Target:
    """One partition of a fetch; it belongs to a session if `session` is set. Offsets are the offsets that were sent
    last; −1: none was sent."""

    __slots__ = (
        "high_watermark",
        "index",
        "is_at_tail",
        "log_start_offset",
        "session",
        "source",
        "topic",
        "topic_id",
        "turn",
        "verified_end",
        "wanted",
    )

    def __init__(self, topic: str | None, topic_id: UUID, wanted: FetchRequestPartition) -> None:
        self.topic = topic  # None: the id is unknown
        self.topic_id = topic_id  # zero: requested by name
        self.index = wanted.partition
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1
        self.verified_end = -1  # used for replicas only
        self.turn = 0
        self.session: FetchSession | None = None
        self.source: WatchedPartition | None = None
        self.is_at_tail = False  # a replica reads above the high watermark

    def changed(self) -> None:
        """Called by the source, which has forgotten this target."""
        session = self.session
        self.source = None
        if session is not None:
            session.due[self] = None
            if session.waiter is not None:
                session.waiter()

    def advanced(self) -> None:
        """Called by a replica's source: only the high watermark moved."""
        session = self.session
        if session is not None:
            unreported = session.unreported
            unreported[self] = None
            if len(unreported) == 1 and session.waiter is not None:
                session.waiter()

    def awaits_flush(self) -> bool:
        """Whether a client waits now for records that are not visible yet. If no client waits, the flush begins when
        the session's next request waits."""
        session = self.session
        if session is None:
            return False
        if session.waiter is None:
            session.flush_deferred[self] = None
        return session.waiter is not None

    def must_answer(self, answer: FetchResponsePartition) -> bool:
        """Whether an incremental response has to contain this partition."""
        return bool(
            answer.high_watermark != self.high_watermark
            or answer.error_code
            or answer.log_start_offset != self.log_start_offset
            or answer.verified_end != self.verified_end
            or answer.records
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
        )

    def only_high_watermark_is_new(self, answer: FetchResponsePartition) -> bool:
        """Whether an earlier response had a high watermark, and only the high watermark is new in `answer`."""
        return self.high_watermark >= 0 and not (
            answer.records
            or answer.error_code
            or answer.log_start_offset != self.log_start_offset
            or answer.verified_end != self.verified_end
            or answer.diverging_epoch is not None
        )

    def answered(self, answer: FetchResponsePartition) -> None:
        """`answer` is sent. After an error the partition is always sent again. It is also sent again after a
        divergence, because the replica ignores the rest of that response and asks again at its truncation offset."""
        if self.session is not None:
            self.session.reported(self)
        is_refused = answer.error_code or answer.diverging_epoch is not None
        self.high_watermark = -1 if is_refused else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        self.verified_end = answer.verified_end

    def subscribe(self, source: WatchedPartition) -> None:
        """Let `source` notify the session of its next move."""
        if self.session is not None and not self.session.closed and self.source is not source:
            self.unsubscribe()
            self.source = source
            source.tell_once(self)

    def unsubscribe(self) -> None:
        if self.source is not None:
            self.source.forget(self)
            self.source = None


class FetchSession:
    """One session. `waiter` is set while a request is parked on the session. It is called when something becomes
    due."""

    __slots__ = (
        "_turn",
        "_unreported_since_s",
        "bytes",
        "checked_at",
        "closed",
        "created_ms",
        "due",
        "epoch",
        "flush_deferred",
        "is_old",
        "session_id",
        "targets",
        "unreported",
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
        self.flush_deferred: dict[Target, None] = {}  # sources that flush early, but only while a client waits
        self.unreported: dict[Target, None] = {}
        """Replicas' partitions of which only the high watermark is new."""
        self._unreported_since_s = -1.0
        self.waiter: Callable[[], None] | None = None
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.is_old = False  # set at the last use; an old session may be evicted for a larger one
        self.closed = False
        self.bytes = 0
        self.checked_at = -1  # the authorizer's version at which its topics were allowed
        self._turn = 0
        for target in targets.values():
            self._join(target)

    def _join(self, target: Target) -> None:
        target.session = self
        self.move_to_end(target)
        self.bytes += weight(target)

    def move_to_end(self, target: Target) -> None:
        """Move to the end of the order in which partitions are read."""
        self._turn += 1
        target.turn = self._turn

    def update(self, wanted: dict[Key, Target], forgotten: Iterable[Key]) -> None:
        """Apply the client's changes: new partitions, new positions, forgotten partitions."""
        for key, target in wanted.items():
            known = self.targets.get(key)
            if known is None:
                self.targets[key] = known = target
                self._join(target)
            else:
                before, now = known.wanted, target.wanted
                if now.current_leader_epoch != before.current_leader_epoch or now.fetch_offset == before.fetch_offset:
                    known.high_watermark = -1  # no response of this epoch was sent, or the client did not use it
                known.wanted = target.wanted
            self.due[known] = None
        for key in forgotten:
            gone = self.targets.pop(key, None)
            if gone is not None:
                gone.unsubscribe()
                gone.session = None
                self.bytes -= weight(gone)
                self.due.pop(gone, None)
                self.flush_deferred.pop(gone, None)
                self.reported(gone)

    def check_again(self, version: int) -> None:
        """Make every partition due if the authorizer changed since the last fetch, because a topic may be refused
        now."""
        if version != self.checked_at:
            self.checked_at = version
            self.due = dict.fromkeys(self.targets.values())

    def due_in_turn(self) -> list[Target]:
        """Partitions that the next response may have to contain, in the order of reading."""
        return sorted(self.due, key=lambda target: target.turn)

    def report_delay_s(self, now_s: float, at_most_s: float) -> float | None:
        """Seconds until unreported high watermarks have waited `at_most_s`; None when all are reported."""
        if not self.unreported:
            return None
        if self._unreported_since_s < 0.0:
            self._unreported_since_s = now_s
        return max(self._unreported_since_s + at_most_s - now_s, 0.0)

    def read_unreported(self) -> None:
        self.due |= self.unreported
        self.unreported.clear()
        self._unreported_since_s = -1.0

    def reported(self, target: Target) -> None:
        if self.unreported.pop(target, self) is None and not self.unreported:
            self._unreported_since_s = -1.0

    def park(self, waiter: Callable[[], None]) -> None:
        """A request waits: make appended records visible soon, and call `waiter` when something is due."""
        self.waiter = waiter
        for target in self.flush_deferred:
            if target.source is not None:
                target.source.hurry()
        self.flush_deferred.clear()

    def close(self) -> None:
        """End all notifications; a waiting request answers with its present content."""
        self.closed = True
        for target in self.targets.values():
            target.unsubscribe()
        if self.waiter is not None:
            self.waiter()


def next_epoch(epoch: int) -> int:
    """The next epoch: 1 follows the greatest epoch, and the final epoch stays final."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _INT32_MAX else epoch + 1


def weight(target: Target) -> int:
    """Bytes of a target. A topic name comes from the client; the name for an id is shared."""
    return TARGET_BYTES + (4 * len(target.topic or "") if target.topic_id is ZERO_UUID else 0)
