"""How much memory all groups take together, and whether there is room for more.

Owns two counters and their limits. Always true: both are sums over the groups that shards hold. Must not know groups.
"""

from __future__ import annotations

from broker.config.groups import GroupConfig


class MemoryUsage:
    """One a coordinator, shared by its shards."""

    def __init__(self, config: GroupConfig) -> None:
        self.bytes = 0
        self.group_count = 0
        self._config = config

    def is_full(self, more_bytes: int, *, new_group: bool) -> bool:
        over = self.bytes + more_bytes > self._config.state_bytes_max
        return over or (new_group and self.group_count >= self._config.groups_max)

    def resize(self, before: int, after: int) -> int:
        """A group takes `after` bytes now instead of `before`; 0 is none. Returns `after`."""
        self.bytes += after - before
        self.group_count += (after > 0) - (before > 0)
        return after
