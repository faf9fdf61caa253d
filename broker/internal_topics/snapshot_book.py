"""What the bucket's snapshot of a shard lacks, and since when.

Owns the cut of the newest written snapshot and whether anything changed after it, for one leader epoch. Always true: a
snapshot's end is the end of what is *applied*; a batch under way is above it, and stays in the log. Pure: times are the
caller's. Must not know who writes snapshots, nor what is in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class _Taken:
    """A snapshot that was cut and not yet confirmed; `is_behind` when something changed after the cut."""

    end_offset: int
    cut_s: float
    is_behind: bool = False


class SnapshotBook:
    """`end_offset`: everything below it is applied. Times are monotonic seconds."""

    def __init__(self, now_s: float, end_offset: int = 0, found_end: int | None = None) -> None:
        """After a load that ended at `end_offset`; `found_end`: where the snapshot ended that it began with."""
        self.end_offset = end_offset
        self._cut_s = now_s  # when the newest written snapshot was cut; at first, when this began
        self._taken: _Taken | None = None
        # What was replayed above the newest snapshot is of unknown age, so that one is due now: a broker that starts
        # again and again would never reach the end of an interval (simulated seed 2346).
        self._is_dirty = end_offset > (found_end or 0)
        if self._is_dirty:
            self._cut_s = -math.inf

    def applied(self, end_offset: int) -> None:
        """A batch is durable, and the state says so before anything else happens."""
        self.end_offset = max(self.end_offset, end_offset)
        self._is_dirty = True
        if self._taken is not None:
            self._taken.is_behind = True

    def found(self, end_offset: int) -> bool:
        """The snapshot that the bucket has ends there (a load from the local log does not ask); whether it lacks
        nothing."""
        if end_offset >= self.end_offset:
            self._is_dirty = False
        return not self._is_dirty

    @property
    def dirty_since_s(self) -> float | None:
        """Since when a lost disk would lose changes: the newest written snapshot's cut; −∞ after a load that replayed
        what nobody knows to be in one. None while nothing changed after it.

        A snapshot is due when it lies an interval back: at once for a change after a quiet time.
        """
        return self._cut_s if self._is_dirty else None

    def hurry(self) -> None:
        """One is due at the next look, where the newest lacks anything."""
        self._cut_s = -math.inf

    def cut(self, now_s: float) -> int:
        """A snapshot is cut at this moment; where it ends. One at a time."""
        self._taken = _Taken(self.end_offset, now_s)
        return self.end_offset

    def written(self, end_offset: int) -> None:
        """The snapshot that ended there is in the bucket, committed."""
        if self._taken is not None and self._taken.end_offset == end_offset:
            self._cut_s, self._is_dirty = self._taken.cut_s, self._taken.is_behind
            self._taken = None
