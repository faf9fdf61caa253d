"""State machine of one shard: loading, serving and failing with the leadership of its partition. Pure.

A shard is loaded once per (partition, leader epoch), into an empty state. Events of another epoch than the current
epoch change nothing (KAFKA-20634). Requests are served in READY only.

    ABSENT ─led─► LOADING ─loaded─► READY           resigned: from anywhere back to ABSENT, the state is dropped
                     │ refused for good             led in a newer epoch: the state is dropped and loaded again
                     ▼                              closed: the broker stops; a loaded state may still be written out
                  FAILED ─loaded─► READY
"""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

NO_EPOCH: Final = -1
_AGAIN_S: Final = 0.5
_AGAIN_MAX_S: Final = 30.0
_FAILED_AGAIN_S: Final = 5.0  # a recovery takes some seconds; replaying a damaged log costs reads
_FAILED_AGAIN_MAX_S: Final = 60.0


class ShardState(Enum):
    ABSENT = "absent"  # this broker does not lead the partition
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # the log cannot be read: an operator has to act; loading is retried
    CLOSED = "closed"


class Life(msgspec.Struct, frozen=True):
    """The state of one shard. `leader_epoch`: the newest epoch led here. `refusals`: consecutive failures in this
    state. `is_whole`: the state has all records of the log, so its snapshot may replace an older snapshot."""

    state: ShardState = ShardState.ABSENT
    leader_epoch: int = NO_EPOCH
    refusals: int = 0
    is_whole: bool = False


# ---- events ----------------------------------------------------------------------------------------------------------


class Led(msgspec.Struct, frozen=True):
    leader_epoch: int


class Resigned(msgspec.Struct, frozen=True):
    """Another broker leads, no broker leads, or the topic is gone."""


class Loaded(msgspec.Struct, frozen=True):
    leader_epoch: int


class Refused(msgspec.Struct, frozen=True):
    """A load ended with `why`. `is_lasting`: the failure will not pass by itself (damage)."""

    leader_epoch: int
    why: str
    is_lasting: bool


class Closed(msgspec.Struct, frozen=True):
    """The broker stops."""


Event: TypeAlias = Led | Resigned | Loaded | Refused | Closed


# ---- commands --------------------------------------------------------------------------------------------------------


class Load(msgspec.Struct, frozen=True):
    """Begin to load into an empty state, after a delay in seconds."""

    leader_epoch: int
    after_s: float = 0.0


class Unload(msgspec.Struct, frozen=True):
    """Stop loading, drop the state and fail pending writes, before any other event."""


class StopLoading(msgspec.Struct, frozen=True):
    """Stop loading; a loaded state stays, for a last snapshot."""


class TellTrouble(msgspec.Struct, frozen=True):
    """Log the failure, at level ERROR if `is_lasting`."""

    why: str
    is_lasting: bool


class TellOver(msgspec.Struct, frozen=True):
    """Log that the failure ended."""


Command: TypeAlias = Load | Unload | StopLoading | TellTrouble | TellOver
Step: TypeAlias = tuple[Life, tuple[Command, ...]]


def step(life: Life, event: Event) -> Step:
    """The next state, and the commands to perform, in order."""
    if life.state is ShardState.CLOSED:
        return life, ()
    match event:
        case Led(leader_epoch):
            return _led(life, leader_epoch)
        case Resigned():
            if life.state is ShardState.ABSENT:
                return life, ()
            return Life(leader_epoch=life.leader_epoch), (Unload(),)
        case Loaded(leader_epoch):
            if not _is_awaited(life, leader_epoch):
                return life, ()
            told = (TellOver(),) if life.refusals or life.state is ShardState.FAILED else ()
            return Life(ShardState.READY, leader_epoch, is_whole=True), told
        case Refused():
            return _refused(life, event) if _is_awaited(life, event.leader_epoch) else (life, ())
        case Closed():
            return replace(life, state=ShardState.CLOSED), (StopLoading(),)


def _led(life: Life, leader_epoch: int) -> Step:
    if leader_epoch <= life.leader_epoch:
        return life, ()  # a repeated or late call
    load = Load(leader_epoch)
    commands = (load,) if life.state is ShardState.ABSENT else (Unload(), load)
    return Life(ShardState.LOADING, leader_epoch), commands


def _is_awaited(life: Life, leader_epoch: int) -> bool:
    return leader_epoch == life.leader_epoch and life.state in (ShardState.LOADING, ShardState.FAILED)


def _refused(life: Life, refused: Refused) -> Step:
    fails_now = refused.is_lasting and life.state is ShardState.LOADING
    told: tuple[Command, ...] = ()
    if fails_now or not life.refusals:
        told = (TellTrouble(refused.why, refused.is_lasting),) if life.state is ShardState.LOADING else ()
    refusals = 1 if fails_now else life.refusals + 1
    state = ShardState.FAILED if fails_now else life.state
    first_s, most_s = (_FAILED_AGAIN_S, _FAILED_AGAIN_MAX_S) if state is ShardState.FAILED else (_AGAIN_S, _AGAIN_MAX_S)
    # The delay is doubled at most ten times, so that the power of two stays small.
    after_s = min(first_s * 2 ** min(refusals - 1, 10), most_s)
    return replace(life, state=state, refusals=refusals), (*told, Load(refused.leader_epoch, after_s))
