"""What lies of a partition's log on a machine's disk, whoever runs there: read behind every broker's back.

Owns the parsing of segment files, of which only what is new since the last look is read. Always true: it says what
programs find now (`written`) or what a power cut now would leave (`synced`), never what a broker believes of it. A log
ends where no batch follows: a torn batch may have lost its base offset alone, which no CRC covers. Must not know
brokers, roles or images.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from logformat.record_batch import BatchHeader, CorruptBatch, walk
from seams.files.disk import Buffer
from tests.sim.checks.history import Place
from tests.support.disk.crash_disk import CrashDisk, Inode

_LOG = ".log"


class Seen(NamedTuple):
    """A batch: its offsets, and what its bytes are, leader epoch included."""

    base: int
    end: int
    digest: str


class DiskLog(NamedTuple):
    """The files of one log. `start`: where the first one begins; `end`: where the last whole batch ends, or the last
    file begins."""

    start: int
    end: int
    batches: tuple[Seen, ...]


class _File:
    """One file, as far as it was parsed."""

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.at = 0
        self.last = b""  # the batch that ends there
        self.batches: list[Seen] = []


class _Names(NamedTuple):
    """The segment files of a directory, as they were after so many changes of names on its disk."""

    disk: CrashDisk
    changes: int
    places: dict[Place, list[str]]


class _Log(NamedTuple):
    """A log, as it was read from files after so many changes of each."""

    changes: list[tuple[Inode, int]]
    read: DiskLog


class Disks:
    """Of one run. Every directory given is that of a data directory on the disk. What did not change since it was read
    is not read again: it is looked at ten times a second."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, bool], _File] = {}
        self._names: dict[tuple[str, bool], _Names] = {}
        self._logs: dict[tuple[str, bool], _Log] = {}

    def places(self, disk: CrashDisk, directory: str, *, synced: bool) -> dict[Place, list[str]]:
        """The segment files of every log there, in order of their base offsets."""
        known = self._names.get((directory, synced))
        if known is None or known.disk is not disk or known.changes != disk.names_changes:
            known = _Names(disk, disk.names_changes, self._listed(disk, directory, synced=synced))
            self._names[directory, synced] = known
        return known.places

    def _listed(self, disk: CrashDisk, directory: str, *, synced: bool) -> dict[Place, list[str]]:
        names = disk._durable if synced else disk._names
        start = f"/data/{directory}/"
        found: dict[Place, list[str]] = {}
        for path in sorted(name for name in names if name.startswith(start) and name.endswith(_LOG)):
            folder, _, _ = path[len(start) :].rpartition("/")
            topic, _, index = folder.rpartition("-")
            if index.isdigit() and "/" not in folder:
                found.setdefault((topic, int(index)), []).append(path)
        return found

    def log(self, disk: CrashDisk, paths: list[str], *, synced: bool) -> DiskLog:
        """Of these files."""
        names = disk._durable if synced else disk._names
        if not paths:
            return DiskLog(0, 0, ())
        changes = [(inode := names[path], inode.changes) for path in paths]
        known = self._logs.get((paths[0], synced))
        if known is None or known.changes != changes:
            known = _Log(changes, self._read(names, paths, synced=synced))
            self._logs[paths[0], synced] = known
        return known.read

    def _read(self, names: Mapping[str, Inode], paths: list[str], *, synced: bool) -> DiskLog:
        batches: list[Seen] = []
        start = end = -1
        for path in paths:
            base = base_of(path)
            if start < 0:
                start = end = base
            found = self._parsed(path, base, names[path], synced=synced)
            batches += found
            end = max(end, found[-1].end if found else base)
        return DiskLog(max(start, 0), max(end, 0), tuple(batches))

    def _parsed(self, path: str, base: int, inode: Inode, *, synced: bool) -> list[Seen]:
        key = (path, synced)
        data = inode.durable if synced else inode.data
        known = self._files.get(key)
        if known is None or known.inode is not inode:
            known = self._files[key] = _File(inode)
        if known.at > len(data) or data[known.at - len(known.last) : known.at] != known.last:
            known = self._files[key] = _File(inode)  # it was cut
        if known.at < len(data):
            end = known.batches[-1].end if known.batches else base
            for at, header in batches_in(data, end, known.at):
                known.at = at + header.size
                known.last = bytes(data[at : known.at])
                digest = hashlib.sha256(known.last).hexdigest()[:12]
                known.batches.append(Seen(header.base_offset, header.next_offset, digest))
        return known.batches


def batches_of(disk: CrashDisk, paths: list[str], start: int, end: int) -> list[tuple[BatchHeader, bytes]]:
    """The batches that programs find in these files and that begin in [start, end), with their bytes."""
    found = []
    for path in paths:
        data = disk._names[path].data
        found += [
            (header, bytes(data[at : at + header.size]))
            for at, header in batches_in(data, base_of(path))
            if start <= header.base_offset < end
        ]
    return found


def batches_in(data: Buffer, base: int, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch from `position` on, the first of which begins at offset `base`, each other
    where the one before ends. It ends at the first byte where no such batch begins: zeros that nothing was written
    over, or what a power cut left of a batch."""
    with contextlib.suppress(CorruptBatch):
        for at, header in walk(data, position):
            if header.base_offset != base:
                return
            base = header.next_offset
            yield at, header


def base_of(path: str) -> int:
    """The offset in the name of a segment file."""
    return int(path.rpartition("/")[2].removesuffix(_LOG))
