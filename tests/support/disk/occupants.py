"""Who changes names in whose directory: each effect of a simulated disk beside the topic its caller works for.

Owns one comparison. Always true: where a caller says its topic, whatever it does by a path inside a partition's
directory it does in one whose `partition.metadata` names that topic at that moment, or in one that names none yet; what
goes through an open descriptor is not judged, it reaches the file that was opened, whatever lies at its path by now.
The door is `watch(disk, caller, found)`: `caller()` is the topic id (16 bytes) of the lease that the running call
belongs to, None for a call of nobody's (a context variable, which `SimWorkers` carries into every call); `found` is
told in words, and may raise. A disk after `kill` or `crash` is another one: watch it too. Must not know leases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID
from weakref import WeakSet

from hotstore.host.place import CALLER
from logformat.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata
from logformat.errors import Corrupt
from tests.support.disk.crash_disk import CrashDisk, parent
from tests.support.disk.late import must_not_come

BY_NAME = frozenset({"create", "mkdir", "rename", "link", "unlink", "rmdir", "sync_dir", "allocate"})


def watch(disk: CrashDisk, caller: Callable[[], bytes | None], found: Callable[[str], None]) -> None:
    """From now on; whoever watches already is told as before."""
    was_told, was_told_of_rename = disk.on_effect, disk.on_rename

    def look(kind: str, path: str) -> None:
        topic_id = caller()
        if topic_id is None:
            return
        occupied = occupant(disk, path)
        if occupied is not None and occupied[1] != topic_id:
            directory, other = occupied
            found(f"{kind} {path} for topic {UUID(bytes=topic_id)}: {directory} is of topic {UUID(bytes=other)}")

    def effect(kind: str, path: str) -> None:
        if was_told is not None:
            was_told(kind, path)
        if kind in BY_NAME:
            look(kind, path)

    def rename(source: str, target: str) -> None:
        if was_told_of_rename is not None:
            was_told_of_rename(source, target)
        look("rename of", source)

    disk.on_effect, disk.on_rename = effect, rename


def watch_calls(disk: CrashDisk) -> None:
    """`watch`, once a disk: each blocking call in a place of a log host is for the topic whose log lies there."""
    if disk not in _WATCHED:
        _WATCHED.add(disk)
        watch(disk, _topic_of_call, must_not_come)


_WATCHED: Final[WeakSet[CrashDisk]] = WeakSet()


def _topic_of_call() -> bytes | None:
    call = CALLER.get()
    return None if call is None else call[1]


def occupant(disk: CrashDisk, path: str) -> tuple[str, bytes] | None:
    """The partition's directory that `path` is, or lies in, and whose it is; None: it lies in none that says so."""
    while path != "/":
        inode = disk._names.get(f"{path}/{PARTITION_METADATA_FILE}")  # not read: a look is no effect, and no fault's
        if inode is not None:
            try:
                return path, decode_partition_metadata(inode.data)
            except Corrupt:
                return None  # being written
        path = parent(path)
    return None
