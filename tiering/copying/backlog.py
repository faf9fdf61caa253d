"""Backlog: the log line about partitions whose copies lag, one for all of them and at most once a minute.

A partition is added after a roll or a refusal, and dropped at a check once all is copied. An idle broker thus checks no
partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tiering.tier_config import TierStatus

if TYPE_CHECKING:
    from tiering.partition_tier import PartitionTier

LAG_LOGGED_MS: Final = 60_000  # a lag below this age is normal
NAMES_MAX: Final = 3
CAUSE_CHARS: Final = 300


PartitionLag = tuple[str, TierStatus]
"""Name and status of a partition that may lag."""


class Backlog:
    """The partitions of one broker that may lag. `note` runs at every roll."""

    def __init__(self) -> None:
        self._noted: dict[PartitionTier, None] = {}

    def note(self, partition: PartitionTier) -> None:
        self._noted[partition] = None

    def forget(self, partition: PartitionTier) -> None:
        self._noted.pop(partition, None)

    def lagging(self) -> list[PartitionLag]:
        """Lagging partitions, worst first."""
        found = []
        for partition in tuple(self._noted):
            status = partition.status()
            if status.copy_lag_segments or status.blocked_by is not None:
                found.append((partition.name, status))
            else:
                del self._noted[partition]
        return sorted(found, key=lambda lag: (-lag[1].copy_lag_ms, lag[0]))


def lag_message(lags: Sequence[PartitionLag]) -> str | None:
    """The line, or None while no partition is late or blocked."""
    late = [lag for lag in lags if lag[1].copy_lag_ms >= LAG_LOGGED_MS or lag[1].blocked_by is not None]
    if not late:
        return None
    blocks = Counter(status.blocked_by for _, status in late if status.blocked_by is not None)
    why = "blocked by " + ", ".join(f"{block} ({count})" for block, count in blocks.most_common())
    if not blocks:
        why = "nothing blocks copying, but uploads are slower than appends"
    cause = next((f"; {status.blocked_why[:CAUSE_CHARS]}" for _, status in late if status.blocked_why), "")
    names = ", ".join(name for name, _ in late[:NAMES_MAX]) + (" …" if len(late) > NAMES_MAX else "")
    return (
        f"tiering lags: {sum(status.copy_lag_bytes for _, status in lags) / 1e6:.1f} MB are not in the bucket (sealed "
        f"segments: {sum(status.copy_lag_segments for _, status in lags)}, partitions: {len(lags)}), the oldest for "
        f"{late[0][1].copy_lag_ms // 1000} s; {why}: {names}{cause}"
    )
