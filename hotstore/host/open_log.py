"""An open log of `LogHost`, and the state of a refused log. Only the lease and the host change an open log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from hotstore.log.partition_log import PartitionLog
from logformat.values import TopicPartition

if TYPE_CHECKING:
    from hotstore.flush.flusher import Flusher
    from hotstore.host.lease import Lease
    from hotstore.host.place import Place


class OpenLog:
    """A recovered log and its flusher.

    - `at`: its place.
    - `seen_epoch`: the last leader epoch in which the log led or agreed with its leader, by the checkpoint or the
      records. UNDEFINED_EPOCH if there is none.
    - `is_torn`: a truncation or restart is in progress or failed, so the state in memory differs from the disk.
    - `is_bare`: this process created its directory and put no other file there, so it need not search for files.
    - `is_closing`: no new lease is granted.
    - `joins`: its replica joins by a move, and was assigned the partition since the log was begun or checked.
    """

    __slots__ = (
        "_high_watermark",
        "at",
        "flusher",
        "is_bare",
        "is_closing",
        "is_torn",
        "joins",
        "lease",
        "log",
        "noted_epoch",
        "seen_epoch",
    )

    def __init__(
        self, at: Place, local: PartitionLog, flusher: Flusher, high_watermark: int, noted_epoch: int, *, is_bare: bool
    ) -> None:
        self.at = at
        self.log = local
        self.lease: Lease | None = None
        """The current role's, or the last one's."""
        self.is_torn = False
        self.is_closing = False
        self.is_bare = is_bare
        self.joins = False
        self.flusher = flusher
        self._high_watermark = high_watermark
        self.noted_epoch = noted_epoch
        """The value in the checkpoint."""
        self.seen_epoch = max(noted_epoch, local.leader_epoch)

    @property
    def place(self) -> TopicPartition:
        return self.at.name

    @property
    def high_watermark(self) -> int:
        """The value that an earlier role or the checkpoint left, from which the next role starts. It is between log
        start and log end, as in Kafka's UnifiedLog: only committed records are deleted."""
        return max(self.log.log_start_offset, min(self._high_watermark, self.log.log_end_offset))

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        self._high_watermark = min(offset, self.log.log_end_offset)

    @property
    def topic_id(self) -> UUID:
        return UUID(bytes=self.log.topic_id)


class RefusedLog(NamedTuple):
    """State of a refused log: its checkpoints, and the offset at which the damage begins."""

    seen_epoch: int
    high_watermark: int
    end: int
