"""Callbacks from a log to its current role.

A log has one owner at a time; without a role the owner is `UNOWNED`. Calls are made on the loop. A new owner reads the
log's state, because earlier events are not repeated.
"""

from __future__ import annotations

from typing import Final, Protocol

from hotstore.errors import LogFailed


class LogOwner(Protocol):
    """The owner of a log (`PartitionLog.owner`). Its methods must not wait or raise."""

    def flushed(self, stable_end: int) -> None:
        """The stable end moved: all records below `stable_end` are stable."""
        ...

    def failed(self, why: LogFailed) -> None:
        """The log is offline, and its flushed end does not move any more. Called at most once for a log."""
        ...

    def awaits_flush(self) -> bool:
        """Whether a request waits for the flushed end. If True, the sync is not deferred (ADR 8). Called once for each
        append.
        """
        ...

    def start_moved(self) -> None:
        """The log start moved."""
        ...

    def cleaned(self) -> None:
        """A pass of compaction ended: the log is clean further than before (`Lease.clean_end`)."""
        ...

    def cleanable_end(self) -> int:
        """End of the offsets that compaction may change. Records below it are committed. In a tiered log they are also
        in the bucket, except those for whose key the bucket has a newer record."""
        ...

    def tombstones_end(self) -> int:
        """Offset below which the log of every replica is clean, or has no records, as far as this replica knows. The
        time of a tombstone begins only below it, because above it a replica may have a record that it deletes."""
        ...

    def is_in_bucket(self) -> bool:
        """Whether the bucket may hold records of the log, also of a topic that is no longer tiered. Compaction then
        removes no tombstone, because the record that it deletes may be there."""
        ...


class _Unowned:
    """The owner of a log without a role. `awaits_flush` is True, because an append without a role (when an opening
    closes a gap) waits for its flush."""

    def flushed(self, stable_end: int) -> None:
        pass

    def failed(self, why: LogFailed) -> None:
        pass

    def awaits_flush(self) -> bool:
        return True

    def start_moved(self) -> None:
        pass

    def cleaned(self) -> None:
        pass

    def cleanable_end(self) -> int:
        return 0

    def tombstones_end(self) -> int:
        return 0

    def is_in_bucket(self) -> bool:
        return True


UNOWNED: Final[LogOwner] = _Unowned()
