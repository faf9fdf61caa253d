"""What one replica has on its disk, as far as the core's machines go by it.

Owns the difference between what was written and what was flushed. Always true: the lineage is hotstore's, changed as
hotstore changes it (`LogCore._enter_epoch`, `LogCut.truncate_to`, `RecoveredEpochs`): an epoch enters with its
leader's begin or its first copied record, and is cut at the log's new end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from logformat.leader_epochs import LeaderEpochs

Record = tuple[int, int]
"""Leader epoch, name. No name is given twice."""


@dataclass(slots=True)
class Disk:
    """`flushed`: a power cut leaves this much. `mark`: the high watermark as it was checkpointed. `exists`: the log's
    directory is there. `is_doubtful`: it lost power with `thermocline.flush=os`. `is_whole`: nothing that was reported
    is missing, or the controller was told. `seen_epoch`: the last in which it led, or its leader's log agreed (R20)."""

    directory_id: str
    log: tuple[Record, ...] = ()
    flushed: int = 0
    lineage: LeaderEpochs = LeaderEpochs()  # noqa: RUF009 (a value)
    mark: int = 0
    exists: bool = True
    is_doubtful: bool = False
    is_whole: bool = True
    seen_epoch: int = -1

    def clone(self) -> Disk:
        return Disk(
            self.directory_id,
            self.log,
            self.flushed,
            self.lineage,
            self.mark,
            self.exists,
            self.is_doubtful,
            self.is_whole,
            self.seen_epoch,
        )

    @property
    def end(self) -> int:
        return len(self.log)

    @property
    def latest_epoch(self) -> int:
        latest = self.lineage.latest
        return -1 if latest is None else latest.epoch

    def begin_epoch(self, epoch: int) -> None:
        """A leader begins: before any record (KIP-279)."""
        if epoch > self.latest_epoch:
            self.lineage = self.lineage.assign(epoch, self.end)

    def append(self, records: Iterable[Record]) -> None:
        """An epoch enters with its first record."""
        for record in records:
            if record[0] > self.latest_epoch:
                self.lineage = self.lineage.assign(record[0], self.end)
            assert record[0] == self.latest_epoch, (record, self.lineage)
            self.log = (*self.log, record)

    def flush(self) -> None:
        self.flushed = self.end

    def cut(self, offset: int) -> None:
        self.log = self.log[:offset]
        self.lineage = self.lineage.truncate_from_end(self.end)
        self.flushed = self.end  # a cut is durable, and what stays is made so before

    def reopen(self, *, is_power_cut: bool) -> None:
        """What a new process finds: its records, and the epochs they are of."""
        if is_power_cut:
            self.log = self.log[: self.flushed]
        found = LeaderEpochs()
        for offset, (epoch, _) in enumerate(self.log):
            found = found.assign(epoch, offset)
        self.lineage = found
        self.flushed = self.end
        self.mark = min(self.mark, self.end)
