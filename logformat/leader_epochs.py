"""Leader epochs of a log as (epoch, first offset of that epoch) pairs.

Epochs and start offsets grow strictly. Immutable: an edit returns a new object, or the same object if nothing changed,
so that the owner writes the checkpoint only if needed. Source: KIP-101, KIP-279; Kafka's LeaderEpochFileCache. Text
format of `leader-epoch-checkpoint`: `0`, the count, then lines `<epoch> <start offset>`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, NamedTuple

import msgspec

from logformat.checkpoint_text import format_checkpoint, parse_checkpoint
from logformat.errors import Corrupt
from logformat.record_batch import INT32_MAX, INT64_MAX, Buffer

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """Result of OffsetForLeaderEpoch: the epoch found and its end offset, exclusive; (−1, −1) = unknown."""

    epoch: int
    end_offset: int


UNDEFINED: Final = EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)


def kept_end(seen_epoch: int, high_watermark: int, end: int, served_epoch: int) -> int:
    """End of the log that a replica keeps when it becomes leader without all acknowledged records. `served_epoch` is
    the epoch that served the partition last.

    A replica that did not see `served_epoch` keeps only records below its high watermark, because later records may
    have been overwritten. If the replica has seen a later epoch, an unfinished unclean start has truncated the log
    already.
    """
    return end if seen_epoch >= served_epoch else min(end, high_watermark)


class LeaderEpochs(msgspec.Struct, frozen=True):
    entries: tuple[EpochStart, ...] = ()

    def assign(self, epoch: int, start_offset: int) -> LeaderEpochs:
        """Record that `epoch` writes from `start_offset` on.

        Contradicting entries (a higher or equal epoch, an equal or later start) are dropped: they came from a log that
        was truncated or replaced. Assigning the latest epoch again, at its start or later, changes nothing."""
        assert epoch >= 0 and start_offset >= 0, (epoch, start_offset)
        entries = self.entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return self
        keep = len(entries)
        while keep and (entries[keep - 1].epoch >= epoch or entries[keep - 1].start_offset >= start_offset):
            keep -= 1
        return LeaderEpochs((*entries[:keep], EpochStart(epoch, start_offset)))

    @property
    def latest(self) -> EpochStart | None:
        return self.entries[-1] if self.entries else None

    def epoch_for(self, offset: int) -> int | None:
        """The epoch that wrote (or is writing) `offset`; None below the first entry."""
        slot = bisect_right(self.entries, offset, key=_start_offset) - 1
        return self.entries[slot].epoch if slot >= 0 else None

    def end_offset_for(self, epoch: int, log_end: int) -> EpochEnd:
        """Returns the greatest known epoch ≤ `epoch` and its end: the next epoch's start, or `log_end` for the latest
        epoch.

        Returns (−1, −1) if `epoch` is −1 or above the latest epoch. If `epoch` is below the first known epoch, returns
        `epoch` and the first known start: the epoch's data is gone, and a follower has to begin at this start."""
        entries = self.entries
        if epoch == UNDEFINED_EPOCH or not entries or epoch > entries[-1].epoch:
            return UNDEFINED
        if epoch == entries[-1].epoch:
            return EpochEnd(epoch, log_end)
        higher = bisect_right(entries, epoch, key=_epoch)
        floor = entries[higher - 1].epoch if higher else epoch
        return EpochEnd(floor, entries[higher].start_offset)

    def shared_end(self, epoch: int, log_end: int) -> int:
        """End of the offsets that this log shares with the leader of `epoch`; later leaders wrote the rest."""
        higher = bisect_right(self.entries, epoch, key=_epoch)
        return self.entries[higher].start_offset if higher < len(self.entries) else log_end

    def truncate_from_end(self, offset: int) -> LeaderEpochs:
        """A copy without the epochs that start at or above `offset`, the log's new end."""
        keep = bisect_left(self.entries, offset, key=_start_offset)
        return self if keep == len(self.entries) else LeaderEpochs(self.entries[:keep])

    def truncate_from_start(self, offset: int) -> LeaderEpochs:
        """A copy without the epochs that end at or below `offset`, the log's new start. The epoch that holds this
        offset starts there.
        """
        slot = bisect_right(self.entries, offset, key=_start_offset) - 1
        if slot < 0 or (slot == 0 and self.entries[0].start_offset == offset):
            return self
        return LeaderEpochs((EpochStart(self.entries[slot].epoch, offset), *self.entries[slot + 1 :]))

    def to_bytes(self) -> bytes:
        """The checkpoint file."""
        return format_checkpoint(f"{epoch} {start}" for epoch, start in self.entries)

    @classmethod
    def from_bytes(cls, data: Buffer) -> LeaderEpochs:
        """Raises Corrupt unless `data` is a checkpoint whose entries grow. An empty file is an empty cache."""
        entries: list[EpochStart] = []
        for line in parse_checkpoint(data, "leader-epoch-checkpoint", columns=2):
            entry = EpochStart(line.integer(0, INT32_MAX), line.integer(1, INT64_MAX))
            if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset <= entries[-1].start_offset):
                raise Corrupt(f"leader-epoch-checkpoint: {entry} after {entries[-1]} is out of order")
            entries.append(entry)
        return cls(tuple(entries))


def _epoch(entry: EpochStart) -> int:
    return entry.epoch


def _start_offset(entry: EpochStart) -> int:
    return entry.start_offset
