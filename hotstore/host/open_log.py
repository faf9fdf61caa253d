"""An open log, as the host of a data directory hands it out, and what is left of one that is refused.

Owns what is known of a log beside its files while it is open. Always true: the high watermark lies within the log as it
was when it was noted. Changed by its lease and its host alone. Must not know roles.
"""

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
    """A recovered log and what makes it durable. `at`: the place where it lies. `high_watermark`: as checkpointed,
    within the log as it is; a replica starts from it. `seen_epoch`: the last leader epoch in which it agreed with its
    leader, or led, as checkpointed or as its records say (UNDEFINED_EPOCH: none). `is_torn`: it is being cut, or begins
    elsewhere, or that failed in the middle: what it says of itself is not what lies on the disk. `is_bare`: this
    process made its directory, and whoever puts a file of his own there says here that it is bare no more: nothing has
    to be looked for. `is_closing`: nobody may be lent it any more."""

    __slots__ = (
        "at",
        "flusher",
        "high_watermark",
        "is_bare",
        "is_closing",
        "is_torn",
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
        """Of the role that has it, or had it last."""
        self.is_torn = False
        self.is_closing = False
        self.is_bare = is_bare
        self.flusher = flusher
        self.high_watermark = max(local.log_start_offset, min(high_watermark, local.log_end_offset))
        self.noted_epoch = noted_epoch
        """What the checkpoint was last told."""
        self.seen_epoch = max(noted_epoch, local.leader_epoch)

    @property
    def place(self) -> TopicPartition:
        return self.at.name

    @property
    def topic_id(self) -> UUID:
        return UUID(bytes=self.log.topic_id)


class Remains(NamedTuple):
    """What is left of a log that is refused: as its checkpoints say, and where the damage begins."""

    seen_epoch: int
    high_watermark: int
    end: int
