"""A file that reserves disk space, so that a full disk still has room for the small files without which no space can be
freed.

Checkpoints, indexes, producers or reservations are written before copied segments are deleted, before sealed segments
are copied, when a log is opened, and at a clean stop. When space runs out, `thermocline-ballast` is deleted and appends
stop, so its space is left for those files. When enough space is free again, the file is created again and appends
resume. `check_space` blocks. A worker sets the flags, and the loop reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from hotstore.host.preallocation import SHARE_OF_FREE, Preallocation
from seams.files.disk import Disk, Space, is_full

BALLAST_FILE: Final = "thermocline-ballast"
BALLAST_BYTES_MAX: Final = 16 << 20  # the indexes of two segments of 1 GiB, or checkpoints of 100 000 partitions
SHARE_OF_DISK: Final = 64  # largest share of a small file system
ROOM: Final = 3  # the ballast is made if this many times its size is free; with less, appends would soon fill the disk


class Step(Enum):
    """Action on the ballast file."""

    STAY = "stay"
    GIVE_UP = "give up"
    MAKE = "make"


def next_step(*, is_held: bool, free_bytes: int, ballast_bytes: int, met_full: bool) -> Step:
    """The action on the ballast file. Pure. `met_full`: since the last check a write found no space."""
    room_bytes = ROOM * ballast_bytes
    if is_held:
        is_needed = free_bytes < ballast_bytes // 2 or (met_full and free_bytes < room_bytes)
        return Step.GIVE_UP if is_needed else Step.STAY
    return Step.MAKE if free_bytes >= room_bytes > 0 else Step.STAY


@dataclass(slots=True, eq=False)
class Ballast:
    """The ballast file of one data directory."""

    disk: Disk
    directory: str
    is_short: bool = False
    """The ballast file is deleted: no log may append."""
    met_full: bool = False
    """Set by a write that found no space; the next check reads and clears it."""
    size_bytes: int = 0
    preallocation: Preallocation = field(default_factory=Preallocation)
    """`check_space` sets its budget."""

    @property
    def path(self) -> str:
        return f"{self.directory}/{BALLAST_FILE}"

    def check_space(self) -> Space:
        """Delete or make the ballast file, by the free space. Blocking. Returns the space after that. Raises
        OSError."""
        space = self.disk.space(self.directory)
        self.size_bytes = min(BALLAST_BYTES_MAX, space.total // SHARE_OF_DISK)
        met_full, self.met_full = self.met_full, False
        found = self.disk.stat(self.path)
        # A kill or a power cut may have left the file without its bytes.
        is_held = found is not None and found.size >= self.size_bytes // 2
        step = next_step(is_held=is_held, free_bytes=space.free, ballast_bytes=self.size_bytes, met_full=met_full)
        if step is Step.GIVE_UP:
            self.is_short = True  # set first, so that no append uses the freed space
            self.disk.unlink(self.path)
            is_held = False
        elif step is Step.MAKE:
            is_held = self._make()
        self.is_short = not is_held and self.size_bytes > 0
        if step is not Step.STAY:
            space = self.disk.space(self.directory)
        self.preallocation.budget_bytes = 0 if self.is_short else space.free // SHARE_OF_FREE
        return space

    def _make(self) -> bool:
        """Make the ballast file. Returns whether the disk had room for all of it."""
        try:
            self.disk.allocate(self.path, self.size_bytes)
        except OSError as error:
            if self.disk.stat(self.path) is not None:
                self.disk.unlink(self.path)
            if not is_full(error):
                raise
            return False
        return True
