"""The data directory: whose it is, which logs lie in it, what its checkpoints say, whether it was left in order.

Owns the exclusive lock, `meta.properties`, the three offset checkpoints, the clean-shutdown marker, the ballast and the
names of log directories. Always true: one process at a time; a checkpoint entry stays until its log is deleted, also
while that log is refused, so that damage is still measured against it at the next start; a name nobody knows is left
alone. All methods block but `checkpoint` and `checkpoint_start`, which sample on the loop what a worker then writes.
Must not know: topics' configs, who leads, the bucket. Source: Kafka's LogManager, OffsetCheckpointFile,
CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from hotstore.ballast import Ballast
from hotstore.errors import DataDirLocked
from hotstore.file_names import (
    CHECKPOINTS_LOCK_FILE,
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    TEMPORARY,
    deleted_dir,
    is_deleted_dir,
    parse_partition_dir,
    partition_dir,
)
from hotstore.log_config import LogConfig
from hotstore.partition_log import PartitionLog
from hotstore.segment import IndexCache
from logformat.checkpoints import (
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    REPLICATION_FILE,
    MetaProperties,
    decode_offsets,
    encode_offsets,
)
from logformat.errors import Corrupt
from logformat.values import NewerFormat, TopicPartition
from seams.disk import Disk, Lock, read_file, remove_tree, replace_file

CHECKPOINTS_WAIT_S: Final = 30.0  # for another job's three fsyncs; beyond it the disk is stuck, which is an OSError
Offsets = dict[TopicPartition, int]
_CHECKPOINTS: Final = (LOG_START_FILE, RECOVERY_POINT_FILE, REPLICATION_FILE)
"""Log starts first: bytes below them may be unlinked as soon as they are written."""


class CheckpointJob:
    """Writes checkpoints. Several jobs may run at once, in any order: each writes what is known when it has the
    checkpoints to itself, which is at least what was known when it was made."""

    __slots__ = ("_data_dir", "_names")

    def __init__(self, data_dir: DataDir, names: tuple[str, ...]) -> None:
        self._data_dir = data_dir
        self._names = names

    def run(self) -> None:
        """Blocking; durable when it returns. Raises OSError; then the old checkpoints stand."""
        self._data_dir.save_checkpoints(self._names)


class DataDir:
    """An open, locked data directory. `was_clean`: the last process stopped in order, so no log needs a scan."""

    def __init__(self, disk: Disk, path: str, lock: Lock, meta: MetaProperties | None, was_clean: bool) -> None:
        self.disk = disk
        self.path = path
        self.meta = meta
        """None: the directory was never formatted."""
        self.was_clean = was_clean
        self.indexes = IndexCache()
        self.ballast = Ballast(disk, path)
        self.damaged_checkpoints: list[str] = []
        """Checkpoints that could not be read and were taken for empty: logs are scanned further back than needed."""
        self.high_watermarks: Offsets = {}
        self._recovery_points: Offsets = {}
        self._log_starts: Offsets = {}
        self._unsaved: set[str] = set()  # files that say less than we know
        self._lock = lock

    @classmethod
    def open(cls, disk: Disk, path: str) -> DataDir:
        """Lock and read. Takes the clean-shutdown marker away, durably. Raises DataDirLocked, Corrupt, OSError."""
        _make_dirs_durable(disk, path)
        try:
            lock = disk.lock(f"{path}/{LOCK_FILE}")
        except BlockingIOError:
            raise DataDirLocked(f"{path} is in use by another process; stop it, or choose another --data-dir") from None
        try:
            return cls._read(disk, path, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _read(cls, disk: Disk, path: str, lock: Lock) -> DataDir:
        meta_file = f"{path}/{META_PROPERTIES_FILE}"
        meta = MetaProperties.from_bytes(read_file(disk, meta_file)) if disk.stat(meta_file) is not None else None
        self = cls(disk, path, lock, meta, disk.stat(f"{path}/{CLEAN_SHUTDOWN_FILE}") is not None)
        # Without its log starts, deleted records would come back; the other two only make recovery look further.
        self._log_starts = self._read_offsets(LOG_START_FILE)
        for name, offsets in (
            (RECOVERY_POINT_FILE, self._recovery_points),
            (REPLICATION_FILE, self.high_watermarks),
        ):
            try:
                offsets.update(self._read_offsets(name))
            except NewerFormat:
                raise
            except Corrupt:
                self.damaged_checkpoints.append(name)
                self._unsaved.add(name)
        for name in leftover_temporaries(disk.list_dir(path)):
            disk.unlink(f"{path}/{name}")
        if self.was_clean:
            disk.unlink(f"{path}/{CLEAN_SHUTDOWN_FILE}")
        # A killed process may have left log directories whose names only the page cache knows.
        disk.sync_dir(path)
        return self

    def _read_offsets(self, name: str) -> Offsets:
        file = f"{self.path}/{name}"
        if self.disk.stat(file) is None:
            self._unsaved.add(name)
            return {}
        return decode_offsets(read_file(self.disk, file), name)

    def format(self, meta: MetaProperties) -> None:
        """Say whose this directory is. Raises OSError."""
        replace_file(self.disk, f"{self.path}/{META_PROPERTIES_FILE}", meta.to_bytes())
        self.meta = meta

    # --- logs ---------------------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """The logs that lie here, sorted by name."""
        found = ((name, parse_partition_dir(name)) for name in self.disk.list_dir(self.path))
        return [partition for name, partition in found if partition is not None and self._is_dir(name)]

    def log_path(self, topic: str, partition: int) -> str:
        return f"{self.path}/{partition_dir(topic, partition)}"

    def create_log(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, *, start_offset: int = 0
    ) -> PartitionLog:
        """A new, empty log. What checkpoints still say of an older one of that name is dropped first, durably: also
        what `mark_deleted` dropped from memory alone. The new log would be measured against it, and refused."""
        self._drop(TopicPartition(topic, partition))
        self.save_checkpoints()
        path = self.log_path(topic, partition)
        return PartitionLog.create(
            self.disk,
            path,
            topic,
            partition,
            topic_id,
            config,
            start_offset=start_offset,
            cache=self.indexes,
            ballast=self.ballast,
        )

    def open_log(
        self, topic: str, partition: int, config: LogConfig, *, now_ms: int, topic_id: bytes | None = None
    ) -> PartitionLog:
        """An existing log, recovered. Raises DamagedLog, NewerFormat, OSError."""
        key = TopicPartition(topic, partition)
        return PartitionLog.open(
            self.disk,
            self.log_path(topic, partition),
            topic,
            partition,
            config,
            recovery_point=self._recovery_points.get(key, 0),
            log_start=self._log_starts.get(key),
            clean=self.was_clean,
            now_ms=now_ms,
            topic_id=topic_id,
            cache=self.indexes,
            ballast=self.ballast,
        )

    def mark_deleted(self, topic: str, partition: int, unique: str) -> str:
        """Rename a log's directory so that no start opens it again; its new path. `unique`: 32 hex digits.

        The log's readers may go on with the files they hold. Durable when it returns; `remove_deleted` does the rest.
        """
        target = f"{self.path}/{deleted_dir(topic, partition, unique)}"
        self.disk.rename(self.log_path(topic, partition), target)
        self.disk.sync_dir(self.path)
        self._drop(TopicPartition(topic, partition))
        return target

    def deleted_directories(self) -> list[str]:
        """Paths of deleted logs whose files are still there."""
        names = self.disk.list_dir(self.path)
        return [f"{self.path}/{name}" for name in names if is_deleted_dir(name) and self._is_dir(name)]

    def remove_deleted(self, path: str) -> None:
        """Remove what `mark_deleted` renamed. Raises OSError."""
        assert is_deleted_dir(path.rsplit("/", 1)[1]), path
        remove_tree(self.disk, path)

    # --- checkpoints --------------------------------------------------------------------------------------------

    def checkpoint(
        self, logs: Iterable[PartitionLog], high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> CheckpointJob:
        """Sample the logs, on the loop; the job's `run` goes to a worker. Entries of other logs stay as they are."""
        for log in logs:
            state = log.checkpoint_state()
            self._note(RECOVERY_POINT_FILE, state.topic_partition, state.recovery_point)
            self._note(LOG_START_FILE, state.topic_partition, state.log_start_offset)
        for key, offset in (high_watermarks or {}).items():
            self._note(REPLICATION_FILE, key, offset)
        return CheckpointJob(self, _CHECKPOINTS)

    def checkpoint_start(self, log: PartitionLog) -> CheckpointJob:
        """Sample a log's start, on the loop, for local bytes may go once the job's `run` is done. It writes nothing
        where the file says it already: a full disk must not keep what is copied from being dropped."""
        state = log.checkpoint_state()
        self._note(LOG_START_FILE, state.topic_partition, state.log_start_offset)
        return CheckpointJob(self, (LOG_START_FILE,))

    def save_checkpoints(self, names: tuple[str, ...] | None = None) -> None:
        """Write what is known now, where the files do not say it yet: all, or those of `names`. Raises OSError."""
        writing = self.disk.lock(f"{self.path}/{CHECKPOINTS_LOCK_FILE}", wait_s=CHECKPOINTS_WAIT_S)
        try:
            for name in names or _CHECKPOINTS:
                if name in self._unsaved:
                    self._save(name)
        finally:
            writing.release()

    def _save(self, name: str) -> None:
        self._unsaved.discard(name)  # first: what the loop notes meanwhile is not in the copy below
        try:
            replace_file(self.disk, f"{self.path}/{name}", encode_offsets(self._offsets(name).copy()))
        except BaseException:
            self._unsaved.add(name)
            raise

    def _offsets(self, name: str) -> Offsets:
        if name == LOG_START_FILE:
            return self._log_starts
        return self._recovery_points if name == RECOVERY_POINT_FILE else self.high_watermarks

    def lower_recovery_point(self, topic: str, partition: int, offset: int) -> None:
        """Before a truncation to `offset`: nothing above it is claimed durable any more. Durable when it returns."""
        key = TopicPartition(topic, partition)
        if self._recovery_points.get(key, 0) > offset:
            self._note(RECOVERY_POINT_FILE, key, offset)
        self.save_checkpoints()  # also where an attempt that failed noted it already

    def forget_log_start(self, topic: str, partition: int) -> None:
        """Before `PartitionLog.start_at` above the log's end, where nothing below is in any tier: a crash between it
        and the next checkpoint would leave a log that lacks its first segments, which is refused. Durable when it
        returns; until the next checkpoint the first segment says where the log starts. Raises OSError."""
        if self._log_starts.pop(TopicPartition(topic, partition), None) is not None:
            self._unsaved.add(LOG_START_FILE)
        self.save_checkpoints()  # also where an attempt that failed forgot it already

    def believe_log_start(self, topic: str, partition: int, offset: int) -> None:
        """The root of a closed log says that it begins at `offset`. In memory: the next checkpoint writes it."""
        key = TopicPartition(topic, partition)
        self._note(LOG_START_FILE, key, max(offset, self._log_starts.get(key, 0)))

    def _note(self, name: str, key: TopicPartition, offset: int) -> None:
        offsets = self._offsets(name)
        if offsets.get(key) != offset:
            offsets[key] = offset
            self._unsaved.add(name)

    def _drop(self, key: TopicPartition) -> None:
        for name in (LOG_START_FILE, RECOVERY_POINT_FILE, REPLICATION_FILE):
            if self._offsets(name).pop(key, None) is not None:
                self._unsaved.add(name)

    # --- end ----------------------------------------------------------------------------------------------------

    def mark_clean(self, broker_epoch: int = -1) -> None:
        """The last write of a stop in order: every log was closed clean and the checkpoints are written."""
        marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
        replace_file(self.disk, f"{self.path}/{CLEAN_SHUTDOWN_FILE}", marker)

    def close(self) -> None:
        """Let go of the lock."""
        self._lock.release()

    def _is_dir(self, name: str) -> bool:
        found = self.disk.stat(f"{self.path}/{name}")
        return found is not None and found.is_dir


def _make_dirs_durable(disk: Disk, path: str) -> None:
    """Create what is missing of `path`, and sync the directories that got a new name."""
    changed: list[str] = []
    at = path
    while disk.stat(at) is None:
        at = at.rsplit("/", 1)[0] or "/"
        changed.append(at)
    disk.make_dirs(path)
    for directory in changed:
        disk.sync_dir(directory)


def leftover_temporaries(names: Iterable[str]) -> list[str]:
    """Half-written checkpoints a crash left in the data directory itself."""
    known = {LOG_START_FILE, RECOVERY_POINT_FILE, REPLICATION_FILE, META_PROPERTIES_FILE, CLEAN_SHUTDOWN_FILE}
    return [name for name in names if name.endswith(TEMPORARY) and name.removesuffix(TEMPORARY) in known]
