"""The log line about partitions whose copies lag: one line for all of them, at most once a minute.
A partition notes itself after a roll or a refusal, and is dropped at the next check once it has nothing left to copy.
So an idle broker checks none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tiering.tier_config import TierStatus

LAG_LOGGED_MS: Final = 60_000  # a younger lag is normal
NAMES_MAX: Final = 3
CAUSE_CHARS: Final = 300


class Lagging(Protocol):
    """A partition that may lag."""

    @property
    def name(self) -> str: ...
    def status(self) -> TierStatus: ...


class PartitionBacklog(NamedTuple):
    name: str
    bytes: int
    segments: int
    age_ms: int
    blocked_by: str | None
    blocked_why: str = ""


class Backlog:
    """The partitions of one broker that may lag. `note` runs at every roll."""

    def __init__(self) -> None:
        self._noted: dict[Lagging, None] = {}

    def note(self, partition: Lagging) -> None:
        self._noted[partition] = None

    def forget(self, partition: Lagging) -> None:
        self._noted.pop(partition, None)

    def lagging(self) -> list[PartitionBacklog]:
        """Lagging partitions, worst first."""
        found = []
        for partition in tuple(self._noted):
            status = partition.status()
            if not status.copy_lag_segments and status.blocked_by is None:
                del self._noted[partition]
                continue
            found.append(
                PartitionBacklog(
                    partition.name,
                    status.copy_lag_bytes,
                    status.copy_lag_segments,
                    status.copy_lag_ms,
                    status.blocked_by,
                    status.blocked_why,
                )
            )
        return sorted(found, key=lambda lag: (-lag.age_ms, lag.name))


def lag_message(lags: Sequence[PartitionBacklog]) -> str | None:
    """The line, or None while no partition is late or blocked."""
    late = [lag for lag in lags if lag.age_ms >= LAG_LOGGED_MS or lag.blocked_by is not None]
    if not late:
        return None
    blocks = Counter(lag.blocked_by for lag in late if lag.blocked_by is not None)
    why = "blocked by " + ", ".join(f"{block} ({count})" for block, count in blocks.most_common())
    if not blocks:
        why = "nothing blocks them, uploads are slower than appends"
    cause = next((f"; {lag.blocked_why[:CAUSE_CHARS]}" for lag in late if lag.blocked_why), "")
    names = ", ".join(lag.name for lag in late[:NAMES_MAX]) + (" …" if len(late) > NAMES_MAX else "")
    return (
        f"tiering lags: {sum(lag.bytes for lag in lags) / 1e6:.1f} MB are not in the bucket, "
        f"{sum(lag.segments for lag in lags)} sealed segments, partitions: {len(lags)}, the oldest for "
        f"{late[0].age_ms // 1000} s; {why}: {names}{cause}"
    )
