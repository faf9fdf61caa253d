"""One fetch session (KIP-227): its partitions, what each was told last, and which of them need a look.

Owns what an incremental answer leaves out, and whose turn it is. Always true: a partition of a session is either *due*
(the next fetch looks at it) or its source was asked to tell when anything moves, so a fetch costs what changed and not
what the session holds. Must not know other sessions (`cache`), how a partition is read, nor who waits.

A source tells once and forgets: what is due already is never told again, so sessions whose clients are gone cost
producers nothing. A replica's high watermark alone is no reason to look: it is *unreported* until records bring it, or
its time is over (`handlers.fetch`).
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

Key = tuple[str | UUID, int]
"""A partition as the request names it: by topic name below version 13, by topic id from there on."""


class Source(Protocol):
    """A partition that can tell a session that something about it moved."""

    def tell_once(self, reader: Target) -> None:
        """Call `reader.changed()` at the next move of high watermark, log start or failure, then forget it. Where
        `reader.is_at_tail`, at the next append too, and for the high watermark `reader.advanced()`, each time."""
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
        self.topic_id = topic_id  # zero: asked by name
        self.index = wanted.partition
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1
        self.verified_end = -1  # told to replicas alone
        self.turn = 0
        self.session: FetchSession | None = None
        self.source: Source | None = None
        self.is_at_tail = False  # of a replica: it reads beyond the high watermark

    def changed(self) -> None:
        """Called by the source, which forgot us by now."""
        session = self.session
        self.source = None
        if session is not None:
            session.due[self] = None
            if session.waiter is not None:
                session.waiter()

    def advanced(self) -> None:
        """Called by the source of a replica: the high watermark moved, and nothing else did."""
        session = self.session
        if session is not None:
            unreported = session.unreported
            unreported[self] = None
            if len(unreported) == 1 and session.waiter is not None:
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
            or answer.verified_end != self.verified_end
            or answer.records
            or answer.diverging_epoch is not None
            or answer.preferred_read_replica >= 0
        )

    def brings_high_watermark_alone(self, answer: FetchResponsePartition) -> bool:
        """Whether nothing else in it is new, of what must be answered, to one that was told a high watermark before."""
        return self.high_watermark >= 0 and not (
            answer.records
            or answer.error_code
            or answer.log_start_offset != self.log_start_offset
            or answer.verified_end != self.verified_end
            or answer.diverging_epoch is not None
        )

    def answered(self, answer: FetchResponsePartition) -> None:
        """`answer` leaves. After an error the partition is told again, whatever it says by then; so is a replica that
        diverges: it takes nothing else of the answer, and asks where it was cut."""
        if self.session is not None:
            self.session.heard(self)
        is_refused = answer.error_code or answer.diverging_epoch is not None
        self.high_watermark = -1 if is_refused else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        self.verified_end = answer.verified_end

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
        "_unreported_since_s",
        "bytes",
        "closed",
        "created_ms",
        "due",
        "epoch",
        "is_old",
        "put_off",
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
        self.put_off: dict[Target, None] = {}  # their sources would have flushed at once, had a client waited
        self.unreported: dict[Target, None] = {}
        """Replicas' whose high watermark is another one than they were told, while nothing else is new."""
        self._unreported_since_s = -1.0
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
        self.bytes += weight(target)

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
                before, now = known.wanted, target.wanted
                if now.current_leader_epoch != before.current_leader_epoch or now.fetch_offset == before.fetch_offset:
                    known.high_watermark = -1  # nothing was told of this epoch; or what was told was not taken
                known.wanted = target.wanted
            self.due[known] = None
        for key in forgotten:
            gone = self.targets.pop(key, None)
            if gone is not None:
                gone.leave()
                gone.session = None
                self.bytes -= weight(gone)
                self.due.pop(gone, None)
                self.put_off.pop(gone, None)
                self.heard(gone)

    def look(self) -> list[Target]:
        """What the next answer may have to carry, in turn."""
        return sorted(self.due, key=_turn_of)

    def report_delay_s(self, now_s: float, at_most_s: float) -> float | None:
        """Until high watermarks that were not told have waited `at_most_s`; None: all were told."""
        if not self.unreported:
            return None
        if self._unreported_since_s < 0.0:
            self._unreported_since_s = now_s
        return max(self._unreported_since_s + at_most_s - now_s, 0.0)

    def read_unreported(self) -> None:
        """In the next look, too."""
        self.due |= self.unreported
        self.unreported.clear()
        self._unreported_since_s = -1.0

    def heard(self, target: Target) -> None:
        """It is told."""
        if self.unreported.pop(target, self) is None and not self.unreported:
            self._unreported_since_s = -1.0

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


def next_epoch(epoch: int) -> int:
    """1 follows the greatest; a session that ended stays ended."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _INT32_MAX else epoch + 1


def weight(target: Target) -> int:
    """A name is the client's; of a topic asked by id it is ours."""
    return TARGET_BYTES + (4 * len(target.topic or "") if target.topic_id is ZERO_UUID else 0)


def _turn_of(target: Target) -> int:
    return target.turn
