"""State machine of one commit to a root: the outcomes of a compare-and-set (design 1). Pure: each event gives one
effect.
- After a 200, or if the ring has the commit's own id, the commit succeeded.
- If the ring has another commit's id for the attempt's version, the other commit won.
- While the root still has the version from which the attempt started, exactly the same bytes are sent again (C3).
- If the ring does not have the attempt's version any more, the outcome is unknown, and the edit is repeated on the
  current root (C29).

`root.RootStore` performs the effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic

import msgspec
from msgspec.structs import replace

from coldstore.roots.root_format import (
    RING_LENGTH,
    NotClaimed,
    Root,
    RootCodec,
    RootMissing,
    RootVanished,
    T,
    Unsettled,
)
from logformat.errors import Corrupt, Fenced, Retryable, ThermoclineError

BACKOFF_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0


class Put(msgspec.Struct, frozen=True):
    """Effect: replace the root whose ETag is `if_match`, or create it (None)."""

    data: bytes
    if_match: str | None


class Get(msgspec.Struct, frozen=True):
    """Effect: read the root."""


class Wait(msgspec.Struct, frozen=True):
    """Effect: let `seconds` pass."""

    seconds: float


class Done(msgspec.Struct, Generic[T], frozen=True):
    """Effect: the commit ends. The edit is in `root`, the newest known root. Its epoch is above the writer's if another
    writer claimed after it."""

    root: Root[T]


class Refused(msgspec.Struct, frozen=True):
    """Effect: the commit ends with `error`."""

    error: ThermoclineError


Effect = Put | Get | Wait | Done[T] | Refused


class PutAccepted(msgspec.Struct, frozen=True):
    """Event: 200 with an ETag."""

    etag: str


class PutUnknown(msgspec.Struct, frozen=True):
    """Event: any other answer to the PUT, or no answer (412, 409, 404, 5xx, time-out, reset, empty 200)."""

    why: str


class PutWithheld(msgspec.Struct, frozen=True):
    """Event: the writer must not send now. This ends the commit."""

    why: ThermoclineError


class RootFound(msgspec.Struct, Generic[T], frozen=True):
    """Event: the root as read now; None if no object has the key."""

    root: Root[T] | None


class GetFailed(msgspec.Struct, frozen=True):
    """Event: the read failed."""

    why: str


class Waited(msgspec.Struct, frozen=True):
    """Event: the time passed."""


Event = PutAccepted | PutUnknown | PutWithheld | RootFound[T] | GetFailed | Waited


class _Attempt(msgspec.Struct, Generic[T], frozen=True):
    """The bytes of one attempt. They are sent again unchanged until the outcome is known."""

    commit_id: str
    data: bytes
    root: Root[T]  # the root that it makes; the ETag is known after its success

    @property
    def version(self) -> int:
        return self.root.version


class Terms(msgspec.Struct, Generic[T], frozen=True):
    """A writer's request. With `claim` the root's epoch may rise to `epoch`; without it the root must have that epoch.

    With `exclusive` (in elections) a root that has `epoch` already is the claim of another broker, not an earlier one
    of this writer. If there is no root, `initial` is edited; if that is None, no root is created."""

    edit: Callable[[T], T]
    epoch: int
    claim: bool = False
    exclusive: bool = False
    initial: T | None = None


class Commit(Generic[T]):
    """State machine of one commit, from its first read to its outcome. Pure: randomness comes only from `new_id` and
    `jitter`.

    `start` gives the first effect, and `step` the next effect for each event. Done and Refused end the commit. Every
    step gets the time. After `deadline_s` the commit ends with Retryable, or with Unsettled if its bytes may still
    arrive."""

    def __init__(
        self,
        key: str,
        codec: RootCodec[T],
        terms: Terms[T],
        *,
        new_id: Callable[[], str],
        jitter: Callable[[], float],
        deadline_s: float,
    ) -> None:
        self._key = key
        self._codec = codec
        self._terms = terms
        self._new_id = new_id
        self._jitter = jitter
        self._deadline_s = deadline_s
        self._attempt: _Attempt[T] | None = None
        self._is_sent = False  # whether the attempt was sent at least once
        self._seen: Root[T] | None = None
        self._failures = 0
        self._losses = 0
        self._why = ""
        self._after_wait: Put | Get | None = None

    @property
    def unsettled_version(self) -> int | None:
        """The version that the pending attempt may still make; None if no attempt is pending."""
        return self._attempt.version if self._attempt is not None else None

    def start(self, known: Root[T] | None) -> Effect[T]:
        """Begin with the root that the caller read last (perhaps stale). Without one, begin with a read."""
        if known is None:
            return Get()
        self._seen = known
        return self._apply(known, fresh=False)

    def step(self, event: Event[T], now_s: float) -> Effect[T]:
        match event:
            case PutAccepted(etag):
                assert self._attempt is not None
                landed = self._attempt.root
                self._attempt = None
                return Done(replace(landed, etag=etag))
            case PutUnknown(why):
                assert self._attempt is not None
                self._why, self._is_sent = why, True
                return self._unless_late(Get(), now_s)
            case PutWithheld(withheld):
                if not self._is_sent:
                    self._attempt = None
                return Refused(withheld)
            case GetFailed(why):
                self._why = why
                return self._later(Get(), now_s)
            case Waited():
                effect = self._after_wait
                assert effect is not None
                return self._unless_late(effect, now_s)
            case RootFound(root):
                return self._found(root, now_s)

    def _found(self, root: Root[T] | None, now_s: float) -> Effect[T]:
        """The next effect after a read of the root: the outcome of the attempt, if there was one."""
        attempt, seen = self._attempt, self._seen
        if root is None and seen is not None:
            self._attempt = None
            return Refused(RootVanished(f"root {self._key} was at version {seen.version} and is gone; stop using it"))
        if root is not None and seen is not None and not continues(seen, root):
            return Refused(
                Corrupt(
                    f"root {self._key} went from version {seen.version} to {root.version} with another history; "
                    "was the bucket restored to an earlier state?"
                )
            )
        self._seen = root
        if attempt is None:
            return self._apply_in_time(root, now_s)
        version = 0 if root is None else root.version
        if version < attempt.version:
            # The outcome is unknown: the PUT may still arrive. So the same bytes are sent again, on the condition of
            # the same version.
            return self._later(Put(attempt.data, None if root is None else root.etag), now_s)
        assert root is not None
        self._attempt = None  # its condition cannot hold any more, so it cannot arrive
        if root.commit_at(attempt.version) == attempt.commit_id:
            return Done(root)
        # Another commit won, or the ring is too short to know. In both cases the edit is repeated on this root.
        self._losses += 1
        if self._losses > 1:
            return self._later(Get(), now_s)  # there are many writers: spread them in time
        return self._apply_in_time(root, now_s)

    def _apply(self, base: Root[T] | None, *, fresh: bool) -> Effect[T]:
        """Make a new attempt by editing `base`. If the edit refuses or changes nothing and `base` may be stale, read
        the root first."""
        terms = self._terms
        try:
            content = self._edited(base)
            if base is not None and base.epoch == terms.epoch and content == base.content:
                return Done(base) if fresh else Get()
            self._attempt, self._is_sent = self._new_attempt(base, content), False
        except Fenced as refusal:
            return Refused(refusal)  # epochs never fall, so a later root would refuse too
        except ThermoclineError as refusal:
            return Refused(refusal) if fresh else Get()
        return Put(self._attempt.data, None if base is None else base.etag)

    def _apply_in_time(self, root: Root[T] | None, now_s: float) -> Effect[T]:
        effect = self._apply(root, fresh=True)
        if isinstance(effect, Put) and now_s >= self._deadline_s:
            self._attempt = None  # it was never sent
            return self._late()
        return effect

    def _edited(self, base: Root[T] | None) -> T:
        terms = self._terms
        if base is None:
            if terms.initial is None:
                raise RootMissing(f"there is no root {self._key}")
            return terms.edit(terms.initial)
        if base.epoch > terms.epoch or (terms.exclusive and base.epoch == terms.epoch):
            raise Fenced(
                f"root {self._key} has epoch {base.epoch}, but this writer has epoch {terms.epoch}; stop writing"
            )
        if base.epoch < terms.epoch and not terms.claim:
            raise NotClaimed(f"root {self._key} has epoch {base.epoch}; claim it for epoch {terms.epoch} first")
        return terms.edit(base.content)

    def _new_attempt(self, base: Root[T] | None, content: T) -> _Attempt[T]:
        version = 1 if base is None else base.version + 1
        commit_id = self._new_id()
        ring = (*(() if base is None else base.ring), (version, commit_id))[-RING_LENGTH:]
        before = 1 if base is None else base.format_version
        data = self._codec.encode(version, self._terms.epoch, ring, content, before)
        written_in = self._codec.format_of(content, before)
        return _Attempt(commit_id, data, Root(version, self._terms.epoch, ring, content, "", written_in))

    def _later(self, effect: Put | Get, now_s: float) -> Effect[T]:
        self._after_wait = effect
        wait_s = min(BACKOFF_S * 2**self._failures, BACKOFF_MAX_S) * self._jitter()
        self._failures = min(self._failures + 1, 16)
        return self._unless_late(Wait(wait_s), now_s)

    def _unless_late(self, effect: Effect[T], now_s: float) -> Effect[T]:
        return effect if now_s < self._deadline_s else self._late()

    def _late(self) -> Refused:
        why = f"root {self._key}: the commit's deadline passed; last answer: {self._why or 'none'}"
        return Refused(Unsettled(why) if self._attempt is not None else Retryable(why))


def continues(earlier: Root[T], later: Root[T]) -> bool:
    """Whether `later` can follow `earlier`: version and epoch do not fall, and the rings agree about the version of
    `earlier`."""
    if later.version < earlier.version or later.epoch < earlier.epoch:
        return False
    commit = later.commit_at(earlier.version)
    return commit is None or commit == earlier.commit_at(earlier.version)
