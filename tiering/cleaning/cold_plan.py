"""Plans compaction in the bucket: when a pass is due, which objects are joined, and the cost. Pure.

As in Kafka's cleaner, a pass is due when the dirty bytes are more than `min.cleanable.dirty.ratio` of all bytes in the
bucket, or a record waits for longer than `max.compaction.lag.ms`. A pass thus rewrites at most a fixed multiple of the
bytes copied since the last pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from coldstore.manifest.manifest import Manifest, RemoteSegment
from coldstore.manifest.manifest_entries import RANGES_MAX, REPLACED_MAX
from hotstore.cleaning.cleanable import Cleanable, dirty_part
from hotstore.log.log_config import LogConfig
from logformat.record_batch import INT32_MAX

READ_BYTES_MAX: Final = 45 << 20
"""Bytes of one GET: three GETs for an object of 128 MiB, within the memory of a pass."""
DECIDED_MAX: Final = 1 << 16
"""Most transactions in one object's footer."""
GROUP_MAX: Final = REPLACED_MAX // 4
"""Most objects that become one: the root's list of replaced objects has to have room for all of them."""
STALE_SHARE: Final = 0.5
"""Assumed share of stale bytes in dirty bytes, before a pass has measured it."""


def dirt_of(entries: Sequence[RemoteSegment], clean_end: int, now_ms: int, config: LogConfig) -> Cleanable:
    """The dirty part of the live `entries` of a bucket that is clean below `clean_end`. The dirty part ends before the
    first record that is younger than `min.compaction.lag.ms`."""
    clean = sum(entry.log_bytes for entry in entries if entry.end_offset <= clean_end)
    end, dirty, oldest_ms = clean_end, 0, now_ms
    for entry in entries:
        if entry.end_offset <= clean_end:
            continue
        if config.min_compaction_lag_ms > 0 and entry.max_timestamp_ms > now_ms - config.min_compaction_lag_ms:
            break
        end, dirty = entry.end_offset, dirty + entry.log_bytes
        if entry.max_timestamp_ms >= 0:
            oldest_ms = min(oldest_ms, entry.max_timestamp_ms)
    return dirty_part(clean_end, end, clean, dirty, now_ms - oldest_ms, config)


class Room(msgspec.Struct, frozen=True):
    """Bounds of a new object. `segment_bytes`: its intended size. `first_dirty`: objects above it are rewritten anyway.
    `borders`: offsets that no new object crosses. `objects_max`: it replaces at most as many objects."""

    segment_bytes: int
    first_dirty: int
    borders: frozenset[int] = frozenset()
    objects_max: int = GROUP_MAX


def joins(group: Sequence[RemoteSegment], kept_bytes: int, entry: RemoteSegment, room: Room) -> bool:
    """Whether `entry` becomes one object with `group`, of which `kept_bytes` are left after cleaning.

    All bytes of `entry` might stay. A clean object joins if the new object is then no larger than `segment_bytes`,
    because it may need no rewrite at all. A dirty object joins until the new object is half full, and at most twice as
    large. Kafka plans groups by the sizes before cleaning, so eight segments of which little is left become eight small
    segments."""
    most = room.segment_bytes
    if entry.base_offset >= room.first_dirty and 2 * kept_bytes <= most:
        most = min(2 * most, INT32_MAX)
    return (
        len(group) < room.objects_max
        and group[-1].end_offset == entry.base_offset
        and entry.base_offset not in room.borders
        and kept_bytes + entry.log_bytes <= most
        and entry.end_offset - group[0].base_offset <= INT32_MAX
        and sum(len(e.epochs) + len(e.gaps) for e in (*group, entry)) <= RANGES_MAX
        and sum(e.decided for e in (*group, entry)) <= DECIDED_MAX
    )


class ColdForecast(msgspec.Struct, frozen=True):
    """An estimate of the next pass, for operators. `stale_bytes`: bytes that would be removed from the bucket;
    `requests` and `moved_bytes` (read and written): its cost."""

    stale_bytes: int = 0
    requests: int = 0
    moved_bytes: int = 0
    is_due: bool = False


def forecast(manifest: Manifest, config: LogConfig, stale_share: float | None = None) -> ColdForecast:
    """Estimate from the root alone; no page is read. `stale_share`: measured by the last pass."""
    total = manifest.live.log_bytes
    dirty = min(manifest.bytes_between(manifest.clean_end_offset, manifest.remote_end_offset), total)
    if not dirty or not manifest.live.segments:
        return ColdForecast()
    share = STALE_SHARE if stale_share is None else stale_share
    stale = min(int(dirty * share) + int(min(total - dirty, dirty * (1 - share)) * share), total)
    kept, average = total - stale, max(total // manifest.live.segments, 1)
    reads = (dirty + total) // min(READ_BYTES_MAX, average) + 1
    requests = reads + 2 * -(-kept // config.segment_bytes) + 2  # a PUT and a HEAD of each new object
    return ColdForecast(stale, requests, dirty + total + kept, dirty / total > config.min_cleanable_dirty_ratio)
