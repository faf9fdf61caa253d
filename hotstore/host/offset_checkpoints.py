"""Checkpoints of a data directory, one line per log: recovery points, log starts, high watermarks, first dirty offsets,
and seen leader epochs.

A seen epoch is the last one in which the log led or agreed with its leader. An entry stays until its log is deleted. It
stays also while the log is refused, because the next start compares damage with it. A checkpoint whose write failed is
written by the next job that names it. Log starts are written first, because bytes below them may be unlinked after
that. Sampling runs on the loop. All other methods block. Source: Kafka's OffsetCheckpointFile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from hotstore.file_names import CHECKPOINTS_LOCK_FILE
from hotstore.log.partition_log import PartitionLog
from logformat.checkpoints import (
    CLEANER_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    SEEN_EPOCH_FILE,
    decode_offsets,
    encode_offsets,
)
from logformat.errors import Corrupt
from logformat.leader_epochs import UNDEFINED_EPOCH
from logformat.values import NewerFormat, TopicPartition
from seams.files.disk import Disk, read_file, replace_file

CHECKPOINTS_WAIT_S: Final = 30.0  # longest wait for the fsyncs of another job
CHECKPOINTS: Final = (LOG_START_FILE, RECOVERY_POINT_FILE, REPLICATION_FILE, CLEANER_FILE, SEEN_EPOCH_FILE)
Offsets = dict[TopicPartition, int]


class CheckpointJob(msgspec.Struct, frozen=True):
    """A job that writes checkpoints. Several jobs may run at once, in any order. Each writes the values that are known
    when it gets the lock. These are not older than those at its creation."""

    checkpoints: OffsetCheckpoints
    names: tuple[str, ...]

    @property
    def is_done(self) -> bool:
        """Whether another job has made these files durable already."""
        return self.checkpoints.are_saved(self.names)

    def run(self) -> None:
        """Write the files. Blocking. Durable when it returns. After an OSError the old checkpoints remain."""
        self.checkpoints.save(self.names)


class OffsetCheckpoints:
    """The checkpoints of one data directory, locked by this process."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.damaged: list[str] = []
        """Unreadable files, taken for empty: recovery then reads more of each log."""
        self._offsets: dict[str, Offsets] = {name: {} for name in CHECKPOINTS}
        self._unsaved: set[str] = set()  # outdated files
        self._saving: set[str] = set()  # files that are being written
        self._dropped: set[TopicPartition] = set()  # deleted logs whose entries may still be in the files

    @classmethod
    def read(cls, disk: Disk, path: str) -> OffsetCheckpoints:
        """Read the files. Raises Corrupt for damaged log starts, because without them deleted records would reappear.
        If another file is damaged, recovery only reads more, or an unclean start keeps less."""
        self = cls(disk, path)
        for name in CHECKPOINTS:
            try:
                self._read(name)
            except NewerFormat:
                raise
            except Corrupt:
                if name == LOG_START_FILE:
                    raise
                self.damaged.append(name)
                self._unsaved.add(name)
        return self

    def _read(self, name: str) -> None:
        file = f"{self._path}/{name}"
        if self._disk.stat(file) is None:
            if name != CLEANER_FILE:  # as in Kafka, the first cleaning pass creates this file
                self._unsaved.add(name)
        else:
            self._offsets[name].update(decode_offsets(read_file(self._disk, file), name))

    # --- entries ------------------------------------------------------------------------------------------------

    def recovery_point(self, key: TopicPartition) -> int:
        return self._offsets[RECOVERY_POINT_FILE].get(key, 0)

    def log_start(self, key: TopicPartition) -> int | None:
        """The log start; None if there is no entry. Then the first segment decides."""
        return self._offsets[LOG_START_FILE].get(key)

    def high_watermark(self, key: TopicPartition) -> int:
        """The high watermark; 0 if it is unknown."""
        return self._offsets[REPLICATION_FILE].get(key, 0)

    def seen_epoch(self, key: TopicPartition) -> int:
        """The seen leader epoch; UNDEFINED_EPOCH if it is unknown."""
        return self._offsets[SEEN_EPOCH_FILE].get(key, UNDEFINED_EPOCH)

    def cleaned_offset(self, key: TopicPartition) -> int | None:
        """The offset below which the log is clean. None if the log was never cleaned, or restarted at another
        offset."""
        return self._offsets[CLEANER_FILE].get(key)

    # --- written ------------------------------------------------------------------------------------------------

    def sample(
        self, logs: Iterable[PartitionLog], high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> CheckpointJob:
        """Sample these logs, on the loop. The job's `run` is called in a worker. Entries of other logs stay."""
        for log in logs:
            key = TopicPartition(log.topic, log.partition)
            self._note(RECOVERY_POINT_FILE, key, log.recovery_point)
            self._note(LOG_START_FILE, key, log.start_to_checkpoint)
        for key, offset in (high_watermarks or {}).items():
            self._note(REPLICATION_FILE, key, offset)
        return CheckpointJob(self, CHECKPOINTS)

    def sample_seen_epoch(self, key: TopicPartition, epoch: int) -> None:
        """Note on the loop that the log saw `epoch`. The next job that names the file writes it."""
        if epoch != UNDEFINED_EPOCH:
            self._note(SEEN_EPOCH_FILE, key, epoch)

    def seen_epochs_job(self) -> CheckpointJob:
        return CheckpointJob(self, (SEEN_EPOCH_FILE,))

    def sample_start(self, log: PartitionLog) -> CheckpointJob:
        """Sample one log's start, on the loop. Local bytes below it may be deleted after the job ran. The job writes
        nothing if the file has the value already, so copied segments can be deleted even on a full disk."""
        self._note(LOG_START_FILE, TopicPartition(log.topic, log.partition), log.start_to_checkpoint)
        return CheckpointJob(self, (LOG_START_FILE,))

    def sample_cleaned(self, key: TopicPartition, offset: int) -> CheckpointJob:
        """Note on the loop that the log is clean below `offset`. Returns the job that writes it."""
        self._note(CLEANER_FILE, key, offset)
        return CheckpointJob(self, (CLEANER_FILE,))

    def forget_cleaned(self, key: TopicPartition) -> CheckpointJob:
        """Remove the entry on the loop, before the log restarts at another offset: no part of it is then clean. After a
        power cut an old entry would count for records that are copied later."""
        if self._offsets[CLEANER_FILE].pop(key, None) is not None:
            self._unsaved.add(CLEANER_FILE)
        return CheckpointJob(self, (CLEANER_FILE,))

    def save(self, names: tuple[str, ...] = CHECKPOINTS) -> None:
        """Write files whose content is outdated. Raises OSError."""
        writing = self._disk.lock(f"{self._path}/{CHECKPOINTS_LOCK_FILE}", wait_s=CHECKPOINTS_WAIT_S)
        try:
            dropped = self._dropped.copy() if names == CHECKPOINTS else set()
            for name in names:
                if name in self._unsaved:
                    self._save(name)
            self._dropped -= dropped
        finally:
            writing.release()

    def _save(self, name: str) -> None:
        self._saving.add(name)
        self._unsaved.discard(name)  # before the copy, which may lack values noted meanwhile
        try:
            replace_file(self._disk, f"{self._path}/{name}", encode_offsets(self._offsets[name].copy()))
        except BaseException:
            self._unsaved.add(name)
            raise
        finally:
            self._saving.discard(name)

    def are_saved(self, names: tuple[str, ...]) -> bool:
        """Whether these files are durable and current. May be called on the loop or in a worker."""
        is_known = self._unsaved.isdisjoint(names) and self._saving.isdisjoint(names)
        return is_known and self._unsaved.isdisjoint(names)  # a write may have failed between the two looks

    def lower_recovery_point(self, key: TopicPartition, offset: int) -> None:
        """Lower the checkpoints before a truncation to `offset`: records above it do not count as durable or committed
        any more, because an unclean start may have replaced them. Durable when it returns."""
        if self.recovery_point(key) > offset:
            self._note(RECOVERY_POINT_FILE, key, offset)
        if self.high_watermark(key) > offset:
            self._note(REPLICATION_FILE, key, offset)
        if (self.cleaned_offset(key) or 0) > offset:
            self._note(CLEANER_FILE, key, offset)
        self.save()  # also if a failed attempt has noted it already

    def forget_log_start(self, key: TopicPartition) -> None:
        """Remove the log start before `PartitionLog.start_at` above the log's end, if no tier has lower records.
        Durable when it returns.

        If it stayed, a crash before the next checkpoint would leave a log without its first segments, which is refused.
        Until the next checkpoint the first segment decides where the log starts. Raises OSError."""
        if self._offsets[LOG_START_FILE].pop(key, None) is not None:
            self._unsaved.add(LOG_START_FILE)
        self.save()  # also if a failed attempt has removed it already

    def raise_log_start(self, key: TopicPartition, offset: int) -> None:
        """Raise the start of a closed log to that of its root, only in memory. The next checkpoint writes it."""
        self._note(LOG_START_FILE, key, max(offset, self.log_start(key) or 0))

    def drop(self, key: TopicPartition) -> None:
        """Remove the entries of a deleted log in memory. `save` writes this."""
        for name in CHECKPOINTS:
            if self._offsets[name].pop(key, None) is not None:
                self._unsaved.add(name)  # first: a job that runs between the two must not take the entry for removed
                self._dropped.add(key)

    def forget(self, key: TopicPartition) -> None:
        """Remove the entries of this name durably. Raises OSError.

        If no file has an entry, nothing is written. So the creation of 1 000 logs does not write all checkpoints 1 000
        times.
        """
        self.drop(key)
        if key in self._dropped:
            self.save()

    def _note(self, name: str, key: TopicPartition, offset: int) -> None:
        offsets = self._offsets[name]
        if offsets.get(key) != offset:
            offsets[key] = offset
            self._unsaved.add(name)
