"""Resources shared by all passes of a broker's cold cleaner: engine, budget, scratch directory, counters.

One pass at a time uses them. The scratch directory holds at most one object and its cleaned bytes, and up to
`KEPT_BYTES_MAX` of objects that the pass reads twice: for their keys, and to clean them. A pass removes all files at
its end, and so does the next start. A step of the engine always returns before another step begins, even if its pass
was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar, TypeVarTuple
from uuid import UUID

from hotstore.cleaning.cleaner_config import CleanerConfig
from hotstore.cleaning.engine import CleanerEngine
from seams.files.disk import File
from seams.loop.tasks import Tasks
from seams.loop.workers import Lane
from seams.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SCRATCH_DIRECTORY: Final = "thermocline-cold-cleaning"
HOUR_S: Final = 3600.0
KEPT_BYTES_MAX: Final = 1 << 30
"""A GiB of dirty objects costs half the GETs. Kept objects take at most an eighth of the disk's free space."""
KEPT_MAX: Final = 64
"""Kept files: each is an open descriptor and a footer."""
_SOURCE: Final = "source"
_OUTPUTS: Final = ("cleaned.log", "cleaned.index", "cleaned.timeindex")


@dataclass(slots=True)
class ColdCleanCounters:
    """Totals of a broker, for metrics. Bytes read from the bucket, written to it, and freed in it."""

    passes: int = 0
    failed_passes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    freed_bytes: int = 0
    replaced_objects: int = 0


class Kept(NamedTuple):
    """A file for one object of this size."""

    file: File
    size: int


@dataclass(slots=True, eq=False)
class ScratchFiles:
    """New, empty files of one pass. `source`: holds one object after the other. `kept`: files of objects that are read
    twice, by the object's UUID.
    """

    source: File
    outputs: tuple[File, File, File]
    kept: dict[UUID, Kept] = field(default_factory=dict)

    @property
    def kept_bytes(self) -> int:
        return sum(each.size for each in self.kept.values())


@dataclass(slots=True, eq=False)
class ColdCleaning:
    """One per broker. `config`: the local cleaner's configuration, for the map of keys. `bytes_per_hour` bounds the
    bytes read and written; if it is 0, no pass begins."""

    world: World
    tasks: Tasks
    directory: str
    engine: CleanerEngine
    config: Callable[[], CleanerConfig]
    bytes_per_hour: int
    counters: ColdCleanCounters = field(default_factory=ColdCleanCounters)
    stands_still: dict[tuple[UUID, int], str] = field(default_factory=dict)
    """Partitions that a pass could not clean, with the reason and the object's name."""
    _free_at_s: float = 0.0

    @property
    def is_on(self) -> bool:
        return self.bytes_per_hour > 0 and self.config().enabled

    async def start(self) -> None:
        """Remove the files of a killed process. Raises OSError."""
        await self.world.workers.run(self._remove, lane=Lane.FILES)

    async def close(self) -> None:
        """Close the engine, after the jobs have ended."""
        await self.world.workers.run(self.engine.close, lane=Lane.CLEAN)

    async def open_files(self) -> ScratchFiles:
        """Raises OSError."""
        return await self.step(self._open)

    async def remove_files(self, files: ScratchFiles) -> None:
        """Raises OSError."""
        await self.step(self._drop, files)

    async def step(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run a blocking step of a pass. If the caller is cancelled, the step ends first, so that the next pass finds
        the engine free.
        """
        work = self.world.workers.run(function, *args, lane=Lane.CLEAN)
        running: asyncio.Task[T] = self.tasks.spawn("a step of the cold cleaner", work, awaited=True)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            while not running.done():
                with suppress(asyncio.CancelledError):  # cancelled by the end of the role or of the broker
                    await asyncio.wait([running])
            if not running.cancelled():
                running.exception()  # the pass is cancelled and does not see this error
            raise

    def room_for(self, files: ScratchFiles, uuid: UUID, size: int) -> File:
        """*Blocking*: a file to keep the object in if there is room, otherwise `source`. Raises OSError."""
        kept_bytes = files.kept_bytes + size
        if len(files.kept) >= KEPT_MAX or kept_bytes > KEPT_BYTES_MAX:
            return files.source
        if kept_bytes > self.world.disk.space(self.directory).free // 8:
            return files.source
        file = self.world.disk.open(f"{self.directory}/{uuid}", write=True, create=True)
        files.kept[uuid] = Kept(file, size)
        return file

    def drop_kept(self, files: ScratchFiles, uuid: UUID) -> None:
        """*Blocking*: drop the object's kept file, if any, because the object is cleaned. Raises OSError."""
        kept = files.kept.pop(uuid, None)
        if kept is not None:
            kept.file.close()
            self.world.disk.unlink(f"{self.directory}/{uuid}")

    def duration_ms(self, moved_bytes: int) -> int:
        """Time that the budget allots to these bytes."""
        return int(moved_bytes * HOUR_S * 1000 / self.bytes_per_hour)

    async def took(self, moved_bytes: int) -> None:
        """Wait until `moved_bytes` more are within the budget."""
        now_s = self.world.clock.monotonic_s()
        self._free_at_s = max(self._free_at_s, now_s) + moved_bytes * HOUR_S / self.bytes_per_hour
        await asyncio.sleep(self._free_at_s - now_s)

    def _remove(self) -> None:
        disk = self.world.disk
        if disk.stat(self.directory) is None:
            return
        for name in disk.list_dir(self.directory):
            disk.unlink(f"{self.directory}/{name}")

    def _open(self) -> ScratchFiles:
        disk, directory = self.world.disk, self.directory
        disk.make_dirs(directory)
        self._remove()
        made = [disk.open(f"{directory}/{name}", write=True, create=True) for name in (_SOURCE, *_OUTPUTS)]
        return ScratchFiles(made[0], (made[1], made[2], made[3]))

    def _drop(self, files: ScratchFiles) -> None:
        for file in (files.source, *files.outputs, *(each.file for each in files.kept.values())):
            file.close()
        self._remove()
