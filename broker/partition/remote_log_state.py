"""What a copied log asks of the bucket: the protocol only (`tiering.opening.cold_start`, `cold_view`, `reservation` are
behind it).

Nothing here is called at each fetch or produce but `note_reported_end`, which does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from hotstore.host.open_log import OpenLog
from hotstore.log.log_config import LogConfig
from logformat.values import TopicPartition
from tiering.opening.cold_start import ColdStart
from tiering.opening.cold_view import ColdView
from tiering.opening.reservation import ReportedEnd


class RemoteLogState(Protocol):
    """What the bucket says of a log that ended at an offset, and what a log is to remember for when it leads."""

    async def state_at(self, topic_id: UUID, index: int, offset: int, since: int) -> ColdStart:
        """Lineage and producers there, both empty where the bucket holds nothing below it, and how much it holds from
        `since` on. Raises ThermoclineError."""
        ...

    async def open_copy(self, place: TopicPartition, topic_id: UUID, config: LogConfig) -> OpenLog | None:
        """The log as it lies here; None where there is none. Raises as `LogHost.open`, and ThermoclineError where what
        its files lack is for the bucket to say."""
        ...

    def view(self, topic_id: UUID, index: int, end: Callable[[], int]) -> ColdView:
        """What consumers read of it here; `end`: how far the bucket is known to hold the log."""
        ...

    def note_reported_end(self, topic_id: UUID, index: int, end: ReportedEnd) -> None:
        """What its leader said last of what may be given."""
        ...

    def forget(self, topic_id: UUID, index: int) -> None:
        """The log is closed: what was told of it says nothing of the next one."""
        ...
