"""What a local log refuses, each named precisely under the house's few kinds of failure.

Always true: an append that raised one of these left no trace in the log. Must not know Kafka's error numbers
(broker.errors maps them; the Kafka name stands in each docstring).
"""

from __future__ import annotations

import errno
from typing import Final

from logformat.errors import Corrupt, Fenced, InvalidRequest, StorageFailed
from seams.disk import is_full


class OffsetOutOfRange(InvalidRequest):
    """The offset lies outside [local log start, log end]. Kafka's OFFSET_OUT_OF_RANGE, unless the bucket has it."""


class RecordListTooLarge(InvalidRequest):
    """One append is larger than a whole segment may be. Kafka's RECORD_LIST_TOO_LARGE."""


class RunCrossesSegments(InvalidRequest):
    """A segment ends before a run, or perhaps within it: nothing was written, append each batch by itself. Never told
    a client."""


class OutOfOrderSequence(InvalidRequest):
    """Batches before this one are missing. Kafka's OUT_OF_ORDER_SEQUENCE_NUMBER."""


class DuplicateSequence(InvalidRequest):
    """The batch was appended long ago, further back than the five remembered, so its offset is not known any more.

    Kafka's DUPLICATE_SEQUENCE_NUMBER, which clients take for success without an offset.
    """


class UnknownProducerId(InvalidRequest):
    """The log knows nothing of this producer. Kafka's UNKNOWN_PRODUCER_ID.

    Appends do not raise it: as Kafka since KIP-360, a log that forgot a producer takes any first sequence from it.
    """


class InvalidProducerEpoch(Fenced):
    """A newer incarnation of this producer wrote already. Kafka's INVALID_PRODUCER_EPOCH."""


class LeaderEpochFenced(Fenced):
    """The log holds batches of a later leader epoch than the one that wants to append."""


class DivergingAppend(InvalidRequest):
    """A replica's batches do not continue its log: another offset than its end, a hole between two of them, or an epoch
    below one it knows. Nothing was written: compare lineages with the leader, cut, and ask again (KIP-101)."""


class LogFull(StorageFailed):
    """No space left: nothing was written; the next append tries again. Kafka's KAFKA_STORAGE_ERROR."""


class LogFailed(StorageFailed):
    """The disk failed a write or a sync: offline until it is opened again, with recovery (C10, fsyncgate)."""


class ReservationExhausted(StorageFailed):
    """The append would cross the reserved end of offsets: nothing was written (design 6, `blocked_by=reservation`).

    `end_offset`: where it would have ended."""

    def __init__(self, message: str, end_offset: int) -> None:
        super().__init__(message)
        self.end_offset = end_offset


class DataDirLocked(StorageFailed):
    """Another process holds the data directory."""


class ForeignLog(Corrupt):
    """Where this log would lie, another topic's does: one that had the same name before. Its deletion moves it away."""


class DamagedLog(Corrupt):
    """A log that must not be opened as it is: file, byte position and offset of the damage, and what to do.

    Raised for damage where bytes were durable once (below the recovery point, or in a sealed segment): truncating there
    would lose acknowledged records, so a person decides.
    """

    def __init__(self, file: str, position: int, offset: int, what: str, hint: str) -> None:
        super().__init__(f"{file}: position {position}, offset {offset}: {what}; {hint}")
        self.file = file
        self.position = position
        self.offset = offset


class MissingSegments(DamagedLog):
    """The log's first files are gone: `first` is the base of the oldest one left, above the log start.

    Damage, unless the bucket held them, as it may where tiering of the topic was switched off (tiering.attach)."""

    def __init__(self, directory: str, log_start: int, first: int, hint: str) -> None:
        super().__init__(directory, 0, log_start, f"segments below offset {first} are missing", hint)
        self.first = first


_PASSING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def may_pass(refused: BaseException) -> bool:
    """Whether the machine lacked descriptors, memory or space, and may have some again soon: the same is worth trying
    again, and says nothing against the disk."""
    if isinstance(refused, OSError):
        return is_full(refused) or refused.errno in _PASSING
    return isinstance(refused, LogFull)
