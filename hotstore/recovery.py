"""Opening a log: what a crash may have left is put right, what is damaged is refused, what is not understood stays.

Rules (Kafka's LogLoader, and ours). Segments that hold offsets at or above the recovery point are read
whole: magic, length, CRC, offsets in order. The first invalid place is the end of the log *if* it lies at or above the
recovery point; the rest of that file and later segments are a torn tail that nobody was promised, and go. Below it
bytes were durable once: the log is refused (DamagedLog), because cutting there would lose acknowledged records. Zeros
are invalid like anything else, never "the end". Sealed segments below are only measured: their last batch must end at
the file's end and at the next segment's base; indexes that are missing or wrong are built again.
The recovery point is the greater of the checkpoint's and what a five-batch file proves (it is written after a sync).
What cannot be proven durable is written again before it is synced: after a failed fsync the kernel calls lost pages
clean, so a sync alone would bless them (fsyncgate).
Always true: recovering twice gives the same log; nothing is changed before a refusal; no free byte is needed (small
files that cannot be written are owed). All functions block.
Must not know: the bucket (a log that opens behind the remote end is restarted there by tiering).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVarTuple
from uuid import UUID

from hotstore.batch_walk import walk_headers
from hotstore.durability import PendingSeal, write_index_files, write_producer_files
from hotstore.errors import DamagedLog, ForeignLog, MissingSegments
from hotstore.file_names import (
    EPOCHS_FILE,
    LOG,
    OFFSET_INDEX,
    PRODUCERS,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    is_leftover,
    is_swap,
    offset_file,
    parse_offset_file,
)
from hotstore.local_files import producer_file_offsets, remove_files
from hotstore.log_config import LogConfig
from hotstore.producer_files import load_producers, proven_end, replay
from hotstore.producer_state import Producers, ProducersAt
from hotstore.restart import finish_restart, pending_restart, restart_at, truncate
from hotstore.scan import Damage, SegmentScanner
from hotstore.segment import IndexCache, Segment, build_indexer, create_segment, load_indexes
from logformat.checkpoints import PARTITION_METADATA_FILE, decode_partition_metadata, encode_partition_metadata
from logformat.errors import Corrupt
from logformat.leader_epochs import EpochStart, LeaderEpochs
from logformat.record_batch import HEADER_SIZE, INT64_MAX, BatchHeader, CorruptBatch, check_stored, read_header
from logformat.segment_index import SegmentIndexer
from logformat.time_index import TimestampOffset
from logformat.values import NewerFormat
from seams.disk import Disk, is_full, read_file, replace_file

Ts = TypeVarTuple("Ts")

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_HINT: Final = (
    "nothing was changed; restore the segment from the bucket or a replica, or move the directory away to start the "
    "partition without it"
)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening a log cost: bytes read again, and bytes cut off a torn end, with what was found there."""

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    truncated_reason: str = ""


@dataclass(slots=True)
class Recovered:
    """A log that may be used: at least one segment, the last one active; everything in it is durable."""

    segments: list[Segment]
    log_start_offset: int
    epochs: LeaderEpochs
    producers: Producers
    report: RecoveryReport = field(default_factory=RecoveryReport)
    unwritten: list[PendingSeal] = field(default_factory=list)
    """Small files that found no space: reads do without, and the log writes them when there is some."""
    epochs_unsaved: bool = False
    """The epoch checkpoint found no space, either."""


class DirectoryPlan(NamedTuple):
    """What the names in a log's directory mean. Any other name is left alone."""

    bases: list[int]
    leftovers: list[str]


def plan_directory(path: str, names: Sequence[str]) -> DirectoryPlan:
    """Pure. Leftovers: interrupted writes and deletes, and index files without a log. Raises DamagedLog for `.swap`."""
    swaps = [name for name in names if is_swap(name)]
    if swaps:
        raise DamagedLog(
            f"{path}/{swaps[0]}",
            0,
            0,
            "Kafka was compacting this log",
            "start and stop Kafka on it once, then come back",
        )
    places = {name: place for name in names if (place := parse_offset_file(name)) is not None}
    bases = sorted(offset for offset, suffix in places.values() if suffix == LOG)
    orphans = [n for n, (offset, suffix) in places.items() if suffix in SEGMENT_SUFFIXES and offset not in bases]
    return DirectoryPlan(bases, [*(name for name in names if is_leftover(name)), *orphans])


def judge(path: str, damage: Damage, recovery_point: int) -> None:
    """Pure: returns when the log may end at `damage`, raises DamagedLog when it must be refused."""
    if damage.offset < recovery_point:
        what = f"{damage.what}, although everything below offset {recovery_point} was durable"
        raise DamagedLog(path, damage.position, damage.offset, what, _HINT)


def recover(
    disk: Disk,
    path: str,
    config: LogConfig,
    *,
    recovery_point: int,
    log_start: int | None,
    clean: bool,
    now_ms: int,
    topic_id: bytes | None,
    cache: IndexCache,
) -> tuple[bytes, Recovered]:
    """Blocking: (topic id, the log), see the module. Raises DamagedLog, NewerFormat, OSError."""
    names = disk.list_dir(path)
    plan = plan_directory(path, names)
    found_id = _topic_id(disk, path, topic_id, bool(plan.bases))
    restart = pending_restart(names)
    if restart is not None:
        finish_restart(disk, path, restart, config.index_interval_bytes)
        names = disk.list_dir(path)
        plan = plan_directory(path, names)
        recovery_point = min(recovery_point, restart)
    run = _Recovery(disk, path, config, names, now_ms, cache)
    found = run.open(plan, recovery_point, log_start, clean)
    log_end = found.segments[-1].end_offset
    if found.log_start_offset > log_end:
        if config.waits_for_flush:
            # Deleting records never passed what was durable: the checkpoint is wrong, and obeying it loses the log.
            what = f"the log start checkpoint says {found.log_start_offset}, the log ends at {log_end}"
            raise DamagedLog(found.segments[-1].file.path, found.segments[-1].size, log_end, what, _HINT)
        # Every record here was deleted, and the end was lost: go on where offsets were promised to (Kafka too).
        epochs = found.epochs.truncate_from_start(found.log_start_offset)
        segment = restart_at(disk, path, found.log_start_offset, epochs, found.producers, config.index_interval_bytes)
        found = Recovered([segment], found.log_start_offset, epochs, found.producers, found.report)
    return found_id, found


def _topic_id(disk: Disk, path: str, expected: bytes | None, has_segments: bool) -> bytes:
    """The directory's topic id; written where a creation was interrupted before there was any data."""
    file = f"{path}/{PARTITION_METADATA_FILE}"
    if disk.stat(file) is None:
        if expected is None or has_segments:
            raise DamagedLog(file, 0, 0, "missing", "a log without topic id is not opened; restore the file")
        replace_file(disk, file, encode_partition_metadata(expected))
        return expected
    found = decode_partition_metadata(read_file(disk, file))
    if expected is not None and found != expected:
        raise ForeignLog(f"{path} belongs to topic id {UUID(bytes=found)}, not to {UUID(bytes=expected)}; move it away")
    return found


class _Recovery:
    """One opening of one log: the state its steps share. `open` decides everything before it changes anything."""

    def __init__(
        self, disk: Disk, path: str, config: LogConfig, names: Sequence[str], now_ms: int, cache: IndexCache
    ) -> None:
        self._disk = disk
        self._path = path
        self._config = config
        self._names = names
        self._now_ms = now_ms
        self._cache = cache
        self._epochs = LeaderEpochs()
        self._epoch = -1
        self._durable = 0
        self._checkpointed: EpochStart | None = None
        """The checkpoint's latest epoch: it was written before the recovery point passed a later one."""
        self._last_epochs: dict[int, int] = {}
        """By base offset of a trusted segment: the epoch of its last batch."""
        self._producers = Producers(config.producer_id_expiration_ms)
        self._to_index: list[Segment] = []
        self._to_snapshot: list[ProducersAt] = []
        self._rewrites: list[tuple[Segment, int]] = []
        self._scanned_bytes = 0
        self._cut: Damage | None = None
        self._scanner = SegmentScanner(self._on_batch)

    def open(self, plan: DirectoryPlan, recovery_point: int, log_start: int | None, clean: bool) -> Recovered:
        durable = max(recovery_point, proven_end(self._disk, self._path, self._names))
        self._durable = durable
        if not plan.bases:
            return self._open_empty(plan, durable, log_start or 0)
        first = plan.bases[0]
        if log_start is not None and first > log_start and not self._config.tiered:
            raise MissingSegments(self._path, log_start, first, _HINT)
        segments = [self._open_file(base) for base in plan.bases]
        # After a clean stop nothing is scanned. Otherwise the segment that holds the recovery point, and all after it.
        trusted = len(segments) if clean else max(sum(base <= durable for base in plan.bases) - 1, 0)
        for number, segment in enumerate(segments[:trusted]):
            self._measure(segment, plan.bases[number + 1] if number + 1 < len(segments) else None)
        scan_start = segments[-1].end_offset if clean else plan.bases[trusted]
        loaded = self._load_epochs(segments[:trusted], scan_start, log_start or 0)
        self._epochs = loaded
        self._epoch = -1 if loaded.latest is None else loaded.latest.epoch
        self._producers = load_producers(
            self._disk, self._path, self._names, segments, scan_start, self._config.producer_id_expiration_ms,
            self._now_ms, self._cache, self._to_snapshot,
        )  # fmt: skip
        kept = self._scan(segments, trusted, durable)
        log_end = kept[-1].end_offset
        if log_end < durable:
            what = f"the log ends here, although everything below offset {durable} was durable"
            raise DamagedLog(kept[-1].file.path, kept[-1].size, log_end, what, _HINT)
        return self._repair(plan, segments, kept, first if log_start is None else log_start)

    # --- reading ------------------------------------------------------------------------------------------------

    def _open_file(self, base: int) -> Segment:
        file = self._disk.open(f"{self._path}/{offset_file(base, LOG)}", write=True)
        return Segment(self._disk, self._path, base, file, self._config.index_interval_bytes)

    def _open_empty(self, plan: DirectoryPlan, durable: int, log_start: int) -> Recovered:
        """A directory without segments: a creation that was interrupted, or a log that is gone."""
        if durable > log_start:
            raise DamagedLog(
                self._path, 0, log_start, f"all segments are missing; {durable} offsets were durable", _HINT
            )
        segment = create_segment(self._disk, self._path, log_start, self._config.index_interval_bytes)
        self._disk.sync_dir(self._path)
        remove_files(self._disk, self._path, plan.leftovers)
        return Recovered([segment], log_start, LeaderEpochs(), self._producers)

    def _measure(self, segment: Segment, following: int | None) -> None:
        """Find the end of a segment whose bytes are trusted: by its indexes if they tell the truth, else by reading."""
        segment.size = segment.file.size()
        if segment.size:
            segment.first_append_ms = self._first_timestamp(segment)
            last = _measure_by_index(segment, is_last=following is None)
            if last is None:
                headers: deque[BatchHeader] = deque(maxlen=1)
                scanned = SegmentScanner(headers.append).scan(segment, segment.size, INT64_MAX)
                if scanned.damage is not None:
                    judge(segment.file.path, scanned.damage, INT64_MAX)
                last = headers[0]
                self._scanned_bytes += scanned.size
                segment.indexer = scanned.indexer
                segment.end_offset = scanned.end_offset
                if following is not None:
                    self._to_index.append(segment)
            else:
                segment.trusted_bytes = segment.size
            self._last_epochs[segment.base_offset] = last.leader_epoch
        if following is None:
            if segment.indexer is None:
                self._resume(segment)
        elif segment.end_offset != following:
            what = f"segment ends here, the next one begins at offset {following}"
            raise DamagedLog(segment.file.path, segment.size, segment.end_offset, what, _HINT)

    def _first_timestamp(self, segment: Segment) -> int:
        """Stands in for the time of the first append, which no file holds; never later than now."""
        data = segment.file.read_at(0, HEADER_SIZE)
        timestamp = read_header(data).max_timestamp if len(data) == HEADER_SIZE else -1
        return timestamp if 0 <= timestamp <= self._now_ms else self._now_ms

    def _resume(self, segment: Segment) -> None:
        """The active segment after a clean stop goes on with its indexes."""
        try:
            offsets, times = load_indexes(segment)
            segment.indexer = SegmentIndexer.resume(offsets, times, segment.size, segment.interval_bytes)
        except Corrupt:
            segment.indexer = build_indexer(segment)

    def _load_epochs(self, trusted: Sequence[Segment], scan_start: int, log_start: int) -> LeaderEpochs:
        """The checkpoint up to `scan_start` where it agrees with the batches, else what the batches say. It need not
        know what lies below the log start."""
        loaded = LeaderEpochs()
        try:
            loaded = LeaderEpochs.from_bytes(read_file(self._disk, f"{self._path}/{EPOCHS_FILE}"))
            self._checkpointed = loaded.latest
            loaded = loaded.truncate_from_end(scan_start)
            if self._confirms(loaded, trusted, log_start):
                return loaded
        except NewerFormat:
            raise
        except (Corrupt, FileNotFoundError):
            pass
        epochs = loaded.truncate_from_end(trusted[0].base_offset) if trusted else LeaderEpochs()
        for segment in trusted:
            for _, header in walk_headers(segment.file, 0, segment.size):
                latest = epochs.latest
                if header.leader_epoch >= 0 and (latest is None or header.leader_epoch > latest.epoch):
                    epochs = epochs.assign(header.leader_epoch, header.base_offset)
        return epochs

    def _confirms(self, epochs: LeaderEpochs, trusted: Sequence[Segment], log_start: int) -> bool:
        """Whether every local epoch start is a batch of that epoch, and each segment begins in the epoch it should."""
        for segment in trusted:
            if segment.size == 0:
                continue
            first = read_header(segment.file.read_at(0, HEADER_SIZE))
            last = self._last_epochs[segment.base_offset]
            for offset, epoch in ((segment.base_offset, first.leader_epoch), (segment.end_offset - 1, last)):
                if epoch >= 0 and offset >= log_start and epochs.epoch_for(offset) != epoch:
                    return False
            for epoch, start in epochs.entries:
                if segment.base_offset < start < segment.end_offset:
                    if self._epoch_at(segment, start) != epoch:
                        return False
                    if start > log_start and (
                        segment.locate(start, self._cache).base_offset != start
                        or self._epoch_at(segment, start - 1) == epoch  # it began earlier
                    ):
                        return False
        return True

    def _epoch_at(self, segment: Segment, offset: int) -> int:
        place = segment.locate(offset, self._cache)
        return read_header(segment.file.read_at(place.position, HEADER_SIZE)).leader_epoch

    def _scan(self, segments: Sequence[Segment], trusted: int, durable: int) -> Sequence[Segment]:
        """Read the segments from number `trusted` on: those that stay. DamagedLog where a cut would lose data."""
        end = segments[trusted].base_offset if trusted < len(segments) else 0
        for number in range(trusted, len(segments)):
            segment = segments[number]
            if segment.base_offset != end:
                before = segments[number - 1]
                self._cut = Damage(before.size, end, f"the next segment begins at offset {segment.base_offset}")
                judge(before.file.path, self._cut, durable)
                return segments[:number]
            if number > trusted:
                self._to_index.append(segments[number - 1])
                self._to_snapshot.append(self._producers.at(end))
            scanned = self._scanner.scan(segment, segment.file.size(), durable)
            segment.indexer, segment.size, segment.end_offset = scanned.indexer, scanned.size, scanned.end_offset
            if segment.size:
                first = scanned.first_timestamp_ms
                segment.first_append_ms = first if 0 <= first <= self._now_ms else self._now_ms
            self._scanned_bytes += scanned.size
            self._rewrites.append((segment, scanned.rewrite_from))
            end = scanned.end_offset
            if scanned.damage is not None:
                judge(segment.file.path, scanned.damage, durable)
                self._cut = scanned.damage
                return segments[: number + 1]
        return segments

    def _on_batch(self, header: BatchHeader) -> None:
        epoch = header.leader_epoch
        if epoch != self._epoch and epoch >= 0:
            known = -1 if self._checkpointed is None else self._checkpointed.epoch
            if epoch < self._epoch or (known >= 0 and epoch > known and header.base_offset < self._durable):
                raise CorruptBatch(
                    f"batch at offset {header.base_offset} has epoch {epoch} after {self._epoch}, the checkpoint's "
                    f"latest is {known}"
                )
            self._epoch = epoch
            self._epochs = self._epochs.assign(epoch, header.base_offset)
        if header.producer_id >= 0:
            replay(self._producers, header, self._now_ms)

    # --- changing -----------------------------------------------------------------------------------------------

    def _repair(
        self, plan: DirectoryPlan, segments: Sequence[Segment], kept: Sequence[Segment], log_start: int
    ) -> Recovered:
        """Make the files what was decided, and everything that is kept durable."""
        disk, path = self._disk, self._path
        lost_bytes = 0
        if self._cut is not None:
            lost_bytes = sum(segment.file.size() for segment in segments[len(kept) - 1 :]) - kept[-1].size
            truncate(disk, path, segments, len(kept))
        for segment, rewrite_from in self._rewrites:
            if segment in kept:
                self._scanner.rewrite(segment, rewrite_from, segment.size)
                segment.file.sync()
        active = kept[-1]
        epochs = self._lineage(active.end_offset).truncate_from_start(log_start)
        self._remove_strays(plan, [segment.base_offset for segment in kept], active.end_offset)
        found = Recovered(
            list(kept),
            log_start,
            epochs,
            self._producers,
            RecoveryReport(self._scanned_bytes, lost_bytes, "" if self._cut is None else self._cut.what),
        )
        found.epochs_unsaved = not _fits(self._save_epochs, epochs)
        for segment in self._to_index:
            if segment is not active:
                assert segment.indexer is not None
                segment.indexer.seal()
                if _fits(write_index_files, segment):
                    segment.release_indexes()
                else:
                    found.unwritten.append(PendingSeal(segment, None))
        for producers in self._to_snapshot:
            if not _fits(write_producer_files, disk, path, producers):
                found.unwritten.append(PendingSeal(None, producers))
        disk.sync_dir(path)
        return found

    def _lineage(self, log_end: int) -> LeaderEpochs:
        """What the batches say; and an epoch that began at the log's end, of which there is no record."""
        epochs, begun = self._epochs.truncate_from_end(log_end), self._checkpointed
        if begun is not None and begun.start_offset == log_end:
            latest = epochs.latest
            if latest is None or latest.epoch < begun.epoch:
                return epochs.assign(*begun)
        return epochs

    def _save_epochs(self, epochs: LeaderEpochs) -> None:
        file = f"{self._path}/{EPOCHS_FILE}"
        if (epochs.entries or self._disk.stat(file) is not None) and (
            self._disk.stat(file) is None or read_file(self._disk, file) != epochs.to_bytes()
        ):
            replace_file(self._disk, file, epochs.to_bytes())

    def _remove_strays(self, plan: DirectoryPlan, bases: Sequence[int], log_end: int) -> None:
        """Leftovers go, and producer files of no segment but the newest (Kafka: removeStraySnapshots)."""
        names = self._disk.list_dir(self._path)
        offsets = [offset for offset in producer_file_offsets(names) if offset <= log_end]
        wanted = {*bases, *offsets[:1]}
        strays = [
            name
            for name in names
            if (place := parse_offset_file(name)) is not None
            and place[1] in (SNAPSHOT, PRODUCERS)
            and place[0] not in wanted
        ]
        leftovers = [name for name in plan.leftovers if name in names]
        remove_files(self._disk, self._path, [*leftovers, *strays])


def _fits(write: Callable[[*Ts], None], *args: *Ts) -> bool:
    """Write small files that all can be made again: a disk without a free byte must not keep a log from its readers."""
    try:
        write(*args)
    except OSError as error:
        if not is_full(error):
            raise
        return False
    return True


def _measure_by_index(segment: Segment, *, is_last: bool) -> BatchHeader | None:
    """Set the segment's end from the last entries of its index files; its last batch, None where they do not agree
    with the log. Of the last segment that batch's CRC is checked: its header says where the log ends."""
    try:
        entry = _tail(segment, OFFSET_INDEX, _OFFSET_ENTRY)
        stamp = _tail(segment, TIME_INDEX, _TIME_ENTRY)
        relative, position = (0, 0) if entry is None else entry
        first = read_header(segment.file.read_at(0, HEADER_SIZE))
        if not 0 <= position < segment.size or first.base_offset != segment.base_offset:
            return None
        last: BatchHeader | None = None
        last_at = 0
        for at, header in walk_headers(segment.file, position, segment.size, 16 << 10):
            if at == position > 0 and header.last_offset != segment.base_offset + relative:
                return None
            if last is not None and header.base_offset != last.next_offset:
                return None
            last, last_at = header, at
        if is_last and last is not None:
            check_stored(segment.file.read_at(last_at, last.size), 0, last.size, offset_min=last.base_offset)
    except (FileNotFoundError, Corrupt):
        return None
    assert last is not None  # a segment with bytes has a batch, or walk_headers raised
    timestamp, offset = (-1, segment.base_offset) if stamp is None else (stamp[0], segment.base_offset + stamp[1])
    if timestamp < last.max_timestamp or not segment.base_offset <= offset <= last.last_offset:
        return None
    segment.end_offset = last.next_offset
    segment.release_indexes(TimestampOffset(timestamp, offset))
    return last


def _tail(segment: Segment, suffix: str, entry: struct.Struct) -> tuple[int, int] | None:
    """The last entry of an index file; None when it has none. Raises FileNotFoundError, Corrupt."""
    file = segment.disk.open(segment.path_of(suffix))
    try:
        size = file.size()
        if size % entry.size:
            raise Corrupt(f"{file.path}: {size} bytes is no multiple of {entry.size}")
        if size == 0:
            return None
        first, second = entry.unpack(file.read_at(size - entry.size, entry.size))
        return first, second
    finally:
        file.close()
