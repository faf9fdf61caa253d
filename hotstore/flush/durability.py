"""How much of a log survives a power cut, and the blocking work that makes it more.

Owns the flushed end, the list of files with bytes that no sync covered, and what has to be written beside a segment
once it is sealed. A machine: `begin_*` samples the state into a job, the job runs off the loop, `finish_*` takes note.
Always true: the flushed end only moves to a target that was sampled before its sync began, after older files and the
directory were synced too; the recovery point never passes an epoch that the checkpoint file lacks; index files and
producer files of a sealed segment are written only after its bytes are durable, so that their presence proves that.
Must not know: who waits for the flushed end, threads, the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hotstore.file_names import EPOCHS_FILE, OFFSET_INDEX, PRODUCERS, SNAPSHOT, TEMPORARY, TIME_INDEX, offset_file
from hotstore.log.producer_state import ProducersAt
from hotstore.log.segment import Segment
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import encode_kafka_snapshot, encode_producer_state
from seams import crash_points
from seams.disk import Directory, File, read_in, replace_in


class SyncJob(NamedTuple):
    """One fdatasync of a log: of rolled files and the active one, then of the directory if names are new."""

    target: int
    """Log end when the job was made: what is durable when it succeeded."""
    written_bytes: int
    files: tuple[File, ...]
    rolled: int
    directory: Directory | None
    """Where names are new; None: nowhere."""

    def run(self) -> None:
        """Blocking; raises OSError, after which nothing may be believed (C10)."""
        for file in self.files:
            file.sync()
        self.sync_names()
        crash_points.reach("flush.synced")

    def sync_names(self) -> None:
        """Blocking, once the files are durable; raises OSError."""
        if self.directory is not None:
            self.directory.sync()


class PendingSeal(NamedTuple):
    """Small files that are owed: the indexes of a segment that rolled, the producers at a roll point."""

    segment: Segment | None
    producers: ProducersAt | None


class SealJob(NamedTuple):
    """Small files beside sealed, synced segments, and the epoch checkpoint when it changed. All can be rebuilt."""

    directory: Directory
    epochs: LeaderEpochs | None
    seals: tuple[PendingSeal, ...]

    def run(self) -> None:
        """Blocking; raises OSError, and may then be run again."""
        if self.epochs is not None:
            replace_in(self.directory, EPOCHS_FILE, self.epochs.to_bytes())
        for segment, producers in self.seals:
            if segment is not None:
                segment.trim()
                write_index_files(segment)
            if producers is not None:
                write_producer_files(self.directory, producers)
        if self.seals:
            self.directory.sync()


class Durability:
    """The durable part of one log. Offsets exclusive, bytes counted since the log was opened."""

    __slots__ = (
        "_directory",
        "_epochs_dirty_from",
        "_flushed_bytes",
        "_seals",
        "_unsynced",
        "directory_dirty",
        "flushed_end_offset",
        "oldest_dirty_ms",
        "written_bytes",
    )  # fmt: skip

    def __init__(self, directory: Directory, flushed_end_offset: int) -> None:
        self._directory = directory
        self.flushed_end_offset = flushed_end_offset
        self.written_bytes = 0
        self.directory_dirty = False
        self.oldest_dirty_ms: int | None = None
        """When the first append came that no finished sync covers (flush.ms)."""
        self._flushed_bytes = 0
        self._unsynced: list[Segment] = []
        self._seals: list[PendingSeal] = []
        self._epochs_dirty_from: int | None = None

    @property
    def dirty_bytes(self) -> int:
        return self.written_bytes - self._flushed_bytes

    @property
    def recovery_point(self) -> int:
        """Below it recovery may believe the files without looking: durable, epochs included."""
        if self._epochs_dirty_from is None:
            return self.flushed_end_offset
        return min(self.flushed_end_offset, self._epochs_dirty_from)

    @property
    def needs_sync(self) -> bool:
        return self.written_bytes > self._flushed_bytes or self.directory_dirty

    @property
    def rolled_unsynced(self) -> bool:
        """Whether a sealed segment waits for its sync: rolling asks for one in every mode."""
        return bool(self._unsynced)

    @property
    def pending_seals(self) -> list[PendingSeal]:
        return self._seals

    def epoch_began(self, start_offset: int) -> None:
        if self._epochs_dirty_from is None:
            self._epochs_dirty_from = start_offset

    def epochs_saved(self) -> None:
        """The checkpoint file holds the lineage as it is now."""
        self._epochs_dirty_from = None

    def rolled(self, segment: Segment, producers: ProducersAt) -> None:
        """`segment` is sealed; a new file took its place."""
        self.directory_dirty = True
        self._unsynced.append(segment)
        self._seals.append(PendingSeal(segment, producers))

    def owe(self, seals: Iterable[PendingSeal]) -> None:
        """Small files of durable segments that found no space when the log was opened: written as soon as there is."""
        self._seals.extend(seals)

    def begin_sync(self, active: Segment, log_end_offset: int) -> SyncJob | None:
        """None when everything is durable. One job at a time."""
        if not self.needs_sync:
            return None
        self.oldest_dirty_ms = None
        directory = self._directory if self.directory_dirty else None
        self.directory_dirty = False
        files = (*(segment.file for segment in self._unsynced), active.file)
        return SyncJob(
            log_end_offset,
            self.written_bytes,
            files,
            len(self._unsynced),
            directory,
        )

    def finish_sync(self, job: SyncJob) -> None:
        """The job succeeded. Segments that rolled while it ran stay unsynced: it may have seen only part of them."""
        assert job.target >= self.flushed_end_offset, (job, self.flushed_end_offset)
        self.flushed_end_offset = job.target
        self._flushed_bytes = job.written_bytes
        del self._unsynced[: job.rolled]

    def begin_seal(self, epochs: LeaderEpochs) -> SealJob | None:
        """Small files that may be written now; None when there are none. One job at a time."""
        seals = tuple(seal for seal in self._seals if seal.segment not in self._unsynced)
        if not seals and self.recovery_point >= self.flushed_end_offset:
            return None  # an epoch without a durable record is no reason: idle logs cost a stop no syncs
        return SealJob(self._directory, None if self._epochs_dirty_from is None else epochs, seals)

    def finish_seal(self, job: SealJob, epochs: LeaderEpochs) -> None:
        """The job succeeded; `epochs` as they are now, which may have gone on meanwhile."""
        if job.epochs is not None:
            latest = job.epochs.latest
            began = (start for epoch, start in epochs.entries if latest is None or epoch > latest.epoch)
            self._epochs_dirty_from = next(began, None)
        for segment, _ in job.seals:
            if segment is not None:
                segment.release_indexes()
        done = {id(seal) for seal in job.seals}
        self._seals = [seal for seal in self._seals if id(seal) not in done]

    def restart_at(self, flushed_end_offset: int) -> None:
        """After a truncation that was synced: nothing is dirty, nothing waits."""
        self.flushed_end_offset = flushed_end_offset
        self._flushed_bytes = self.written_bytes
        self.directory_dirty = False
        self.oldest_dirty_ms = None
        self._unsynced.clear()
        self._seals.clear()
        self._epochs_dirty_from = None


def write_index_files(segment: Segment) -> None:
    """Blocking. The segment's bytes must be durable. Names are durable after the directory is synced."""
    indexer = segment.indexer
    assert indexer is not None, segment
    directory, offsets, times = segment.directory, segment.name_of(OFFSET_INDEX), segment.name_of(TIME_INDEX)
    # The end of a segment is looked for from the last entry of the offset index on, and no time that lies before it: an
    # offset index of before beside new times costs reading, new offsets beside times of before would hide the greatest.
    if write_whole(directory, times, indexer.time_index.to_bytes()) and directory.stat(offsets) is not None:
        directory.sync()
    write_whole(directory, offsets, indexer.offset_index.to_bytes())


def write_producer_files(directory: Directory, producers: ProducersAt) -> None:
    """Blocking: Kafka's snapshot and ours for one offset, below which everything must be durable already."""
    state = producers.state()
    write_whole(directory, offset_file(producers.end_offset, SNAPSHOT), encode_kafka_snapshot(state.producers))
    write_whole(directory, offset_file(producers.end_offset, PRODUCERS), encode_producer_state(state))


def write_whole(directory: Directory, name: str, data: bytes) -> bool:
    """As seams.disk.replace_in, without its sync of the directory: several files share one. Whether it was written.

    What is there already was synced before it got its name: a log that nobody wrote to costs a clean stop no syncs.
    """
    found = directory.stat(name)
    if found is not None and found.size == len(data) and read_in(directory, name) == data:
        return False
    temporary = name + TEMPORARY
    file = directory.open(temporary, write=True, create=True)
    try:
        if file.size():
            file.truncate(0)
        file.write_at(0, [data])
        file.sync()
    finally:
        file.close()
    directory.rename(temporary, name)
    return True
