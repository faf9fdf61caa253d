"""Named points where a test may kill the process by SIGKILL, between two steps whose order matters.

An unarmed point costs one comparison. Only the `serve` command arms one, from `THERMOCLINE_CRASH_AT=<point>[:n]`, and
only with `thermocline.testing=true`.
"""

from __future__ import annotations

import os
import signal

POINTS: dict[str, str] = {
    "append.written": "bytes of a batch are in the page cache, but nothing was acknowledged",
    "flush.synced": "fdatasync returned, but the flushed end has not moved",
    "roll.created": "the new active segment's file exists, but its directory is not synced",
    "clean.written": "a cleaned segment is written and synced, but it is not part of the log yet",
    "clean.committed": "a cleaned segment is part of the log, but the segments that it replaces are still there",
    "clean.replaced": "the segments that a cleaned one replaces are deleted, except the log file of the first",
    "copy.checked": "a segment was read, checked and sent, but its footer was not: there is no object yet",
    "copy.uploaded": "the segment object is in the bucket, but no manifest names it",
    "copy.page_written": "a manifest page is in the bucket, but no root names it",
    "copy.committed": "the manifest names the object, but it was not read back",
    "copy.verified": "the object was verified after the commit, but local bytes are still there",
    "cold.read": "the bucket's cleaner read the keys of a range, but nothing of it is written",
    "cold.written": "a cleaned object is complete in the scratch directory, but not in the bucket",
    "cold.uploaded": "a cleaned object is in the bucket, but no manifest names it",
    "cold.page_written": "a page that lists a cleaned object is in the bucket, but no root names it",
    "cold.committed": "the manifest names the cleaned objects, and the replaced ones wait for the end of their grace",
    "cold.replaced_deleted": "replaced objects were deleted after the grace, but the root still lists them",
    "expire.local_unlinked": "one file of a local segment is unlinked, but the others are not",
    "expire.start_moved": "the log start moved in the root, but no object was deleted",
    "expire.object_deleted": "an object was deleted, but the deletion cursor has not advanced",
    "expire.withdrawn": "tiering of a topic was switched off and its root names no object any more, but none was "
    "deleted",
    "expire.unnamed_deleted": "some objects that no root names any more were deleted, others perhaps not yet",
    "reserve.committed": "the root's reserved end was raised, but the local copy was not",
    "reserve.released": "the reservation of a log that is wholly in the bucket was given back, but no answer was sent "
    "yet",
    "claim.committed": "the root carries our epoch, but nothing else was done in it",
    "gap.appended": "declared gaps fill the lost tail in the local log, but none of them was copied",
    "topic.committed": "a new topic is in cluster.json, but its directories do not exist",
    "topic.rooted": "a new topic's manifests exist, but the topic is not visible",
    "topic.deleted": "a topic left cluster.json, but its local files and objects remain",
    "offsets.snapshot": "a group snapshot is in the bucket, but no root names it",
    "shutdown.sealed": "everything was sealed and copied, but the reservation was not given back",
    "shutdown.marked": "the clean shutdown marker is written, but the lease is not released",
}

_armed: str | None = None
_left = 0


def arm(spec: str) -> None:
    """Arm `<point>` or `<point>:n` (kill at the n-th pass, from 1). Raises ValueError for an unknown point."""
    global _armed, _left
    point, _, count = spec.partition(":")
    if point not in POINTS:
        raise ValueError(f"unknown crash point {point!r}; `thermocline debug crash-points` lists them")
    _armed, _left = point, int(count or 1)


def reach(point: str) -> None:
    """Pass a point. Kills the process if this point is armed."""
    global _left
    if _armed is None or _armed != point:
        return
    _left -= 1
    if _left <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
