"""One commit to a root, decided: the outcome table of a compare-and-set (design 1), events in, one effect out.

Owns what an answer to a conditional PUT means. Always true: only a 200 or the commit's own id in the ring counts as
committed; only another commit's id at its version counts as lost; while the root still stands where the attempt
started, the same bytes go again and nothing else (C3); when the ring no longer reaches back, the outcome stays unknown
and the edit is made again on the root as it stands (C29). Pure: no clock, loop or store; `root.RootStore` performs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic

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


@dataclass(frozen=True, slots=True)
class Put:
    """Effect: replace the root whose ETag is `if_match`, or create it (None)."""

    data: bytes
    if_match: str | None


@dataclass(frozen=True, slots=True)
class Get:
    """Effect: read the root."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Effect: let `seconds` pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Effect: the edit is in `root`, the newest known; its epoch is above the writer's when somebody claimed on top."""

    root: Root[T]


@dataclass(frozen=True, slots=True)
class Refused:
    """Effect: the commit ends with `error`."""

    error: ThermoclineError


Effect = Put | Get | Wait | Done[T] | Refused


@dataclass(frozen=True, slots=True)
class PutAccepted:
    """Event: 200 with an ETag."""

    etag: str


@dataclass(frozen=True, slots=True)
class PutUnknown:
    """Event: any other answer to the PUT, or none (412, 409, 404, 5xx, time-out, reset, empty 200)."""

    why: str


@dataclass(frozen=True, slots=True)
class PutWithheld:
    """Event: the writer may not send it now, and ends the commit so."""

    why: ThermoclineError


@dataclass(frozen=True, slots=True)
class RootFound(Generic[T]):
    """Event: the root as read now; None when no object has the key."""

    root: Root[T] | None


@dataclass(frozen=True, slots=True)
class GetFailed:
    """Event: the read gave nothing."""

    why: str


@dataclass(frozen=True, slots=True)
class Waited:
    """Event: the time asked for has passed."""


Event = PutAccepted | PutUnknown | PutWithheld | RootFound[T] | GetFailed | Waited


@dataclass(frozen=True, slots=True)
class _Attempt(Generic[T]):
    """Bytes under way, sent again unchanged until settled."""

    commit_id: str
    data: bytes
    root: Root[T]  # what the store holds when it lands; its etag is filled in then

    @property
    def version(self) -> int:
        return self.root.version


@dataclass(frozen=True, slots=True)
class Terms(Generic[T]):
    """What a writer wants. `claim` may raise the root's epoch to `epoch`; without it the root must be of that epoch.

    `exclusive` (with claim): a root already of `epoch` is somebody else's claim (elections), not our own of earlier.
    `initial` is edited when there is no root yet; None refuses to create one.
    """

    edit: Callable[[T], T]
    epoch: int
    claim: bool = False
    exclusive: bool = False
    initial: T | None = None


class Commit(Generic[T]):
    """One commit from its first read to its settled end. Sync and pure: `new_id` and `jitter` are its randomness.

    `start` gives the first effect, `step` the next one for each event; Done and Refused are the last. Every event comes
    with the time; past `deadline_s` the commit ends as Retryable, as Unsettled when its bytes may still land.
    """

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
        self._is_sent = False  # the attempt, once at least
        self._seen: Root[T] | None = None
        self._failures = 0
        self._losses = 0
        self._why = ""
        self._after_wait: Put | Get | None = None

    @property
    def unsettled_version(self) -> int | None:
        """The version an attempt sent by this commit may still make; None when none is under way."""
        return self._attempt.version if self._attempt is not None else None

    def start(self, known: Root[T] | None) -> Effect[T]:
        """Begin at the root the caller last saw (it may be stale), or by reading when it saw none."""
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
                return Done(Root(landed.version, landed.epoch, landed.ring, landed.content, etag))
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
        """The outcome table: what the root, read after an attempt (or before any), says about it."""
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
            # Not settled: the PUT we sent may still land, so the same bytes go again on the same state.
            return self._later(Put(attempt.data, None if root is None else root.etag), now_s)
        assert root is not None
        self._attempt = None  # the state it was conditional on is gone: whatever was under way can land no more
        if root.commit_at(attempt.version) == attempt.commit_id:
            return Done(root)
        # Lost to another commit, or (the ring is too short to say) unknown for ever: go on from here either way.
        self._losses += 1
        if self._losses > 1:
            return self._later(Get(), now_s)  # many writers: spread them
        return self._apply_in_time(root, now_s)

    def _apply(self, base: Root[T] | None, *, fresh: bool) -> Effect[T]:
        """Edit `base` into a new attempt. A refusal or a no-op on a root that may be stale reads it again first."""
        terms = self._terms
        try:
            content = self._edited(base)
            if base is not None and base.epoch == terms.epoch and content == base.content:
                return Done(base) if fresh else Get()
            self._attempt, self._is_sent = self._new_attempt(base, content), False
        except Fenced as refusal:
            return Refused(refusal)  # epochs never fall: true of any later root as well
        except ThermoclineError as refusal:
            return Refused(refusal) if fresh else Get()
        return Put(self._attempt.data, None if base is None else base.etag)

    def _apply_in_time(self, root: Root[T] | None, now_s: float) -> Effect[T]:
        effect = self._apply(root, fresh=True)
        if isinstance(effect, Put) and now_s >= self._deadline_s:
            self._attempt = None  # never sent
            return self._late()
        return effect

    def _edited(self, base: Root[T] | None) -> T:
        terms = self._terms
        if base is None:
            if terms.initial is None:
                raise RootMissing(f"there is no root {self._key}")
            return terms.edit(terms.initial)
        if base.epoch > terms.epoch or (terms.exclusive and base.epoch == terms.epoch):
            raise Fenced(f"root {self._key} is of epoch {base.epoch}, this writer's is {terms.epoch}; stop writing")
        if base.epoch < terms.epoch and not terms.claim:
            raise NotClaimed(f"root {self._key} is of epoch {base.epoch}; claim it for epoch {terms.epoch} first")
        return terms.edit(base.content)

    def _new_attempt(self, base: Root[T] | None, content: T) -> _Attempt[T]:
        version = 1 if base is None else base.version + 1
        commit_id = self._new_id()
        ring = (*(() if base is None else base.ring), (version, commit_id))[-RING_LENGTH:]
        data = self._codec.encode(version, self._terms.epoch, ring, content)
        return _Attempt(commit_id, data, Root(version, self._terms.epoch, ring, content, ""))

    def _later(self, effect: Put | Get, now_s: float) -> Effect[T]:
        self._after_wait = effect
        wait_s = min(BACKOFF_S * 2**self._failures, BACKOFF_MAX_S) * self._jitter()
        self._failures = min(self._failures + 1, 16)
        return self._unless_late(Wait(wait_s), now_s)

    def _unless_late(self, effect: Effect[T], now_s: float) -> Effect[T]:
        return effect if now_s < self._deadline_s else self._late()

    def _late(self) -> Refused:
        why = f"root {self._key}: the commit's time is over; last answer: {self._why or 'none'}"
        return Refused(Unsettled(why) if self._attempt is not None else Retryable(why))


def continues(earlier: Root[T], later: Root[T]) -> bool:
    """Whether `later` can have grown out of `earlier`: as far as the ring reaches, the same commits."""
    if later.version < earlier.version or later.epoch < earlier.epoch:
        return False
    commit = later.commit_at(earlier.version)
    return commit is None or commit == earlier.commit_at(earlier.version)
