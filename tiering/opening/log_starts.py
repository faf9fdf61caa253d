"""Determines the start of a log, from disk and root.

A log start never moves back, and is never above the log's end. The manifest, not the topic's configs, shows which
objects exist.
"""

from __future__ import annotations

from coldstore.manifest.manifest import Manifest
from hotstore.host.lease import Lease
from hotstore.log.partition_log import PartitionLog


def start_at_least(lease: Lease, manifest: Manifest) -> None:
    """Raise the local log start to the root's; if the bucket holds nothing readable, at least to the first local
    segment."""
    local = lease.log
    start = max(local.log_start_offset, manifest.log_start_offset)
    if manifest.remote_end_offset <= max(start, manifest.coverage_start):
        start = max(start, first_local_offset(local))
    lease.advance_log_start(min(start, local.log_end_offset))


def is_held_below(first_local: int, manifest: Manifest) -> bool:
    """Whether objects reach `first_local`, the start of the local files, so that the log is complete."""
    return manifest.live.segments > 0 and manifest.remote_end_offset >= first_local


def lacks_segments(local: PartitionLog) -> str | None:
    """The reason why a rejoining log may lack records of its leader, if its topic is no longer tiered; None if the log
    is complete. The records below its files were in the bucket, and a leader without replicas may have deleted those
    objects (ADR 26)."""
    first, start = first_local_offset(local), local.log_start_offset
    if local.config.tiered or first <= start:
        return None
    return f"its files begin at offset {first}, but the log starts at {start}, and its topic is no longer tiered"


def first_local_offset(local: PartitionLog) -> int:
    """Base of the oldest local segment."""
    sealed = local.sealed_segments()
    return sealed[0].base_offset if sealed else local.active_info().base_offset
