"""When the local disk is over its limit: what the chunk cache gives back, and then which logs. Pure.

Always true: the cache yields before the hot log does (design 6); only bytes that the bucket holds are asked for, oldest
first over all logs, and no more than the excess (whole segments). Must not know disks or how bytes are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from seams.disk import Space

Owner = TypeVar("Owner", bound=Hashable)


class LocalBytes(NamedTuple, Generic[Owner]):
    """A copied local segment: when its first record came (ms), its size, whose it is."""

    first_append_ms: int
    bytes: int
    owner: Owner


def cache_room(cached_bytes: int, space: Space, bytes_max: int, ratio_max: float) -> int:
    """How large the chunk cache may be: its limit, but never so much that the file system passes `ratio_max`.

    What is over goes from the cache first, whoever's bytes they are; what is free may be taken again.
    """
    over = space.total - space.free - int(space.total * ratio_max)
    return max(0, min(bytes_max, cached_bytes - over))


def excess_bytes(local_bytes: Callable[[], int], space: Space, bytes_max: int | None, ratio_max: float) -> int:
    """Bytes over `thermocline.local.bytes.max`, or over its share of the file system when that is not set.

    `local_bytes` adds up all logs, so it is asked only when the answer matters: not while a file system has room.
    """
    if bytes_max is not None:
        return local_bytes() - bytes_max
    over = space.total - space.free - int(space.total * ratio_max)
    # Other programs' bytes cannot be given back by us.
    return min(over, local_bytes()) if over > 0 else over


def share_pressure(held: Sequence[LocalBytes[Owner]], excess: int) -> dict[Owner, int]:
    """How many bytes each owner should give, its oldest segments first."""
    shares: dict[Owner, int] = {}
    for segment in sorted(held, key=lambda one: one.first_append_ms):
        if excess <= 0:
            break
        shares[segment.owner] = shares.get(segment.owner, 0) + segment.bytes
        excess -= segment.bytes
    return shares
