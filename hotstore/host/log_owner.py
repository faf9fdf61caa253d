"""Callbacks from a log to its current role.

A log has one owner at a time, `UNOWNED` while no role uses it. Calls come on the loop. A new owner reads the log's
state, because earlier events are not repeated.
"""

from __future__ import annotations

from typing import Final, Protocol

from hotstore.errors import LogFailed


class LogOwner(Protocol):
    """Set as `PartitionLog.owner`. No call waits or raises."""

    def flushed(self, stable_end: int) -> None:
        """The stable end moved: everything below `stable_end` (exclusive) is stable."""
        ...

    def failed(self, why: LogFailed) -> None:
        """The log is offline: its flushed end no longer moves. Called at most once for a log."""
        ...

    def awaits_flush(self) -> bool:
        """Whether a request waits for the flushed end; if so, the sync is not deferred (ADR 8). Called once for each
        append.
        """
        ...

    def start_moved(self) -> None:
        """The log start moved."""
        ...

    def cleanable_end(self) -> int:
        """End of the offsets that compaction may change: committed and, in a tiered log, in the bucket. The bucket may
        lack such a record only if it holds a newer one of the key."""
        ...

    def is_in_bucket(self) -> bool:
        """Whether the bucket may hold records of the log, also of a topic that is no longer tiered. Compaction then
        removes no tombstone, because the record that it deletes may be there."""
        ...


class _Unowned:
    """The log has no role. An append meanwhile (an opening that closes a gap) waits for its own flush."""

    def flushed(self, stable_end: int) -> None:
        pass

    def failed(self, why: LogFailed) -> None:
        pass

    def awaits_flush(self) -> bool:
        return True

    def start_moved(self) -> None:
        pass

    def cleanable_end(self) -> int:
        return 0

    def is_in_bucket(self) -> bool:
        return True


UNOWNED: Final[LogOwner] = _Unowned()
