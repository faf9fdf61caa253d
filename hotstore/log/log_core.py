"""The state of one log that appends (`log_append`), truncation (`log_cut`) and reads (`partition_log`) share.

It also has their common operations: roll to a new segment, enter an epoch, fail. `log_start ≤ local_log_start ≤
log_end` and `flushed_end ≤ log_end`. An empty active segment begins at the log's end. A FAILED log stays failed until
it is opened again.
"""

from __future__ import annotations

from enum import Enum

from hotstore.errors import LeaderEpochFenced, LogFailed, LogFull
from hotstore.file_names import EPOCHS_FILE
from hotstore.flush.durability import Durability
from hotstore.host.ballast import Ballast
from hotstore.host.log_owner import UNOWNED, LogOwner
from hotstore.log.appender import index_room_bytes
from hotstore.log.locator import Locator
from hotstore.log.log_config import LogConfig
from hotstore.log.segment import IndexCache, Segment, create_segment
from hotstore.recovery.producer_files import read_producers_at
from hotstore.recovery.recovery import Recovered, RecoveryReport
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerState
from logformat.record_batch import INT64_MAX
from seams import crash_points
from seams.files.disk import Directory, is_full, replace_in


class LogState(Enum):
    ONLINE = "online"
    FULL = "full"  # the disk is full: reads continue, and each append tries again
    FAILED = "failed"  # a write or sync failed: offline until the log is opened again


class LogCore:
    """The base of `PartitionLog`."""

    epochs: LeaderEpochs
    leader_epoch: int
    """The latest known epoch, with or without a record; −1: none."""

    def __init__(
        self,
        directory: Directory,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        cache: IndexCache,
        found: Recovered,
        ballast: Ballast,
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.ballast = ballast
        """The ballast; while its file is deleted, nothing is appended."""
        self.state = LogState.ONLINE
        self.reserved_end: int = INT64_MAX
        """End of the offsets that may be assigned; set from outside (design 6, reservation)."""
        self.log_start_offset = found.log_start_offset
        self.pending_start_offset = 0
        """The log start while it becomes durable: every checkpoint names it, no reader sees it yet."""
        self.owner: LogOwner = UNOWNED
        """The current role; its methods are called for events."""
        self.log_end_offset = found.segments[-1].end_offset
        self.producers = found.producers
        self.recovery: RecoveryReport = found.report
        self._locator = Locator(found.segments, cache)
        self._active = found.segments[-1]
        self._sealed_bytes = sum(segment.size for segment in found.segments[:-1])
        self.durability = Durability(directory, self.log_end_offset)
        self.durability.add_seals(found.unwritten)
        if found.epochs_unsaved:
            self.durability.epoch_began(found.segments[0].base_offset)
        self.failure = ""  # the reason why the log is FAILED
        self.era = 0
        """Grows with each truncation and each restart at another offset; values read in an earlier era are invalid."""
        self._leaving: list[int] = []  # bases of dropped segments whose files are not unlinked yet, oldest first
        self._set_epochs(found.epochs)
        self.reconfigure(config)

    def reconfigure(self, config: LogConfig) -> None:
        """Apply another configuration from the next append on."""
        self.config = config
        self.producers.expiration_ms = config.producer_id_expiration_ms
        self._index_room_bytes = index_room_bytes(config)

    @property
    def path(self) -> str:
        """Path of the log's directory, for messages."""
        return self.directory.path

    # --- offsets and sizes --------------------------------------------------------------------------------------

    @property
    def local_log_start_offset(self) -> int:
        return max(self.log_start_offset, self._locator.segments[0].base_offset)

    @property
    def flushed_end_offset(self) -> int:
        """Records below this offset survive a power cut."""
        return self.durability.flushed_end_offset

    @property
    def stable_end_offset(self) -> int:
        """End of the records that may become visible and be acknowledged with acks=all. It is the flushed end; in `os`
        mode it is the log end."""
        return self.durability.flushed_end_offset if self.config.waits_for_flush else self.log_end_offset

    @property
    def recovery_point(self) -> int:
        """The recovery point for the checkpoint. Recovery does not read below it."""
        return self.durability.recovery_point

    @property
    def dirty_bytes(self) -> int:
        """Bytes appended and not yet synced."""
        return self.durability.dirty_bytes

    @property
    def local_bytes(self) -> int:
        return self._sealed_bytes + self._active.size

    @property
    def active_segment(self) -> Segment:
        """The active segment, for the flusher."""
        return self._active

    @property
    def has_sealing(self) -> bool:
        """Whether small files of a sealed segment, or epochs, have to be written."""
        durability = self.durability
        return bool(durability.pending_seals) or durability.recovery_point < durability.flushed_end_offset

    # --- epochs ---------------------------------------------------------------------------------------------------

    def _enter_epoch(self, leader_epoch: int, start_offset: int) -> None:
        """Begin `leader_epoch` at `start_offset`: at the log's end, or at a batch that was just written."""
        self.leader_epoch = leader_epoch
        self.epochs = self.epochs.assign(leader_epoch, start_offset)
        self.durability.epoch_began(start_offset)

    def _set_epochs(self, epochs: LeaderEpochs) -> None:
        self.epochs = epochs
        latest = epochs.latest
        self.leader_epoch = -1 if latest is None else latest.epoch

    def _save_epochs(self) -> None:
        """*Blocking*: write the epoch checkpoint."""
        replace_in(self.directory, EPOCHS_FILE, self.epochs.to_bytes())
        self.durability.epochs_saved()

    def _superseded(self, leader_epoch: int) -> LeaderEpochFenced:
        name = f"{self.topic}-{self.partition}"
        return LeaderEpochFenced(f"{name}: epoch {leader_epoch} superseded by {self.leader_epoch}")

    # --- failing --------------------------------------------------------------------------------------------------

    def _write_failed(self, error: OSError) -> LogFull | LogFailed:
        """Truncate the partial bytes of a failed write, and return the error to raise."""
        self.ballast.preallocation.drop(self._active)
        try:
            self._active.file.truncate(self._active.size)
        except OSError as second:
            return self.fail(second)
        if not is_full(error):
            return self.fail(error)
        self.ballast.met_full = True
        return self._full(error)

    def _full(self, error: OSError) -> LogFull:
        self.state = LogState.FULL
        name = f"{self.topic}-{self.partition}"
        return LogFull(f"{name}: {error}; free space below {self.path}, appends resume by themselves")

    def fail(self, error: OSError) -> LogFailed:
        """Take the log offline after a failed sync or write (C10). Returns the error to raise."""
        self.state = LogState.FAILED
        self.failure = f"{self.topic}-{self.partition} is offline after {error}; check the disk, then restart"
        return LogFailed(self.failure)

    def _offline(self) -> LogFailed:
        return LogFailed(self.failure)

    # --- segments -----------------------------------------------------------------------------------------------

    def roll(self) -> bool:
        """Seal the active segment, unless it is empty. Returns whether it was sealed. Raises LogFull, LogFailed."""
        if self.state is LogState.FAILED:
            raise self._offline()
        if self._active.size == 0:
            return False
        self._roll()
        return True

    def _roll(self) -> None:
        old = self._active
        assert old.size > 0, "an empty segment is not rolled: it begins at the log's end"
        try:
            new = create_segment(self.directory, self.log_end_offset, self.config.index_interval_bytes)
        except OSError as error:
            raise self._write_failed(error) from error
        crash_points.reach("roll.created")
        self.ballast.preallocation.drop(old)
        assert old.indexer is not None
        old.indexer.seal()
        self._sealed_bytes += old.size
        self.durability.rolled(old, self.producers.at(self.log_end_offset))
        self._locator.add(new)
        self._active = new

    def producer_snapshot_at(self, offset: int) -> ProducerState | None:
        """*Blocking*: the producers at a roll point; None if there is no snapshot of that offset."""
        for seal in self.durability.pending_seals:
            if seal.producers is not None and seal.producers.end_offset == offset:
                return seal.producers.state()
        return read_producers_at(self.directory, offset)

    def _sync_all(self) -> None:
        durability = self.durability
        sync = durability.begin_sync(self._active, self.log_end_offset)
        if sync is not None:
            sync.run()
            durability.finish_sync(sync)
        seal = durability.begin_seal(self.epochs)
        if seal is not None:
            seal.run()
            durability.finish_seal(seal, self.epochs)
