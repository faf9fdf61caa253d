"""Opens a log: repairs the effects of a crash, refuses a damaged log, keeps unknown files (Kafka's LogLoader).

- Segments with offsets at or above the recovery point are read completely, with a check of magic, length, CRC and
  offset order.
- The first invalid place at or above the recovery point ends the log: the rest is a torn tail that was never
  acknowledged, and is removed. Zeros are invalid, too.
- All bytes below the recovery point were durable. If a place there is invalid, the log is refused (DamagedLog), because
  truncating there would lose acknowledged records.
- Segments below the recovery point are only measured (`segment_end`): the last batch must end at the file's end and at
  the next segment's base offset. Missing or wrong indexes are rebuilt.
- The recovery point is the greater of two offsets: the checkpoint's, and that of the newest five-batch file (which is
  written after a sync).
- A compaction that a crash interrupted is finished or undone (`segment_swap`).
- Bytes that are not proven durable are written again before the sync. After a failed fsync the kernel marks lost pages
  clean, so a sync alone would not write them (fsyncgate).

A second recovery gives the same log. A refused log is not changed. Recovery needs no free disk space: small files for
which there is no space are written later. All functions block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVarTuple
from uuid import UUID

import msgspec

from hotstore.errors import DamagedLog, ForeignLog, MissingSegments
from hotstore.file_names import LOG, offset_file
from hotstore.flush.durability import (
    PendingSeal,
    sync_transaction_indexes,
    write_index_files,
    write_producer_files,
    write_transaction_index,
)
from hotstore.local_files import (
    DirectoryPlan,
    plan_directory,
    producer_file_offsets,
    remove_files,
    stray_producer_files,
)
from hotstore.log.log_config import LogConfig
from hotstore.log.producer_state import Producers, ProducersAt
from hotstore.log.segment import IndexCache, Segment, create_segment
from hotstore.log.segment_end import date_back, find_end, first_timestamp_ms, resume
from hotstore.recovery.producer_files import (
    find_aborted,
    load_aborted,
    load_producers,
    proven_end,
    replay,
    replay_marker,
)
from hotstore.recovery.recovered_epochs import RecoveredEpochs
from hotstore.recovery.scan import BatchScanner, Damage
from hotstore.recovery.segment_swap import finish_swaps
from hotstore.recovery.truncation import finish_restart, pending_restart, restart_at, truncate
from logformat.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata, encode_partition_metadata
from logformat.errors import Corrupt
from logformat.leader_epochs import LeaderEpochs
from logformat.record_batch import BatchHeader
from logformat.transaction_marker import TransactionMarker
from logformat.values import NewerFormat
from seams.files.disk import Directory, is_full, read_in, replace_in

Ts = TypeVarTuple("Ts")

_HINT: Final = (
    "nothing was changed; restore the segment from the bucket or a replica, or move the directory away to start the "
    "partition without it"
)


class RecoveryReport(msgspec.Struct, frozen=True):
    """Cost of opening a log: bytes read again, bytes truncated from a torn tail, and the damage found there."""

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_reason: str = ""


@dataclass(slots=True)
class Recovered:
    """A usable log, all of it durable. It has at least one segment, and the last segment is active."""

    segments: list[Segment]
    log_start_offset: int
    epochs: LeaderEpochs
    producers: Producers
    report: RecoveryReport = field(default_factory=RecoveryReport)
    unwritten: list[PendingSeal] = field(default_factory=list)
    """Small files without disk space; reads work without them, and the log writes them later."""
    epochs_unsaved: bool = False
    """There was no space for the epoch checkpoint."""


def check_damage(path: str, damage: Damage, recovery_point: int) -> None:
    """Return if the log may end at `damage`. Raises DamagedLog if the log must be refused. Pure."""
    if damage.offset < recovery_point:
        what = f"{damage.what}, although everything below offset {recovery_point} was durable"
        raise DamagedLog(path, damage.position, damage.offset, what, _HINT)


def recover(
    directory: Directory,
    config: LogConfig,
    *,
    recovery_point: int,
    log_start: int | None,
    clean: bool,
    now_ms: int,
    topic_id: bytes | None,
    cache: IndexCache,
    high_watermark: int,
) -> tuple[bytes, Recovered]:
    """Open the log; returns its topic id and the log. Blocking. `high_watermark`: a transaction marker at or above it
    may still be truncated. Raises DamagedLog, NewerFormat, OSError."""
    names = directory.list()
    found_id = _topic_id(directory, topic_id, plan_directory(names).bases)
    restart = pending_restart(names)
    if restart is not None:
        finish_restart(directory, restart, config.index_interval_bytes)
        names = directory.list()
        recovery_point = min(recovery_point, restart)
    elif finish_swaps(directory, names, config.index_interval_bytes):
        names = directory.list()
    plan = plan_directory(names)
    run = _Recovery(directory, config, names, now_ms, cache, high_watermark)
    found = run.open(plan, recovery_point, log_start, clean)
    log_end = found.segments[-1].end_offset
    if found.log_start_offset > log_end:
        if config.waits_for_flush and log_end > found.segments[0].base_offset:
            # DeleteRecords never exceeds the durable end, so the checkpoint is wrong. Following the checkpoint would
            # lose the log. A log without records has nothing to lose: a follower restarted it with a batch that
            # contains the log start, and a power cut removed that batch.
            what = f"the log start checkpoint says {found.log_start_offset}, but the log ends at {log_end}"
            raise DamagedLog(found.segments[-1].file.path, found.segments[-1].size, log_end, what, _HINT)
        # Every record here was deleted and the end was lost: continue at the log start, as Kafka does.
        epochs = found.epochs.truncate_from_start(found.log_start_offset)
        segment = restart_at(directory, found.log_start_offset, epochs, found.producers, config.index_interval_bytes)
        found = Recovered([segment], found.log_start_offset, epochs, found.producers, found.report)
    return found_id, found


def _topic_id(directory: Directory, expected: bytes | None, bases: Sequence[int]) -> bytes:
    """The directory's topic id. The id is written first if a creation was interrupted before there was any data."""
    if directory.stat(PARTITION_METADATA_FILE) is None:
        if expected is None or any(_has_bytes(directory, offset_file(base, LOG)) for base in bases):
            file = f"{directory.path}/{PARTITION_METADATA_FILE}"
            raise DamagedLog(file, 0, 0, "missing", "a log without topic id is not opened; restore the file")
        replace_in(directory, PARTITION_METADATA_FILE, encode_partition_metadata(expected))
        return expected
    found = decode_partition_metadata(read_in(directory, PARTITION_METADATA_FILE))
    if expected is not None and found != expected:
        raise ForeignLog(
            f"{directory.path} belongs to topic id {UUID(bytes=found)}, not to {UUID(bytes=expected)}; "
            "move it away, or wait for its topic's deletion"
        )
    return found


def _has_bytes(directory: Directory, name: str) -> bool:
    found = directory.stat(name)
    return found is not None and found.size > 0


class _Recovery:
    """One opening of one log. `open` decides everything before it changes anything."""

    def __init__(
        self,
        directory: Directory,
        config: LogConfig,
        names: Sequence[str],
        now_ms: int,
        cache: IndexCache,
        high_watermark: int,
    ) -> None:
        self._high_watermark = high_watermark
        self._directory = directory
        self._config = config
        self._names = names
        self._sealed_ends = frozenset(producer_file_offsets(names))
        self._now_ms = now_ms
        self._cache = cache
        self._epochs = RecoveredEpochs(directory, cache)
        self._durable = 0
        self._last_epochs: dict[int, int] = {}
        """The epoch of each trusted segment's last batch, by the segment's base offset."""
        self._producers = Producers(config.producer_id_expiration_ms)
        self._to_index: list[Segment] = []
        self._to_snapshot: list[ProducersAt] = []
        self._rewrites: list[tuple[Segment, int]] = []
        self._scanned_bytes = 0
        self._cut: Damage | None = None
        self._without_aborted: list[Segment] = []
        """Trusted segments whose `.txnindex` may not have been written, or is damaged."""
        self._scanned: Segment | None = None
        self._scanner = BatchScanner(self._on_batch, on_marker=self._on_marker)

    def open(self, plan: DirectoryPlan, recovery_point: int, log_start: int | None, clean: bool) -> Recovered:
        durable = max(recovery_point, proven_end(self._directory, self._names))
        self._durable = durable
        if not plan.bases:
            return self._open_empty(plan, durable, log_start or 0)
        first = plan.bases[0]
        if log_start is not None and first > log_start and not self._config.tiered:
            raise MissingSegments(self._directory.path, log_start, first, _HINT)
        segments = [self._open_file(base) for base in plan.bases]
        # A clean stop needs no scan. Otherwise scan the segment that holds the recovery point and all after it.
        trusted = len(segments) if clean else max(sum(base <= durable for base in plan.bases) - 1, 0)
        for number, segment in enumerate(segments[:trusted]):
            self._measure(segment, plan.bases[number + 1] if number + 1 < len(segments) else None)
        scan_start = segments[-1].end_offset if clean else plan.bases[trusted]
        self._epochs.load(segments[:trusted], self._last_epochs, scan_start, log_start or 0)
        self._producers = load_producers(
            self._directory, self._names, segments, scan_start, self._config.producer_id_expiration_ms,
            self._now_ms, self._cache, self._to_snapshot, self._high_watermark,
        )  # fmt: skip
        for segment in self._without_aborted:
            segment.aborted = find_aborted(self._directory, self._names, segments, segment, self._cache)
        kept = self._scan(segments, trusted, durable)
        log_end = kept[-1].end_offset
        if log_end < durable:
            what = f"the log ends here, although everything below offset {durable} was durable"
            raise DamagedLog(kept[-1].file.path, kept[-1].size, log_end, what, _HINT)
        date_back(kept)
        return self._repair(plan, segments, kept, first if log_start is None else log_start)

    # --- reading ------------------------------------------------------------------------------------------------

    def _open_file(self, base: int) -> Segment:
        file = self._directory.open(offset_file(base, LOG), write=True)
        return Segment(self._directory, base, file, self._config.index_interval_bytes)

    def _open_empty(self, plan: DirectoryPlan, durable: int, log_start: int) -> Recovered:
        """A directory without segments: an interrupted creation, or a lost log."""
        if durable > log_start:
            what = f"all segments are missing; {durable} offsets were durable"
            raise DamagedLog(self._directory.path, 0, log_start, what, _HINT)
        segment = create_segment(self._directory, log_start, self._config.index_interval_bytes)
        self._directory.sync()
        remove_files(self._directory, plan.leftovers)
        return Recovered([segment], log_start, LeaderEpochs(), self._producers)

    def _measure(self, segment: Segment, following: int | None) -> None:
        """Find the end of a trusted segment; `following`: the base offset of the next segment."""
        segment.size = segment.file.size()
        if segment.size:
            segment.first_append_ms = first_timestamp_ms(segment, self._now_ms)
            last, scanned_bytes, damage = find_end(segment, is_last=following is None)
            if last is None:
                assert damage is not None
                what = f"{damage.what}, in a segment that was durable"
                raise DamagedLog(segment.file.path, damage.position, damage.offset, what, _HINT)
            self._scanned_bytes += scanned_bytes
            if scanned_bytes and following is not None:
                self._to_index.append(segment)
            self._last_epochs[segment.base_offset] = last.leader_epoch
            self._load_aborted(segment, following)
        if following is None:
            if segment.indexer is None:
                resume(segment)
            return
        # Producer files are written after the trim. If they are missing, the process may have been killed before the
        # trim.
        segment.has_preallocated = following not in self._sealed_ends
        if segment.end_offset != following:
            what = f"segment ends here, the next one begins at offset {following}"
            raise DamagedLog(segment.file.path, segment.size, segment.end_offset, what, _HINT)

    def _load_aborted(self, segment: Segment, following: int | None) -> None:
        """Load the segment's `.txnindex`. A clean stop, or a producer file at the segment's end, proves that the index
        exists if the segment has aborted transactions. Without this proof the index is made from the batches later."""
        if following is not None and following not in self._sealed_ends:
            self._without_aborted.append(segment)
            return
        try:
            segment.aborted = load_aborted(segment, self._cache)
        except NewerFormat:
            raise
        except Corrupt:
            self._without_aborted.append(segment)

    def _scan(self, segments: Sequence[Segment], trusted: int, durable: int) -> Sequence[Segment]:
        """Read the segments from number `trusted` on; returns the segments that stay. Raises DamagedLog if a truncation
        would lose data."""
        end = segments[trusted].base_offset if trusted < len(segments) else 0
        for number in range(trusted, len(segments)):
            segment = segments[number]
            if segment.base_offset != end:
                before = segments[number - 1]
                self._cut = Damage(before.size, end, f"the next segment begins at offset {segment.base_offset}")
                check_damage(before.file.path, self._cut, durable)
                return segments[:number]
            if number > trusted:
                self._to_index.append(segments[number - 1])
                self._to_snapshot.append(self._producers.at(end))
            self._scanned, segment.aborted = segment, None
            scanned = self._scanner.scan(segment, segment.file.size(), durable)
            segment.indexer, segment.size, segment.end_offset = scanned.indexer, scanned.size, scanned.end_offset
            segment.has_preallocated = True  # possible, because it was active at the kill
            if segment.size:
                first = scanned.first_timestamp_ms
                segment.first_append_ms = first if 0 <= first <= self._now_ms else self._now_ms
            self._scanned_bytes += scanned.size
            self._rewrites.append((segment, scanned.rewrite_from))
            end = scanned.end_offset
            if scanned.damage is not None:
                check_damage(segment.file.path, scanned.damage, durable)
                self._cut = scanned.damage
                return segments[: number + 1]
        return segments

    def _on_batch(self, header: BatchHeader) -> None:
        self._epochs.read(header, self._durable)
        if header.producer_id >= 0:
            replay(self._producers, header, self._now_ms)

    def _on_marker(self, header: BatchHeader, marker: TransactionMarker) -> None:
        aborted = replay_marker(self._producers, header, marker, self._now_ms)
        if aborted is not None:
            assert self._scanned is not None
            self._scanned.add_aborted(aborted)

    # --- changing -----------------------------------------------------------------------------------------------

    def _repair(
        self, plan: DirectoryPlan, segments: Sequence[Segment], kept: Sequence[Segment], log_start: int
    ) -> Recovered:
        """Change the files as decided, and make the remaining bytes durable."""
        lost_bytes = 0
        if self._cut is not None:
            lost_bytes = sum(segment.file.size() for segment in segments[len(kept) - 1 :]) - kept[-1].size
            truncate(self._directory, segments, len(kept))
        for segment in kept:
            segment.trim()
        for segment, rewrite_from in self._rewrites:
            if segment in kept:
                self._scanner.rewrite(segment, rewrite_from, segment.size)
                segment.file.sync()
        active = kept[-1]
        epochs = self._epochs.through(active.end_offset).truncate_from_start(log_start)
        self._remove_strays(plan, [segment.base_offset for segment in kept], active.end_offset)
        found = Recovered(
            list(kept),
            log_start,
            epochs,
            self._producers,
            RecoveryReport(self._scanned_bytes, lost_bytes, "" if self._cut is None else self._cut.what),
        )
        found.epochs_unsaved = not _fits(self._epochs.save, epochs)
        for segment in self._to_index:
            if segment is not active:
                assert segment.indexer is not None
                segment.indexer.seal()
                if _fits(write_index_files, segment):
                    segment.release_indexes()
                else:
                    found.unwritten.append(PendingSeal(segment, None))
        # Transaction indexes are written before the producer files at the segments' ends, because a producer file
        # proves that the transaction index exists.
        for segment in self._without_aborted:
            if not _fits(write_transaction_index, segment):
                found.unwritten.append(PendingSeal(segment, None))
        sync_transaction_indexes(self._directory, (*self._to_index, *self._without_aborted))
        for producers in self._to_snapshot:
            if found.unwritten or not _fits(write_producer_files, self._directory, producers):
                found.unwritten.append(PendingSeal(None, producers))
        self._directory.sync()
        return found

    def _remove_strays(self, plan: DirectoryPlan, bases: Sequence[int], log_end: int) -> None:
        names = self._directory.list()
        leftovers = [name for name in plan.leftovers if name in names]
        remove_files(self._directory, [*leftovers, *stray_producer_files(names, bases, log_end)])


def _fits(write: Callable[[*Ts], None], *args: *Ts) -> bool:
    """Write files that can be rebuilt. Returns False if the disk is full, because a full disk must not prevent
    reads."""
    try:
        write(*args)
    except OSError as error:
        if not is_full(error):
            raise
        return False
    return True
