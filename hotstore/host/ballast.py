"""A file that reserves disk space, so that a full disk still has room for the small files that free space.

Deleting copied segments, copying sealed ones, opening a log and a clean stop first write checkpoints, indexes,
producers or reservations. When space runs out, `thermocline-ballast` is deleted and appends stop, so its space goes to
those files. Appends resume when free space is twice the size of the file, which is then created again. `check_space`
blocks; the flags are set by a worker and read by the loop.
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
ROOM: Final = 3  # the ballast is made when this many times its size is free; with less, appends soon fill the disk


class Step(Enum):
    """Action on the ballast file."""

    STAY = "stay"
    GIVE_UP = "give up"
    MAKE = "make"


def next_step(*, is_held: bool, free_bytes: int, ballast_bytes: int, met_full: bool) -> Step:
    """Pure. `met_full`: a write found no space since the last check."""
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
        """Blocking: delete or make the ballast file according to free space; returns the space afterwards. Raises
        OSError."""
        space = self.disk.space(self.directory)
        self.size_bytes = min(BALLAST_BYTES_MAX, space.total // SHARE_OF_DISK)
        met_full, self.met_full = self.met_full, False
        found = self.disk.stat(self.path)
        # A kill or a power cut may have left the name without the bytes.
        is_held = found is not None and found.size >= self.size_bytes // 2
        step = next_step(is_held=is_held, free_bytes=space.free, ballast_bytes=self.size_bytes, met_full=met_full)
        if step is Step.GIVE_UP:
            self.is_short = True  # first: no append may use the space that is freed
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
        """Returns whether there was room for all of it."""
        try:
            self.disk.allocate(self.path, self.size_bytes)
        except OSError as error:
            if self.disk.stat(self.path) is not None:
                self.disk.unlink(self.path)
            if not is_full(error):
                raise
            return False
        return True
