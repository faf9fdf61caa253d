"""The checkpoints of a data directory: recovery points, log starts, high watermarks, and the last leader epoch in which
each log agreed with its leader, or led; a line each a log.

Owns what they say and how they are written. Always true: an entry stays until its log is deleted, also while that log
is refused, so that damage is still measured against it at the next start; a checkpoint whose write failed is written by
the next job that names it; log starts are written first, for bytes below them may be unlinked then. Sampling (`sample`,
`sample_start`) is done on the loop, all else blocks. Must not know who leads, the bucket, when a checkpoint is due.
Source: Kafka's LogManager, OffsetCheckpointFile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hotstore.file_names import CHECKPOINTS_LOCK_FILE
from hotstore.log.partition_log import PartitionLog
from logformat.checkpoints import (
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
from seams.disk import Disk, read_file, replace_file

CHECKPOINTS_WAIT_S: Final = 30.0  # for another job's three fsyncs; beyond it the disk is stuck, which is an OSError
CHECKPOINTS: Final = (LOG_START_FILE, RECOVERY_POINT_FILE, REPLICATION_FILE, SEEN_EPOCH_FILE)
Offsets = dict[TopicPartition, int]


class CheckpointJob:
    """Writes checkpoints. Several jobs may run at once, in any order: each writes what is known when it has the
    checkpoints to itself, which is at least what was known when it was made."""

    __slots__ = ("_checkpoints", "_names")

    def __init__(self, checkpoints: OffsetCheckpoints, names: tuple[str, ...]) -> None:
        self._checkpoints = checkpoints
        self._names = names

    @property
    def is_done(self) -> bool:
        """Whether the files say all of it already, durably: another job wrote it."""
        return self._checkpoints.are_saved(self._names)

    def run(self) -> None:
        """Blocking; durable when it returns. Raises OSError; then the old checkpoints stand."""
        self._checkpoints.save(self._names)


class OffsetCheckpoints:
    """Of one data directory, locked by this process."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.damaged: list[str] = []
        """Files that could not be read and were taken for empty: logs are scanned further back than needed."""
        self._offsets: dict[str, Offsets] = {name: {} for name in CHECKPOINTS}
        self._unsaved: set[str] = set()  # files that say less than we know
        self._saving: set[str] = set()  # files that are being written
        self._dropped: set[TopicPartition] = set()  # logs that are gone, and perhaps not from the files

    @classmethod
    def read(cls, disk: Disk, path: str) -> OffsetCheckpoints:
        """Raises Corrupt for damaged log starts: without them, deleted records would come back; the others only make
        recovery look further, or an unclean start keep less."""
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
            self._unsaved.add(name)
        else:
            self._offsets[name].update(decode_offsets(read_file(self._disk, file), name))

    # --- what they say ------------------------------------------------------------------------------------------

    def recovery_point(self, key: TopicPartition) -> int:
        return self._offsets[RECOVERY_POINT_FILE].get(key, 0)

    def log_start(self, key: TopicPartition) -> int | None:
        """None: no checkpoint names it, the first segment does."""
        return self._offsets[LOG_START_FILE].get(key)

    def high_watermark(self, key: TopicPartition) -> int:
        """0 where none is known."""
        return self._offsets[REPLICATION_FILE].get(key, 0)

    def seen_epoch(self, key: TopicPartition) -> int:
        """UNDEFINED_EPOCH where none is known."""
        return self._offsets[SEEN_EPOCH_FILE].get(key, UNDEFINED_EPOCH)

    # --- written ------------------------------------------------------------------------------------------------

    def sample(
        self, logs: Iterable[PartitionLog], high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> CheckpointJob:
        """On the loop; the job's `run` goes to a worker. Entries of other logs stay as they are."""
        for log in logs:
            state = log.checkpoint_state()
            self._note(RECOVERY_POINT_FILE, state.topic_partition, state.recovery_point)
            self._note(LOG_START_FILE, state.topic_partition, state.log_start_offset)
        for key, offset in (high_watermarks or {}).items():
            self._note(REPLICATION_FILE, key, offset)
        return CheckpointJob(self, CHECKPOINTS)

    def sample_seen_epoch(self, key: TopicPartition, epoch: int) -> None:
        """On the loop: that this log saw `epoch`, which is never lower than what it saw before. The next job that
        names the file writes it."""
        if epoch != UNDEFINED_EPOCH:
            self._note(SEEN_EPOCH_FILE, key, epoch)

    def seen_epochs_job(self) -> CheckpointJob:
        """Of what was sampled of them."""
        return CheckpointJob(self, (SEEN_EPOCH_FILE,))

    def sample_start(self, log: PartitionLog) -> CheckpointJob:
        """A log's start alone, on the loop, for local bytes may go once the job's `run` is done. It writes nothing
        where the file says it already: a full disk must not keep what is copied from being dropped."""
        state = log.checkpoint_state()
        self._note(LOG_START_FILE, state.topic_partition, state.log_start_offset)
        return CheckpointJob(self, (LOG_START_FILE,))

    def save(self, names: tuple[str, ...] = CHECKPOINTS) -> None:
        """Write what is known now, where the files do not say it yet. Raises OSError."""
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
        self._unsaved.discard(name)  # first: what the loop notes meanwhile is not in the copy below
        try:
            replace_file(self._disk, f"{self._path}/{name}", encode_offsets(self._offsets[name].copy()))
        except BaseException:
            self._unsaved.add(name)
            raise
        finally:
            self._saving.discard(name)

    def are_saved(self, names: tuple[str, ...]) -> bool:
        """Whether these files say all that is known, durably. On the loop, or in a worker."""
        return self._unsaved.isdisjoint(names) and self._saving.isdisjoint(names)

    def lower_recovery_point(self, key: TopicPartition, offset: int) -> None:
        """Before a truncation to `offset`: nothing above it is claimed durable any more, nor committed: an unclean
        start may have overruled that, and what comes in its place is not. Durable when it returns."""
        if self.recovery_point(key) > offset:
            self._note(RECOVERY_POINT_FILE, key, offset)
        if self.high_watermark(key) > offset:
            self._note(REPLICATION_FILE, key, offset)
        self.save()  # also where an attempt that failed noted it already

    def forget_log_start(self, key: TopicPartition) -> None:
        """Before `PartitionLog.start_at` above the log's end, where nothing below is in any tier: a crash between it
        and the next checkpoint would leave a log that lacks its first segments, which is refused. Durable when it
        returns; until the next checkpoint the first segment says where the log starts. Raises OSError."""
        if self._offsets[LOG_START_FILE].pop(key, None) is not None:
            self._unsaved.add(LOG_START_FILE)
        self.save()  # also where an attempt that failed forgot it already

    def believe_log_start(self, key: TopicPartition, offset: int) -> None:
        """The root of a closed log says that it begins at `offset`. In memory: the next checkpoint writes it."""
        self._note(LOG_START_FILE, key, max(offset, self.log_start(key) or 0))

    def drop(self, key: TopicPartition) -> None:
        """The log is gone. In memory: `save` writes it."""
        for name in CHECKPOINTS:
            if self._offsets[name].pop(key, None) is not None:
                self._dropped.add(key)
                self._unsaved.add(name)

    def forget(self, key: TopicPartition) -> None:
        """Durably: no file names a log of that name. Writes nothing where none did, whatever else is unsaved: a
        thousand logs that are made are not to write the checkpoints of all of them a thousand times. Raises OSError."""
        self.drop(key)
        if key in self._dropped:
            self.save()

    def _note(self, name: str, key: TopicPartition, offset: int) -> None:
        offsets = self._offsets[name]
        if offsets.get(key) != offset:
            offsets[key] = offset
            self._unsaved.add(name)
