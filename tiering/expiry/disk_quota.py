"""When the local disk is over its limit: what the chunk cache gives back, and then which logs. Pure.

Always true: the cache yields before the hot log does (design 6); only bytes that the bucket holds are asked for, oldest
first over all logs, and no more than the excess (whole segments); only what this process verified counts as given back:
after a restart in an outage nothing goes, so appends must stop at the limit. Several brokers on one file system
(`sharers`, this one among them) look at the same figures and do not talk: each answers for its share of what is over,
so that it is not given back as often as there are brokers (D59). Must not know disks or how bytes are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from seams.disk import Space

Owner = TypeVar("Owner", bound=Hashable)


class LocalBytes(NamedTuple, Generic[Owner]):
    """A copied local segment: when its first record came (ms), its size, whose it is. `is_sure`: its copy was verified
    by this process; otherwise it goes only if the store answers, and says that it has it."""

    first_append_ms: int
    bytes: int
    owner: Owner
    is_sure: bool


class Shares(NamedTuple, Generic[Owner]):
    """How many bytes each owner is asked for, and how many of all those go whatever the store says."""

    wanted: dict[Owner, int]
    sure_bytes: int


def cache_room(cached_bytes: int, space: Space, bytes_max: int, ratio_max: float, sharers: int = 1) -> int:
    """How large the chunk cache may be: its limit, but never so much that the file system passes `ratio_max`.

    What is over goes from the cache first, whoever's bytes they are; what is free may be taken again.
    """
    over = space.total - space.free - int(space.total * ratio_max)
    return max(0, min(bytes_max, cached_bytes - _share(over, sharers)))


def excess_bytes(
    local_bytes: Callable[[], int], space: Space, bytes_max: int | None, ratio_max: float, sharers: int = 1
) -> int:
    """Bytes over `thermocline.local.bytes.max`, or over its share of the file system when that is not set.

    `local_bytes` adds up all logs, so it is asked only when the answer matters: not while a file system has room.
    """
    if bytes_max is not None:
        return local_bytes() - bytes_max
    over = _share(space.total - space.free - int(space.total * ratio_max), sharers)
    # Other programs' bytes cannot be given back by us.
    return min(over, local_bytes()) if over > 0 else over


def room_bytes(local_bytes: Callable[[], int], space: Space, wanted: int, sharers: int = 1) -> int:
    """Bytes that logs should give so that `wanted` are free on the file system, whoever filled it."""
    lacking = _share(wanted - space.free, sharers)
    return min(lacking, local_bytes()) if lacking > 0 else 0


def _share(size: int, sharers: int) -> int:
    """Of bytes that are over, a part that is not zero; of room that is free (below zero), one that all can take."""
    return -(-size // sharers)


def share_pressure(held: Sequence[LocalBytes[Owner]], excess: int) -> Shares[Owner]:
    """Whom to ask for `excess` bytes, the oldest first; then, in the place of what may turn out not to go, for as much
    of what surely does."""
    shares: dict[Owner, int] = {}
    asked = sure = 0
    for segment in sorted(held, key=lambda one: one.first_append_ms):
        if sure >= excess:
            break
        if asked < excess or segment.is_sure:
            shares[segment.owner] = shares.get(segment.owner, 0) + segment.bytes
            asked += segment.bytes
            sure += segment.bytes * segment.is_sure
    return Shares(shares, sure)
