"""The data directory: whose it is, which logs lie in it, whether it was left in order.

Owns the exclusive lock, `meta.properties`, the clean-shutdown marker, and the names of log directories; holds what all
its logs share (offset checkpoints, index cache, ballast), and which processes wrote here. Always true: one process at a
time; a name nobody knows is left alone; while the marker stands no log is open here (`LogHost` asks), and opening the
directory changes nothing that it vouches for. All methods block. Must not know: open logs, topics' configs, who leads,
the bucket. Source: Kafka's LogManager, CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final, NamedTuple

from hotstore.errors import DataDirLocked
from hotstore.file_names import (
    CLEAN_SHUTDOWN_FILE,
    INCARNATIONS_FILE,
    LOCK_FILE,
    TEMPORARY,
    deleted_dir,
    is_deleted_dir,
    is_stray_dir,
    parse_partition_dir,
    partition_dir,
    stray_dir,
)
from hotstore.host.ballast import Ballast
from hotstore.host.offset_checkpoints import CHECKPOINTS, OffsetCheckpoints
from hotstore.log.segment import IndexCache
from logformat.checkpoints import META_PROPERTIES_FILE, MetaProperties
from logformat.values import TopicPartition
from seams.disk import Disk, Lock, read_file, remove_tree, replace_file

_PROCESSES_MAX: Final = 100  # starts that came to nothing since the last that served: those before are forgotten
_OS: Final = " os"


class Process(NamedTuple):
    """One that may have written here. `flushes`: what it acknowledged was flushed before (thermocline.flush)."""

    incarnation: str
    flushes: bool


class DataDir:
    """An open, locked data directory. `was_clean`, for as long as it is open: the last process stopped in order, so no
    log needs a scan. `is_marked`: the marker that says so still stands, so nothing is written to logs or checkpoints.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        lock: Lock,
        meta: MetaProperties | None,
        checkpoints: OffsetCheckpoints,
        was_clean: bool,
    ) -> None:
        self.disk = disk
        self.path = path
        self.meta = meta
        """None: the directory was never formatted."""
        self.processes: tuple[Process, ...] | None = None
        """Those that served from here, the last one and those that tried since; None: nobody noted any."""
        self.checkpoints = checkpoints
        self.was_clean = was_clean
        self.is_marked = was_clean
        self.indexes = IndexCache()
        self.ballast = Ballast(disk, path)
        self._lock = lock
        # A removal may have listed what is made anew now. Each notes its path and then looks for the other, so that in
        # two threads one of them at least steps back.
        self._being_made: set[str] = set()  # directories of logs that have no place yet
        self._being_removed: set[str] = set()

    @classmethod
    def open(cls, disk: Disk, path: str) -> DataDir:
        """Lock and read. The clean-shutdown marker stays until `unmark`: who is refused the right to serve leaves it to
        the next start. Raises DataDirLocked, Corrupt, OSError."""
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
        checkpoints = OffsetCheckpoints.read(disk, path)
        was_clean = disk.stat(f"{path}/{CLEAN_SHUTDOWN_FILE}") is not None
        self = cls(disk, path, lock, meta, checkpoints, was_clean)
        noted = f"{path}/{INCARNATIONS_FILE}"
        if disk.stat(noted) is not None:
            lines = read_file(disk, noted).decode("ascii", "replace").splitlines()[1:]
            self.processes = tuple(Process(line.removesuffix(_OS), not line.endswith(_OS)) for line in lines)
        for name in leftover_temporaries(disk.list_dir(path)):
            disk.unlink(f"{path}/{name}")
        # A killed process may have left log directories whose names only the page cache knows.
        disk.sync_dir(path)
        return self

    def format(self, meta: MetaProperties) -> None:
        """Say whose this directory is. Raises OSError."""
        replace_file(self.disk, f"{self.path}/{META_PROPERTIES_FILE}", meta.to_bytes())
        self.meta = meta

    def note_processes(self, processes: tuple[Process, ...]) -> None:
        """Say which processes may have written here (line 1 the version `0`, then one a line, ` os` behind it where it
        did not flush): a copy of this directory that is older than the last of them can be told by it, and what may be
        gone with the power. Durable when it returns. Raises OSError."""
        noted = [each.incarnation if each.flushes else each.incarnation + _OS for each in processes]
        text = "".join(f"{line}\n" for line in ("0", *noted[:1], *noted[1:][-_PROCESSES_MAX:]))
        replace_file(self.disk, f"{self.path}/{INCARNATIONS_FILE}", text.encode("ascii"))
        self.processes = processes

    def unmark(self) -> None:
        """Take the clean-shutdown marker away, durably: from here on logs may be written. Raises OSError; then it may
        stand again after a power cut, and is still true."""
        if self.is_marked:
            self.disk.unlink(f"{self.path}/{CLEAN_SHUTDOWN_FILE}")
            self.disk.sync_dir(self.path)
            self.is_marked = False

    # --- logs ---------------------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """The logs that lie here, sorted by name."""
        found = ((name, parse_partition_dir(name)) for name in self.disk.list_dir(self.path))
        return [partition for name, partition in found if partition is not None and self._is_dir(name)]

    def log_path(self, topic: str, partition: int) -> str:
        return f"{self.path}/{partition_dir(topic, partition)}"

    def mark_deleted(self, topic: str, partition: int, unique: str) -> str:
        """Rename a log's directory so that no start opens it again; its new path. `unique`: 32 hex digits.

        The log's readers may go on with the files they hold. Durable when it returns; `remove_deleted` does the rest.
        """
        return self._renamed(topic, partition, deleted_dir(topic, partition, unique))

    def mark_stray(self, topic: str, partition: int, unique: str) -> str:
        """As `mark_deleted`, of a log that nothing removes: its new path."""
        return self._renamed(topic, partition, stray_dir(topic, partition, unique))

    def strays(self) -> list[str]:
        """Names of the directories that `mark_stray` made and nobody removed yet, sorted."""
        return sorted(name for name in self.disk.list_dir(self.path) if is_stray_dir(name))

    def _renamed(self, topic: str, partition: int, name: str) -> str:
        target = f"{self.path}/{name}"
        self.disk.rename(self.log_path(topic, partition), target)
        self.disk.sync_dir(self.path)
        self.checkpoints.drop(TopicPartition(topic, partition))
        return target

    def deleted_directories(self) -> list[str]:
        """Paths of deleted logs whose files are still there, and of logs whose making came to nothing."""
        found = [f"{self.path}/{name}" for name in self.disk.list_dir(self.path) if is_deleted_dir(name)]
        return [path for path in found if path not in self._being_made and self._is_dir(path.rsplit("/", 1)[1])]

    @contextmanager
    def making(self, topic: str, partition: int, topic_id: bytes) -> Iterator[str]:
        """A free path for the directory of a log that is being made, by one maker at a time. What is left there when
        this ends is removed like a deleted log."""
        for number in count(int.from_bytes(topic_id)):
            self._being_made.add(path := self._staged(topic, partition, number % (1 << 128)))
            if path not in self._being_removed:
                break
            self._being_made.discard(path)
        try:
            remove_tree(self.disk, path)
            yield path
        finally:
            self._being_made.discard(path)

    def _staged(self, topic: str, partition: int, number: int) -> str:
        return f"{self.path}/{deleted_dir(topic, partition, f'{number:032x}')}"

    def remove_deleted(self, path: str) -> None:
        """Remove what `mark_deleted` renamed, or what is left of a log's making; not of one that is made anew since it
        was listed. Raises OSError."""
        assert is_deleted_dir(path.rsplit("/", 1)[1]), path
        self._being_removed.add(path)
        try:
            if path not in self._being_made:
                remove_tree(self.disk, path)
        finally:
            self._being_removed.discard(path)

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
    known = {*CHECKPOINTS, META_PROPERTIES_FILE, CLEAN_SHUTDOWN_FILE, INCARNATIONS_FILE}
    return [name for name in names if name.endswith(TEMPORARY) and name.removesuffix(TEMPORARY) in known]
