"""Where a log begins, by what disk and root say of it.

Always true: a log start never moves back, and never above the log's end; what the bucket holds is what the manifest
names, whatever the topic's configs say by now. Pure but for the log it is told to. Must not know when that is asked.
"""

from __future__ import annotations

from coldstore.manifest.manifest import Manifest
from hotstore.host.lease import Lease
from hotstore.log.partition_log import PartitionLog


def start_at_least(lease: Lease, manifest: Manifest) -> None:
    """Let the local log's start agree with the root: the greater of both; where the bucket holds nothing that is still
    readable, not below the first local segment."""
    local = lease.log
    start = max(local.log_start_offset, manifest.log_start_offset)
    if manifest.remote_end_offset <= max(start, manifest.coverage_start):
        start = max(start, first_local_offset(local))
    lease.advance_log_start(min(start, local.log_end_offset))


def is_held_below(first_local: int, manifest: Manifest) -> bool:
    """Whether a log whose files begin at `first_local` lacks nothing: objects reach that far."""
    return manifest.live.segments > 0 and manifest.remote_end_offset >= first_local


def lacks_segments(local: PartitionLog) -> str | None:
    """Why a log that joins again may lack what its leader has, of a topic that is not tiered: what lies below its files
    was in the bucket, whose objects whoever was assigned it alone meanwhile may have let go (ADR 26). None: it lacks
    nothing."""
    first, start = first_local_offset(local), local.log_start_offset
    if local.config.tiered or first <= start:
        return None
    return f"its files begin at offset {first}, the log at {start}, and its topic is tiered no more"


def first_local_offset(local: PartitionLog) -> int:
    """Base of the oldest local segment."""
    sealed = local.sealed_segments()
    return sealed[0].base_offset if sealed else local.active_info().base_offset
