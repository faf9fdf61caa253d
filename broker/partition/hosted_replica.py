"""A partition whose log is written here, in whatever role: what upkeep needs of it.

Owns the shape of that door, nothing else. Must not know roles.
"""

from __future__ import annotations

from typing import Protocol

from hotstore.host.open_log import OpenLog
from hotstore.log.partition_log import PartitionLog


class HostedReplica(Protocol):
    """Led, or followed."""

    @property
    def topic(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def log(self) -> PartitionLog: ...

    @property
    def opened(self) -> OpenLog: ...

    @property
    def high_watermark(self) -> int: ...

    def tick(self, now_ms: int, now_s: float) -> bool:
        """Once a second while it is written to; whether it needs another. `now_ms`: the wall clock; `now_s`: the
        loop's."""
        ...
