"""A file that holds back some of the disk, so that a full one still has room for what gives space back.

Dropping what the bucket holds, copying what is sealed, opening a log and stopping in order all write small files first:
checkpoints, indexes, producers, reservations. Owns `thermocline-ballast` in the data directory and whether logs may be
appended to. Always true: while the file is given up nothing is appended, so what it left goes to those small files and
not to the next batch; appends go on when it could be made again with as much again left over. Must not know who looks,
nor what is written. `look` blocks; the flags are plain attributes that a worker sets and the loop reads.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from hotstore.host.preallocation import SHARE_OF_FREE, Preallocation
from seams.disk import Disk, Space, is_full

BALLAST_FILE: Final = "thermocline-ballast"
BALLAST_BYTES_MAX: Final = 16 << 20  # the indexes of two segments of 1 GiB, or checkpoints of 100 000 partitions
SHARE_OF_DISK: Final = 64  # of a small file system no more than this part
ROOM: Final = 3  # times the ballast must be free before it is made: then appends do not meet the end at once


class Step(Enum):
    """What to do with the ballast now."""

    STAY = "stay"
    GIVE_UP = "give up"
    MAKE = "make"


def next_step(*, is_held: bool, free_bytes: int, ballast_bytes: int, met_full: bool) -> Step:
    """Pure. `met_full`: a write found no space since the last look."""
    room_bytes = ROOM * ballast_bytes
    if is_held:
        is_needed = free_bytes < ballast_bytes // 2 or (met_full and free_bytes < room_bytes)
        return Step.GIVE_UP if is_needed else Step.STAY
    return Step.MAKE if free_bytes >= room_bytes > 0 else Step.STAY


class Ballast:
    """One data directory's."""

    __slots__ = ("_directory", "_disk", "ahead", "is_short", "met_full", "size_bytes")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.is_short = False
        """Nothing is to be appended: the ballast is given up."""
        self.met_full = False
        """Set by whoever finds no space; the next look takes note of it."""
        self.size_bytes = 0
        self.ahead = Preallocation()
        """Its budget is set by each look."""

    @property
    def path(self) -> str:
        return f"{self._directory}/{BALLAST_FILE}"

    def look(self) -> Space:
        """Blocking: give the ballast up or make it, as the free space asks; the space afterwards. Raises OSError."""
        space = self._disk.space(self._directory)
        self.size_bytes = min(BALLAST_BYTES_MAX, space.total // SHARE_OF_DISK)
        met_full, self.met_full = self.met_full, False
        found = self._disk.stat(self.path)
        # A process that was killed, or a power cut, may have left the name of one that was never made.
        is_held = found is not None and found.size >= self.size_bytes // 2
        step = next_step(is_held=is_held, free_bytes=space.free, ballast_bytes=self.size_bytes, met_full=met_full)
        if step is Step.GIVE_UP:
            self.is_short = True  # first: nobody may append into what it leaves
            self._disk.unlink(self.path)
            is_held = False
        elif step is Step.MAKE:
            is_held = self._make()
        self.is_short = not is_held and self.size_bytes > 0
        if step is not Step.STAY:
            space = self._disk.space(self._directory)
        self.ahead.budget_bytes = 0 if self.is_short else space.free // SHARE_OF_FREE
        return space

    def _make(self) -> bool:
        """Whether all of it could be had."""
        try:
            self._disk.allocate(self.path, self.size_bytes)
        except OSError as error:
            if self._disk.stat(self.path) is not None:
                self._disk.unlink(self.path)
            if not is_full(error):
                raise
            return False
        return True
