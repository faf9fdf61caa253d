"""Events and effects of the classic group machine.

Immutable values. A `token` is opaque: the machine returns it at most once. Versions of requests appear only as the
features that they allow.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec

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
    """An assignor that a member supports, and its metadata for the leader (opaque here)."""

    name: str
    metadata: bytes


# ---- events -------------------------------------------------------------------------------------------------------


class Join(msgspec.Struct, frozen=True):
    """JoinGroup. `new_member_id` is used if the group has to name the member. Times in ms, as the client sent them."""

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


class Sync(msgspec.Struct, frozen=True):
    """SyncGroup. Names are None in versions without them; only the leader's assignments count."""

    token: object
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class Heartbeat(msgspec.Struct, frozen=True):
    token: object
    member_id: str
    generation: int
    instance_id: str | None = None


class Leaver(NamedTuple):
    """One member of a LeaveGroup. If an administrator removes a member, there is no member id, and the instance id
    names the member."""

    member_id: str
    instance_id: str | None = None


class Leave(msgspec.Struct, frozen=True):
    token: object
    members: tuple[Leaver, ...]


class AdmitCommit(msgspec.Struct, frozen=True):
    """Whether this member may commit offsets now. Generation −1 and no member id: a consumer outside group management.
    `is_transactional`: the commit belongs to a transaction. Such commits name their member and generation only since
    KIP-447, and may be made while the group rebalances.
    """

    token: object
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None
    is_transactional: bool = False


class TimerKind(Enum):
    SESSION = "session"  # a member is silent; this timer also limits a pending or new member
    JOIN = "join"  # the end of the join phase
    SYNC = "sync"  # a member joined and never sent SyncGroup


class Timer(NamedTuple):
    kind: TimerKind
    member_id: str = NO_MEMBER  # set for SESSION only


class TimedOut(msgspec.Struct, frozen=True):
    timer: Timer


class Stored(msgspec.Struct, frozen=True):
    """The outcome of a `Store`: NONE when the record is durable, otherwise the error for members."""

    ticket: int
    error: ErrorCode = ErrorCode.NONE


class Unload(msgspec.Struct, frozen=True):
    """This coordinator stops: every parked request gets `error`, and the group is dead."""

    error: ErrorCode = ErrorCode.NOT_COORDINATOR


Event: TypeAlias = Join | Sync | Heartbeat | Leave | AdmitCommit | TimedOut | Stored | Unload


# ---- effects ------------------------------------------------------------------------------------------------------


class JoinedMember(NamedTuple):
    """A row of the leader's member list."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(msgspec.Struct, frozen=True):
    error: ErrorCode = ErrorCode.NONE
    member_id: str = NO_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncReply(msgspec.Struct, frozen=True):
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatReply(msgspec.Struct, frozen=True):
    error: ErrorCode = ErrorCode.NONE


class LeftMember(NamedTuple):
    member_id: str
    instance_id: str | None
    error: ErrorCode = ErrorCode.NONE


class LeaveReply(msgspec.Struct, frozen=True):
    error: ErrorCode = ErrorCode.NONE
    members: tuple[LeftMember, ...] = ()


class AdmitReply(msgspec.Struct, frozen=True):
    error: ErrorCode = ErrorCode.NONE


Result: TypeAlias = JoinReply | SyncReply | HeartbeatReply | LeaveReply | AdmitReply


class Reply(msgspec.Struct, frozen=True):
    token: object
    result: Result


class StartTimer(msgspec.Struct, frozen=True):
    """(Re)start `timer`. At most one timer of each name runs; a later call replaces the running timer."""

    timer: Timer
    delay_ms: int


class StopTimer(msgspec.Struct, frozen=True):
    timer: Timer


class MemberMetadata(NamedTuple):
    """A member in `__consumer_offsets` (times in ms)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(msgspec.Struct, frozen=True):
    """A finished generation of a group in `__consumer_offsets`. `state_since_ms` is wall time, −1: unknown."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    state_since_ms: int
    members: tuple[MemberMetadata, ...]


class Store(msgspec.Struct, frozen=True):
    """Make `metadata` durable, in the order given, then send `Stored(ticket)`."""

    ticket: int
    metadata: GroupMetadata


Effect: TypeAlias = Reply | StartTimer | StopTimer | Store
