"""When the local disk is over its limit, which logs give bytes back. Pure.

Always true: only bytes that the bucket holds are asked for, oldest first over all logs, and no more than the excess
(whole segments). Must not know disks or how bytes are dropped.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from seams.disk import Space

Owner = TypeVar("Owner", bound=Hashable)


class LocalBytes(NamedTuple, Generic[Owner]):
    """A copied local segment: when its first record came (ms), its size, whose it is."""

    first_append_ms: int
    bytes: int
    owner: Owner


def excess_bytes(local_bytes: int, space: Space, bytes_max: int | None, ratio_max: float) -> int:
    """Bytes over `thermocline.local.bytes.max`, or over its share of the file system when that is not set."""
    if bytes_max is not None:
        return local_bytes - bytes_max
    used = space.total - space.free
    # Other programs' bytes cannot be given back by us.
    return min(used - int(space.total * ratio_max), local_bytes)


def share_pressure(held: Sequence[LocalBytes[Owner]], excess: int) -> dict[Owner, int]:
    """How many bytes each owner should give, its oldest segments first."""
    shares: dict[Owner, int] = {}
    for segment in sorted(held, key=lambda one: one.first_append_ms):
        if excess <= 0:
            break
        shares[segment.owner] = shares.get(segment.owner, 0) + segment.bytes
        excess -= segment.bytes
    return shares
