"""Whom a log tells what happened to it: the role it has just now.

Owns the shape of that door, nothing else. Always true: a log has one owner at a time, `UNOWNED` while nobody has a role
for it; every call comes on the loop; an owner that is set later is told nothing of what was before, it reads it off the
log. Must not know: what a role is, acknowledgements, partitions.
"""

from __future__ import annotations

from typing import Final, Protocol

from hotstore.errors import LogFailed


class LogOwner(Protocol):
    """Set as `PartitionLog.owner`. No call waits or raises."""

    def flushed(self, stable_end: int) -> None:
        """Everything below `stable_end` (exclusive) is stable; it moved."""
        ...

    def failed(self, why: LogFailed) -> None:
        """The log is offline: nothing that waits for the flushed end will see it move. Told once a log."""
        ...

    def awaits_flush(self) -> bool:
        """Whether anybody waits for the flushed end: such a sync is not put off (ADR 8). Asked once an append."""
        ...

    def start_moved(self) -> None:
        """The log start is another one."""
        ...


class _Unowned:
    """Nobody listens. Whoever appends meanwhile (an opening that closes a hole) waits for what it appends."""

    def flushed(self, stable_end: int) -> None:
        pass

    def failed(self, why: LogFailed) -> None:
        pass

    def awaits_flush(self) -> bool:
        return True

    def start_moved(self) -> None:
        pass


UNOWNED: Final[LogOwner] = _Unowned()
