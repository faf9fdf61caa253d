"""A log's flushed end and recovery point, and the sync and seal jobs that raise them.

`begin_*` makes a job from the current state, the job runs off the loop, `finish_*` records its success. The flushed end
moves only to a log end that was sampled before the sync began. Before it moves, older files and the directory are
synced too. The recovery point never exceeds the start of an epoch that is not in the checkpoint file. The index and
producer files of a sealed segment are written after its bytes are durable, so their existence proves that the bytes are
durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from hotstore.file_names import (
    EPOCHS_FILE,
    OFFSET_INDEX,
    PRODUCERS,
    SNAPSHOT,
    TEMPORARY,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
)
from hotstore.log.producer_state import ProducersAt
from hotstore.log.segment import Segment
from logformat.indexes.transaction_index import encode_aborted
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import encode_kafka_snapshot, encode_producer_state
from seams import crash_points
from seams.files.disk import Directory, File, read_in, replace_in


class SyncJob(NamedTuple):
    """One fdatasync of a log: the rolled files, the active file, then the directory if it has new names."""

    target: int
    """Log end when the job was made: durable when it succeeds."""
    written_bytes: int
    files: tuple[File, ...]
    rolled: int
    directory: Directory | None
    """The directory if it has new names."""

    def run(self) -> None:
        """Sync the files and the directory. Blocking. After an OSError nothing may be assumed durable (C10)."""
        for file in self.files:
            file.sync()
        self.sync_names()
        crash_points.reach("flush.synced")

    def sync_names(self) -> None:
        """Sync the directory, after the files were synced. Blocking. Raises OSError."""
        if self.directory is not None:
            self.directory.sync()


class PendingSeal(NamedTuple):
    """Small files that have to be written: the indexes of a rolled segment, and the producers at a roll point."""

    segment: Segment | None
    producers: ProducersAt | None


class SealJob(NamedTuple):
    """Writes small files of sealed, synced segments, and the epoch checkpoint if it changed. All of them can be
    rebuilt."""

    directory: Directory
    epochs: LeaderEpochs | None
    seals: tuple[PendingSeal, ...]

    def run(self) -> None:
        """Write the files. Blocking. After an OSError the job may run again."""
        if self.epochs is not None:
            replace_in(self.directory, EPOCHS_FILE, self.epochs.to_bytes())
        segments = [segment for segment, _ in self.seals if segment is not None]
        for segment in segments:
            segment.trim()
            if segment.indexer is not None:
                write_index_files(segment)
            else:  # only the transaction index is missing after a recovery
                write_transaction_index(segment)
        sync_transaction_indexes(self.directory, segments)
        for _, producers in self.seals:
            if producers is not None:
                write_producer_files(self.directory, producers)
        if self.seals:
            self.directory.sync()


@dataclass(slots=True, eq=False)
class Durability:
    """The durability of one log. End offsets are exclusive. Bytes count from the opening of the log."""

    directory: Directory
    flushed_end_offset: int
    written_bytes: int = 0
    directory_dirty: bool = False
    oldest_dirty_ms: int | None = None
    """Time of the first append that no finished sync covers (flush.ms)."""
    pending_seals: list[PendingSeal] = field(default_factory=list)
    _flushed_bytes: int = 0
    _unsynced: list[Segment] = field(default_factory=list)
    _epochs_dirty_from: int | None = None

    @property
    def dirty_bytes(self) -> int:
        return self.written_bytes - self._flushed_bytes

    @property
    def recovery_point(self) -> int:
        """All records and epochs below it are durable, so recovery does not read them."""
        if self._epochs_dirty_from is None:
            return self.flushed_end_offset
        return min(self.flushed_end_offset, self._epochs_dirty_from)

    @property
    def needs_sync(self) -> bool:
        return self.written_bytes > self._flushed_bytes or self.directory_dirty

    @property
    def rolled_unsynced(self) -> bool:
        """Whether a sealed segment waits for its sync. A roll requests a sync in every mode."""
        return bool(self._unsynced)

    def epoch_began(self, start_offset: int) -> None:
        if self._epochs_dirty_from is None:
            self._epochs_dirty_from = start_offset

    def epochs_saved(self) -> None:
        self._epochs_dirty_from = None

    def rolled(self, segment: Segment, producers: ProducersAt) -> None:
        """`segment` was sealed, and a new active segment follows it."""
        self.directory_dirty = True
        self._unsynced.append(segment)
        self.pending_seals.append(PendingSeal(segment, producers))

    def add_seals(self, seals: Iterable[PendingSeal]) -> None:
        """Add small files of durable segments for which the disk had no space when the log was opened. A later seal job
        writes them.
        """
        self.pending_seals.extend(seals)

    def begin_sync(self, active: Segment, log_end_offset: int) -> SyncJob | None:
        """Make a sync job of the current state; None if everything is durable. Only one job exists at a time."""
        if not self.needs_sync:
            return None
        self.oldest_dirty_ms = None
        directory = self.directory if self.directory_dirty else None
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
        """The job succeeded. Segments that rolled while it ran stay unsynced: the job may have synced only a part of
        them."""
        assert job.target >= self.flushed_end_offset, (job, self.flushed_end_offset)
        self.flushed_end_offset = job.target
        self._flushed_bytes = job.written_bytes
        del self._unsynced[: job.rolled]

    def begin_seal(self, epochs: LeaderEpochs) -> SealJob | None:
        """Make a job for the small files that may be written now; None if there are none. Only one job exists at a
        time."""
        seals = tuple(seal for seal in self.pending_seals if seal.segment not in self._unsynced)
        if not seals and self.recovery_point >= self.flushed_end_offset:
            return None  # a new epoch without a durable record needs no job, so the stop of an idle log costs no syncs
        return SealJob(self.directory, None if self._epochs_dirty_from is None else epochs, seals)

    def finish_seal(self, job: SealJob, epochs: LeaderEpochs) -> None:
        """The job succeeded. `epochs`: the current epochs, which may be newer than those of the job."""
        if job.epochs is not None:
            latest = job.epochs.latest
            began = (start for epoch, start in epochs.entries if latest is None or epoch > latest.epoch)
            self._epochs_dirty_from = next(began, None)
        for segment, _ in job.seals:
            if segment is not None:
                segment.release_indexes()
        done = {id(seal) for seal in job.seals}
        self.pending_seals = [seal for seal in self.pending_seals if id(seal) not in done]

    def restart_at(self, flushed_end_offset: int) -> None:
        """Set the state after a synced truncation: no bytes are dirty."""
        self.flushed_end_offset = flushed_end_offset
        self._flushed_bytes = self.written_bytes
        self.directory_dirty = False
        self.oldest_dirty_ms = None
        self._unsynced.clear()
        self.pending_seals.clear()
        self._epochs_dirty_from = None


def write_index_files(segment: Segment) -> None:
    """Write the index files of a segment whose bytes are durable. Blocking. The names are durable after the directory
    is synced."""
    indexer = segment.indexer
    assert indexer is not None, segment
    directory, offsets, times = segment.directory, segment.name_of(OFFSET_INDEX), segment.name_of(TIME_INDEX)
    # Recovery reads the segment from the last entry of the offset index on, and takes earlier timestamps from the time
    # index. An old offset index with a new time index only makes recovery read more. A new offset index with an old
    # time index would hide the greatest timestamp. An earlier seal may have failed after it wrote the time index.
    write_whole(directory, times, indexer.time_index.to_bytes())
    data = indexer.offset_index.to_bytes()
    if directory.stat(offsets) is not None and not _has(directory, offsets, data):
        directory.sync()
    write_whole(directory, offsets, data)
    write_transaction_index(segment)


def write_transaction_index(segment: Segment) -> None:
    """Write the `.txnindex` of a segment with aborted transactions. Blocking. Its name is durable
    (`sync_transaction_indexes`) before the producer file of the segment's end is written. That file thus proves that
    the index was written or is not needed."""
    directory, name = segment.directory, segment.name_of(TRANSACTION_INDEX)
    if segment.aborted is not None:
        write_whole(directory, name, encode_aborted(segment.aborted))
    elif directory.stat(name) is not None:
        directory.unlink(name)


def sync_transaction_indexes(directory: Directory, segments: Iterable[Segment]) -> None:
    """Make the names of these segments' transaction indexes durable. Otherwise a power cut could keep the name of a
    producer file and lose that of an index. Blocking. Costs nothing without aborted transactions."""
    if any(segment.aborted is not None for segment in segments):
        directory.sync()


def write_producer_files(directory: Directory, producers: ProducersAt) -> None:
    """Write this program's producer file and Kafka's snapshot for one offset. Everything below the offset must be
    durable. Blocking.

    Kafka's file is written second, because it has only one batch per producer. After a kill or a full disk between the
    two writes it must not be the only file.
    """
    state = producers.state()
    write_whole(directory, offset_file(producers.end_offset, PRODUCERS), encode_producer_state(state))
    write_whole(directory, offset_file(producers.end_offset, SNAPSHOT), encode_kafka_snapshot(state.producers))


def write_whole(directory: Directory, name: str, data: bytes) -> None:
    """Replace a file like `seams.files.disk.replace_in`, but without the directory sync, which several files share.
    Blocking.

    A file that has these bytes already is skipped, because it was synced before it got its name. A clean stop of an
    idle log thus costs no syncs."""
    if _has(directory, name, data):
        return
    temporary = name + TEMPORARY
    with closing(directory.open(temporary, write=True, create=True)) as file:
        if file.size():
            file.truncate(0)
        file.write_at(0, [data])
        file.sync()
    directory.rename(temporary, name)


def _has(directory: Directory, name: str, data: bytes) -> bool:
    found = directory.stat(name)
    return found is not None and found.size == len(data) and read_in(directory, name) == data
