"""Bytes that the chunk cache and each log must free when the local disk is over its limit. Pure.

The cache yields before the hot log (design 6). Logs are asked only for copied bytes, in complete segments, oldest first
over all logs. Only segments that this process verified count as freed: after a restart during an outage no segment is
verified, so appends stop at the limit. Brokers that share a file system (`sharers`, with this broker) do not
communicate: each frees its share of the excess (D59).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from seams.files.disk import Space

Owner = TypeVar("Owner", bound=Hashable)


class LocalBytes(NamedTuple, Generic[Owner]):
    """A copied local segment: time of its first record (ms), size, owner. `is_sure`: this process verified its copy;
    otherwise it is deleted only if the store confirms the copy."""

    first_append_ms: int
    bytes: int
    owner: Owner
    is_sure: bool


class Shares(NamedTuple, Generic[Owner]):
    """Bytes that each owner should free, and the number that is certain to be freed."""

    wanted: dict[Owner, int]
    sure_bytes: int


def cache_room(cached_bytes: int, space: Space, bytes_max: int, ratio_max: float, sharers: int = 1) -> int:
    """Allowed size of the chunk cache: its limit, reduced if the file system would exceed `ratio_max`. Any excess
    shrinks the cache first; free space may be used again."""
    over = space.total - space.free - int(space.total * ratio_max)
    return max(0, min(bytes_max, cached_bytes - _share(over, sharers)))


def excess_bytes(
    local_bytes: Callable[[], int], space: Space, bytes_max: int | None, ratio_max: float, sharers: int = 1
) -> int:
    """Bytes over `thermocline.local.bytes.max`, or over the share of the file system if that is not set.

    `local_bytes` adds up all logs, so it is called only if needed: not while a file system has room."""
    if bytes_max is not None:
        return local_bytes() - bytes_max
    over = _share(space.total - space.free - int(space.total * ratio_max), sharers)
    # Bytes of other programs cannot be freed here.
    return min(over, local_bytes()) if over > 0 else over


def room_bytes(local_bytes: Callable[[], int], space: Space, wanted: int, sharers: int) -> int:
    """Bytes that logs should free so that `wanted` are free on the file system."""
    lacking = _share(wanted - space.free, sharers)
    return min(lacking, local_bytes()) if lacking > 0 else 0


def _share(size: int, sharers: int) -> int:
    """One broker's part: rounded up for an excess, so it is not zero; rounded towards zero for free room."""
    return -(-size // sharers)


def share_pressure(held: Sequence[LocalBytes[Owner]], excess: int) -> Shares[Owner]:
    """Select the oldest segments for `excess` bytes. Some of them may fail to be freed, so further
    segments that certainly can be freed are selected too.
    """
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
