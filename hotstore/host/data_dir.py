"""The data directory: its lock, `meta.properties`, clean-shutdown marker and log directories (Kafka's LogManager).

One process holds it at a time. Files with unknown names are not changed. While the clean-shutdown marker exists, no log
is open. Opening the directory does not change the files that the marker covers. All methods block.
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
from seams.files.disk import Disk, Lock, read_file, remove_tree, replace_file

_PROCESSES_MAX: Final = 100  # recorded starts that failed since the last process that served
_OS: Final = " os"


class Process(NamedTuple):
    """A process that may have written here. `flushes`: it flushes before it acknowledges (thermocline.flush)."""

    incarnation: str
    flushes: bool


class DataDir:
    """An open, locked data directory.

    `was_clean`: the last process stopped cleanly, so no log needs a scan. `has_clean_marker`: the clean-shutdown marker
    still exists, so no log or checkpoint may be written."""

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
        """The last process that served from this directory, and the processes that tried to after it; None: none is
        recorded."""
        self.checkpoints = checkpoints
        self.was_clean = was_clean
        self.has_clean_marker = was_clean
        self.indexes = IndexCache()
        self.ballast = Ballast(disk, path)
        self._lock = lock
        # A removal may have listed a path that a creation uses now. Each thread first adds the path to its own set and
        # then checks the other set, so at least one of the two stops.
        self._being_made: set[str] = set()  # staged directories of new logs
        self._being_removed: set[str] = set()

    @classmethod
    def open(cls, disk: Disk, path: str) -> DataDir:
        """Lock and read the directory. The clean-shutdown marker stays until `remove_clean_marker`, so a process that
        must not serve leaves it for the next start. Raises DataDirLocked, Corrupt, OSError."""
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
        # A killed process may have left log directories whose names are only in the page cache.
        disk.sync_dir(path)
        return self

    def format(self, meta: MetaProperties) -> None:
        """Write `meta.properties`. Raises OSError."""
        replace_file(self.disk, f"{self.path}/{META_PROPERTIES_FILE}", meta.to_bytes())
        self.meta = meta

    def note_processes(self, processes: tuple[Process, ...]) -> None:
        """Record which processes may have written here. Durable when it returns. Raises OSError.

        Line 1 is the version `0`. Each following line is a process, with ` os` at its end if the process did not flush.
        The file distinguishes an older copy of this directory from the current one. It shows which records a power cut
        may have lost."""
        noted = [each.incarnation if each.flushes else each.incarnation + _OS for each in processes]
        text = "".join(f"{line}\n" for line in ("0", *noted[:1], *noted[1:][-_PROCESSES_MAX:]))
        replace_file(self.disk, f"{self.path}/{INCARNATIONS_FILE}", text.encode("ascii"))
        self.processes = processes

    def remove_clean_marker(self) -> None:
        """Remove the clean-shutdown marker durably. After this logs may be written.

        After an OSError the marker may exist after a power cut. It is then still valid, because no log was written.
        """
        if self.has_clean_marker:
            self.disk.unlink(f"{self.path}/{CLEAN_SHUTDOWN_FILE}")
            self.disk.sync_dir(self.path)
            self.has_clean_marker = False

    # --- logs ---------------------------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """The log directories here, sorted by name."""
        found = ((name, parse_partition_dir(name)) for name in self.disk.list_dir(self.path))
        return [partition for name, partition in found if partition is not None and self._is_dir(name)]

    def log_path(self, topic: str, partition: int) -> str:
        return f"{self.path}/{partition_dir(topic, partition)}"

    def mark_deleted(self, topic: str, partition: int, unique: str) -> str:
        """Rename a log's directory so that no start opens it. Returns the new path. `unique`: 32 hex digits.

        Readers keep their open files. Durable when it returns. `remove_deleted` removes the files."""
        return self._renamed(topic, partition, deleted_dir(topic, partition, unique))

    def mark_stray(self, topic: str, partition: int, unique: str) -> str:
        """Rename the directory of a log that must not be removed yet. Otherwise this does the same as
        `mark_deleted`."""
        return self._renamed(topic, partition, stray_dir(topic, partition, unique))

    def strays(self) -> list[str]:
        """Names of stray directories, sorted."""
        return sorted(name for name in self.disk.list_dir(self.path) if is_stray_dir(name))

    def _renamed(self, topic: str, partition: int, name: str) -> str:
        target = f"{self.path}/{name}"
        self.disk.rename(self.log_path(topic, partition), target)
        self.disk.sync_dir(self.path)
        self.checkpoints.drop(TopicPartition(topic, partition))
        return target

    def deleted_directories(self) -> list[str]:
        """Paths of deleted logs that still have files, and of failed creations."""
        found = [f"{self.path}/{name}" for name in self.disk.list_dir(self.path) if is_deleted_dir(name)]
        return [path for path in found if path not in self._being_made and self._is_dir(path.rsplit("/", 1)[1])]

    @contextmanager
    def staged_path(self, topic: str, partition: int, topic_id: bytes) -> Iterator[str]:
        """A free path for the directory of a log that is being created. Only one creation uses it at a time. If the
        directory remains there, it is removed later like a deleted log."""
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
        """Remove a deleted log or a failed creation, unless a creation uses the path now. Raises OSError."""
        assert is_deleted_dir(path.rsplit("/", 1)[1]), path
        self._being_removed.add(path)
        try:
            if path not in self._being_made:
                remove_tree(self.disk, path)
        finally:
            self._being_removed.discard(path)

    # --- end ----------------------------------------------------------------------------------------------------

    def mark_clean(self, broker_epoch: int = -1) -> None:
        """Write the clean-shutdown marker, after every log was closed cleanly and the checkpoints were written."""
        marker = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
        replace_file(self.disk, f"{self.path}/{CLEAN_SHUTDOWN_FILE}", marker)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def _is_dir(self, name: str) -> bool:
        found = self.disk.stat(f"{self.path}/{name}")
        return found is not None and found.is_dir


def _make_dirs_durable(disk: Disk, path: str) -> None:
    changed: list[str] = []
    at = path
    while disk.stat(at) is None:
        at = at.rsplit("/", 1)[0] or "/"
        changed.append(at)
    disk.make_dirs(path)
    for directory in changed:
        disk.sync_dir(directory)


def leftover_temporaries(names: Iterable[str]) -> list[str]:
    """Half-written checkpoints that a crash left in the data directory itself."""
    known = {*CHECKPOINTS, META_PROPERTIES_FILE, CLEAN_SHUTDOWN_FILE, INCARNATIONS_FILE}
    return [name for name in names if name.endswith(TEMPORARY) and name.removesuffix(TEMPORARY) in known]
