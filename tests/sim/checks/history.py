"""What clients did and saw, as values: the only thing the checker reads.

Owns the event kinds. Always true: an operation whose outcome is unknown is INFO, never FAIL; times are virtual seconds;
the digest of a history is the run's identity.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum

Place = tuple[str, int]  # topic, partition

CALM = "calm"
"""The text of the note that ends all faults that last."""


class Outcome(Enum):
    """How an operation ended, as far as its client knows."""

    OK = "ok"
    FAIL = "fail"  # certainly without effect
    INFO = "info"  # may or may not have happened


@dataclass(frozen=True, slots=True)
class Send:
    """One idempotent batch. `session` is a producer id's life; `number` grows within it."""

    session: str
    number: int
    place: Place
    values: tuple[str, ...]
    invoked_s: float
    done_s: float
    outcome: Outcome
    offset: int = -1  # of the first value, when OK and told
    node: str = ""  # who acknowledged
    in_sync: tuple[int, ...] = ()  # of several brokers: the set as it was when the client heard


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as polled: `values` is empty for control batches; `digest` covers its bytes but for the leader epoch."""

    base: int
    end: int
    digest: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Poll:
    """One fetch that was answered without error."""

    consumer: str
    place: Place
    offset: int
    invoked_s: float
    done_s: float
    batches: tuple[Batch, ...]
    high_watermark: int
    log_start: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """DeleteRecords below `offset`."""

    place: Place
    offset: int
    invoked_s: float
    done_s: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's offset commit (INFO or OK), or, with `read`, what OffsetFetch answered."""

    group: str
    place: Place
    offset: int
    invoked_s: float
    done_s: float
    outcome: Outcome
    read: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """What the promises allow to be lost: offsets from `start` on that were written before `at_s`.

    `stopped_s`: when the broker that had them last ran (it may have been replaced later).
    """

    place: Place
    start: int
    at_s: float
    kind: str
    stopped_s: float = -1.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """`node` answers since `at_s`; `replaces` may not be believed from then on."""

    node: str
    replaces: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Final:
    """The last reader read everything from `start` to `end`, and was done then."""

    place: Place
    start: int
    end: int
    done_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Note:
    """What the nemesis did, and other facts that only matter to the digest and to people."""

    at_s: float
    text: str


Event = Send | Poll | Delete | Commit | Loss | Epoch | Final | Note


@dataclass
class History:
    """Append-only."""

    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        self.events.append(event)

    def digest(self) -> str:
        state = hashlib.sha256()
        for event in self.events:
            state.update(repr(event).encode())
        return state.hexdigest()[:16]
