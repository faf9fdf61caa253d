"""What a classic group is told and what it wants done: the vocabulary of the machine in `classic`.

Owns values only. Always true: they are immutable, and a `token` is opaque: the machine hands back, at most once, what
it was given. Must not know the wire: versions appear here only as what they allow ("may skip the assignment").
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from broker.error_codes import ErrorCode

NO_MEMBER = ""
NO_GENERATION = -1


class GroupState(Enum):
    """The values are the names that Kafka's tools print."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Protocol(NamedTuple):
    """An assignor a member can run, and what it tells the leader about itself (opaque here)."""

    name: str
    metadata: bytes


# ---- what happens -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """JoinGroup. `new_member_id` is used if the group has to name the member; times in ms, as the client sent them."""

    token: object
    new_member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    member_id_required: bool = False  # v4+ (KIP-394)
    may_skip_assignment: bool = False  # v9+ (KIP-814)


@dataclass(frozen=True, slots=True)
class Sync:
    """SyncGroup. Names are None in versions that do not carry them; only the leader's assignments count."""

    token: object
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    token: object
    member_id: str
    generation: int
    instance_id: str | None = None


class Leaver(NamedTuple):
    """One member of a LeaveGroup. Without a member id the instance id alone names it (an administrator's removal)."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    token: object
    members: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True)
class AdmitCommit:
    """May these identities commit offsets now? Generation −1 and no member id: a consumer outside group management."""

    token: object
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None


class TimerKind(Enum):
    SESSION = "session"  # a member was not heard of; also how long a pending or new member may take
    JOIN = "join"  # the join phase has lasted long enough
    SYNC = "sync"  # somebody joined and never asked for its assignment


class Timer(NamedTuple):
    kind: TimerKind
    member_id: str = NO_MEMBER  # of SESSION


@dataclass(frozen=True, slots=True)
class TimedOut:
    timer: Timer


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a `Store`: NONE when it is durable, else what members are to be told."""

    ticket: int
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Unload:
    """This coordinator stops: everyone parked is told `error`, the group is dead."""

    error: ErrorCode = ErrorCode.NOT_COORDINATOR


Event: TypeAlias = Join | Sync | Heartbeat | Leave | AdmitCommit | TimedOut | Stored | Unload


# ---- what is to be done -------------------------------------------------------------------------------------------


class JoinedMember(NamedTuple):
    """A row of the leader's member list."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncReply:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    error: ErrorCode = ErrorCode.NONE


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class LeaveReply:
    error: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True)
class AdmitReply:
    error: ErrorCode = ErrorCode.NONE


Result: TypeAlias = JoinReply | SyncReply | HeartbeatReply | LeaveReply | AdmitReply


@dataclass(frozen=True, slots=True)
class Reply:
    token: object
    result: Result


@dataclass(frozen=True, slots=True)
class StartTimer:
    """(Re)start `timer`: one of its name runs at a time, the later call wins."""

    timer: Timer
    delay_ms: int


@dataclass(frozen=True, slots=True)
class StopTimer:
    timer: Timer


class MemberMetadata(NamedTuple):
    """A member as `__consumer_offsets` keeps it (times in ms)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group as `__consumer_offsets` keeps it: one finished generation. `state_since_ms` is wall time, −1 unknown."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberMetadata, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """Make `metadata` durable, in the order given, then answer with `Stored(ticket)`."""

    ticket: int
    metadata: GroupMetadata


Effect: TypeAlias = Reply | StartTimer | StopTimer | Store
