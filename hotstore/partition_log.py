"""One partition's log on local disk: the façade that the broker and tiering call.

Owns the local offsets, the append path, and how segments, producers, epochs and durability move together. Everything is
synchronous and belongs to the loop; methods marked *blocking* are called through Workers, "alone" ones while nothing
else uses the log. Always true: `log_start ≤ local_log_start ≤ log_end` and `flushed_end ≤ log_end`; an append is one
write of whole batches or leaves no trace; offsets are contiguous; what `flushed_end_offset` covers survives a cut.
Must not know: replication, the bucket, Kafka's error numbers.

Hot path: `append` of one batch costs 5.2 µs besides its pwrite, 5.8 µs with a producer id, `read` at the tail 0.9 µs
(CPython 3.11); it therefore calls machines with plain values, and keeps the newest positions in a dict.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple

from hotstore.appender import Placement, index_room_bytes, place, roll_reason
from hotstore.ballast import Ballast
from hotstore.durability import Durability, write_index_files, write_producer_files
from hotstore.errors import LeaderEpochFenced, LogFailed, LogFull, OffsetOutOfRange, ReservationExhausted
from hotstore.file_names import EPOCHS_FILE
from hotstore.local_files import drop_segment_files
from hotstore.locator import ByteRange, Locator, LogSlice
from hotstore.log_config import LogConfig
from hotstore.log_owner import UNOWNED, LogOwner
from hotstore.producer_files import load_producers, read_producers_at
from hotstore.producer_state import Producers
from hotstore.recovery import Recovered, RecoveryReport, recover
from hotstore.restart import restart_at, truncate
from hotstore.segment import IndexCache, Segment, SegmentInfo, build_indexer, create_segment
from hotstore.stamping import put_back, stamp_all
from hotstore.timestamps import TimestampedOffset, find_timestamp, greatest_timestamp
from logformat.checkpoints import PARTITION_METADATA_FILE, encode_partition_metadata
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry, ProducerState
from logformat.record_batch import INT64_MAX, LOG_OVERHEAD, BatchHeader, read_header
from logformat.values import TopicPartition
from seams import crash_points
from seams.disk import Disk, is_full, replace_file


class LogState(Enum):
    """What a log can do."""

    ONLINE = "online"
    FULL = "full"  # the disk is: reads go on, each append tries again
    FAILED = "failed"  # a write or sync failed: nothing goes on until the log is opened again


class Appended(NamedTuple):
    """Offsets an append got; `log_append_time_ms` −1 where the batches keep their own timestamps."""

    base_offset: int
    last_offset: int
    duplicate: bool
    log_append_time_ms: int


class LogCheckpoint(NamedTuple):
    """One log's lines in the checkpoints of its data directory."""

    topic_partition: TopicPartition
    recovery_point: int
    log_start_offset: int


class PartitionLog:
    """See the module. Made by `create` and `open` only."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        cache: IndexCache,
        found: Recovered,
        ballast: Ballast,
    ) -> None:
        self.disk = disk
        self.path = path
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.ballast = ballast
        """While it is given up nothing is appended."""
        self.state = LogState.ONLINE
        self.reserved_end: int = INT64_MAX
        """First offset that may not be given; set from outside (design 6, reservation)."""
        self.log_start_offset = found.log_start_offset
        self.owner: LogOwner = UNOWNED
        """Told what happens to the log; set by whoever takes a role for it."""
        self.log_end_offset = found.segments[-1].end_offset
        self.epochs = found.epochs
        self.producers = found.producers
        self.recovery: RecoveryReport = found.report
        self._locator = Locator(found.segments, cache)
        self._active = found.segments[-1]
        self._sealed_bytes = sum(segment.size for segment in found.segments[:-1])
        self._durability = Durability(disk, path, self.log_end_offset)
        self._durability.owe(found.unwritten)
        if found.epochs_unsaved:
            self._durability.epoch_began(found.segments[0].base_offset)
        self._failure = ""
        latest = found.epochs.latest
        self._leader_epoch = -1 if latest is None else latest.epoch
        self.reconfigure(config)

    # --- made ---------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        disk: Disk,
        path: str,
        topic: str,
        partition: int,
        topic_id: bytes,
        config: LogConfig,
        *,
        start_offset: int = 0,
        cache: IndexCache | None = None,
        ballast: Ballast | None = None,
    ) -> PartitionLog:
        """Blocking: an empty log in a new directory, durable when it returns. Raises OSError."""
        cache, ballast = cache or IndexCache(), ballast or Ballast(disk, path)
        disk.make_dirs(path)
        replace_file(disk, f"{path}/{PARTITION_METADATA_FILE}", encode_partition_metadata(topic_id))
        segment = create_segment(disk, path, start_offset, config.index_interval_bytes)
        disk.sync_dir(path)
        disk.sync_dir(path.rsplit("/", 1)[0] or "/")
        found = Recovered(
            [segment], start_offset, LeaderEpochs(), Producers(config.producer_id_expiration_ms), RecoveryReport()
        )
        return cls(disk, path, topic, partition, topic_id, config, cache, found, ballast)

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: str,
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        recovery_point: int,
        log_start: int | None,
        clean: bool,
        now_ms: int,
        topic_id: bytes | None = None,
        cache: IndexCache | None = None,
        ballast: Ballast | None = None,
    ) -> PartitionLog:
        """Blocking: an existing log, recovered. `log_start` None: no checkpoint names it, the first segment does.

        Raises DamagedLog (Corrupt) for a log that must not be opened, or one of another `topic_id`; OSError.
        """
        cache, ballast = cache or IndexCache(), ballast or Ballast(disk, path)
        found_id, found = recover(
            disk,
            path,
            config,
            recovery_point=recovery_point,
            log_start=log_start,
            clean=clean,
            now_ms=now_ms,
            topic_id=topic_id,
            cache=cache,
        )
        return cls(disk, path, topic, partition, found_id, config, cache, found, ballast)

    def reconfigure(self, config: LogConfig) -> None:
        """Obey another configuration from the next append on."""
        self.config = config
        self.producers.expiration_ms = config.producer_id_expiration_ms
        self._index_room_bytes = index_room_bytes(config)

    # --- offsets and sizes --------------------------------------------------------------------------------------

    @property
    def local_log_start_offset(self) -> int:
        return max(self.log_start_offset, self._locator.segments[0].base_offset)

    @property
    def flushed_end_offset(self) -> int:
        """Below it everything survives a power cut."""
        return self._durability.flushed_end_offset

    @property
    def stable_end_offset(self) -> int:
        """What may become visible and be acknowledged with acks=all: the flushed end, in `os` mode the log end."""
        return self._durability.flushed_end_offset if self.config.waits_for_flush else self.log_end_offset

    @property
    def recovery_point(self) -> int:
        """For the checkpoint: below it recovery does not look."""
        return self._durability.recovery_point

    @property
    def dirty_bytes(self) -> int:
        """Appended and not yet synced."""
        return self._durability.dirty_bytes

    @property
    def local_bytes(self) -> int:
        return self._sealed_bytes + self._active.size

    @property
    def durability(self) -> Durability:
        """For the flusher."""
        return self._durability

    @property
    def active_segment(self) -> Segment:
        """For the flusher."""
        return self._active

    @property
    def has_sealing(self) -> bool:
        """Whether a sealed segment's small files, or the epochs, wait to be written."""
        durability = self._durability
        return bool(durability.pending_seals) or durability.recovery_point < durability.flushed_end_offset

    @property
    def failure(self) -> str:
        """Why the log is FAILED; empty while it is not."""
        return self._failure

    # --- append -------------------------------------------------------------------------------------------------

    def append(
        self, batches: Sequence[memoryview], headers: Sequence[BatchHeader], leader_epoch: int, now_ms: int
    ) -> Appended:
        """Write checked batches, each with its header, at the log's end by one write; they are stamped in place.

        Resends of remembered batches write nothing and answer their first offsets. Raises the sequence errors,
        RecordListTooLarge, ReservationExhausted, LeaderEpochFenced, LogFull, LogFailed: nothing was written then.
        """
        if self.state is LogState.FAILED:
            raise self._offline()
        known = self._resent(headers, now_ms)
        if known is not None:
            return known
        if self.ballast.is_short:
            raise self._full(OSError(errno.ENOSPC, "No space left on device"))
        config = self.config
        append_time_ms = now_ms if config.log_append_time else -1
        base = self.log_end_offset
        placement = place(headers, base, leader_epoch, append_time_ms)
        self._write(placement, batches, leader_epoch, now_ms)
        for header in placement.headers:
            if header.producer_id >= 0:
                self.producers.record(header, header.base_offset, now_ms)
        return Appended(base, placement.end_offset - 1, False, append_time_ms)

    def append_control(self, batch: bytes, now_ms: int) -> Appended:
        """Write one whole batch that carries its own offsets and epoch (a gap), which begin at the log's end."""
        if self.state is LogState.FAILED:
            raise self._offline()
        header = read_header(batch)
        assert header.base_offset == self.log_end_offset and header.size == len(batch), (header, self.log_end_offset)
        self._write(Placement([header], len(batch), header.next_offset), (batch,), header.leader_epoch, now_ms)
        return Appended(header.base_offset, header.last_offset, False, -1)

    def _resent(self, headers: Sequence[BatchHeader], now_ms: int) -> Appended | None:
        """The answer to a resend; None when the batches are new. Raises the sequence errors."""
        if len(headers) == 1:
            header = headers[0]
            if header.producer_id < 0:
                return None
            first = last = self.producers.check(header, now_ms)
            if first is None or last is None:
                return None
        else:
            if not any(header.producer_id >= 0 for header in headers):
                return None
            known = self.producers.check_all(headers, now_ms)
            if known is None:
                return None
            first, last = known
        return Appended(first.first_offset, last.last_offset, True, -1)

    def _write(
        self, placement: Placement, batches: Sequence[memoryview | bytes], leader_epoch: int, now_ms: int
    ) -> None:
        """Roll where needed, stamp what is not final (`bytes` are), write once, and move the log's end."""
        headers, size, end_offset = placement
        assert size == sum(map(len, batches)), (size, [*map(len, batches)])
        if end_offset > self.reserved_end:
            raise ReservationExhausted(
                f"{self.topic}-{self.partition}: offsets up to {end_offset} wanted, reserved are those below "
                f"{self.reserved_end}; the bucket must answer first",
                end_offset,
            )
        if leader_epoch < self._leader_epoch:
            raise LeaderEpochFenced(
                f"{self.topic}-{self.partition}: epoch {leader_epoch} superseded by {self._leader_epoch}"
            )
        segment = self._active
        indexer = segment.indexer
        assert indexer is not None
        room = self._index_room_bytes
        reason = roll_reason(
            self.config,
            segment_base=segment.base_offset,
            segment_size=segment.size,
            first_append_ms=segment.first_append_ms,
            index_full=segment.size > room and indexer.is_full(self.config.segment_index_bytes),
            incoming_bytes=size,
            incoming_base=self.log_end_offset,
            incoming_end=end_offset,
            now_ms=now_ms,
        )
        if reason is not None:
            self._roll()
            segment = self._active
            indexer = segment.indexer
            assert indexer is not None
        as_sent = stamp_all(batches, headers, leader_epoch, now_ms if self.config.log_append_time else -1)
        position = segment.size
        try:
            segment.file.write_at(position, batches)
        except OSError as error:
            put_back(batches, as_sent)
            raise self._write_failed(error) from error
        crash_points.reach("append.written")
        if leader_epoch != self._leader_epoch:
            self._begin_epoch(leader_epoch)
        if position == 0:
            segment.first_append_ms = now_ms
        locator = self._locator
        for header in headers:
            indexer.add(header, position)
            position += header.length + LOG_OVERHEAD
            locator.appended(header.base_offset + header.last_offset_delta + 1, position)
        segment.size = position
        segment.end_offset = self.log_end_offset = end_offset
        durability = self._durability
        durability.written_bytes += size
        if durability.oldest_dirty_ms is None:
            durability.oldest_dirty_ms = now_ms
        if self.state is LogState.FULL:
            self.state = LogState.ONLINE

    def _begin_epoch(self, leader_epoch: int) -> None:
        """The batch at the log's end, just written, is the first of its epoch."""
        self._leader_epoch = leader_epoch
        self.epochs = self.epochs.assign(leader_epoch, self.log_end_offset)
        self._durability.epoch_began(self.log_end_offset)

    def _write_failed(self, error: OSError) -> LogFull | LogFailed:
        """Cut back what a failed write left behind, and say which of the two bad states it is."""
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
        return LogFull(f"{name}: {error}; free space below {self.path}, appends go on by themselves")

    def fail(self, error: OSError) -> LogFailed:
        """A sync or write failed: offline from now on (C10). Returns what to raise."""
        self.state = LogState.FAILED
        self._failure = f"{self.topic}-{self.partition} is offline after {error}; check the disk, then restart"
        return LogFailed(self._failure)

    def _offline(self) -> LogFailed:
        return LogFailed(self._failure)

    # --- segments -----------------------------------------------------------------------------------------------

    def roll(self) -> bool:
        """Seal the active segment, if anything is in it; whether it did. Raises LogFull, LogFailed."""
        if self.state is LogState.FAILED:
            raise self._offline()
        if self._active.size == 0:
            return False
        self._roll()
        return True

    def _roll(self) -> None:
        old = self._active
        assert old.size > 0, "an empty segment takes whatever comes: it begins at the log's end"
        try:
            new = create_segment(self.disk, self.path, self.log_end_offset, self.config.index_interval_bytes)
        except OSError as error:
            raise self._write_failed(error) from error
        crash_points.reach("roll.created")
        assert old.indexer is not None
        old.indexer.seal()
        self._sealed_bytes += old.size
        self._durability.rolled(old, self.producers.at(self.log_end_offset))
        self._locator.add(new)
        self._active = new

    def sealed_segments(self) -> list[SegmentInfo]:
        """Oldest first. What lies above `flushed_end_offset` is not durable yet (C6)."""
        return [segment.info for segment in self._locator.segments[:-1]]

    def active_info(self) -> SegmentInfo:
        return self._active.info

    @property
    def oldest_unsealed_append_ms(self) -> int | None:
        """When the first batch of the active segment came (thermocline.seal.ms); None: it is empty."""
        return self._active.first_append_ms if self._active.size else None

    def producer_snapshot_at(self, offset: int) -> ProducerState | None:
        """*Blocking*: the producers at a roll point; None when nothing is kept for that offset."""
        for seal in self._durability.pending_seals:
            if seal.producers is not None and seal.producers.end_offset == offset:
                return seal.producers.state()
        return read_producers_at(self.disk, self.path, offset)

    # --- read ---------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, limit_offset: int, *, min_one: bool) -> LogSlice | None:
        """Whole batches from the one that holds `offset`, below `limit_offset` (the high watermark), of one segment.

        None: nothing there yet. At most `max_bytes`; with `min_one` at least one batch, otherwise the length may be 0.
        Raises OffsetOutOfRange, LogFailed; DamagedLog where the log itself cannot be walked. May read an index or some
        headers from disk unless `is_cheap(offset)`.
        """
        end = self.log_end_offset
        if limit_offset > end:
            limit_offset = end
        if offset >= limit_offset and offset <= end:
            return None
        segments = self._locator.segments
        if offset > end or offset < self.log_start_offset or offset < segments[0].base_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: offset {offset} is not in [{self.local_log_start_offset}, {end}]"
            )
        if self.state is LogState.FAILED:
            raise self._offline()
        return self._locator.slice(offset, max_bytes, limit_offset, min_one=min_one)

    def sound(self, found: LogSlice) -> LogSlice:
        """`found`, or what of it lies before damage. Raises DamagedLog where it begins with it."""
        segment = self._locator.segment_at(found.segment_base)
        if segment.damage is None or segment.file is not found.file:
            return found
        return found._replace(length=segment.sound_bytes(found.position, found.length))

    def is_checked(self, found: LogSlice) -> bool:
        """Whether `found` may be sent; otherwise `check` it in a worker first."""
        segment = self._locator.segment_at(found.segment_base)
        return segment.file is not found.file or segment.is_checked(found.position, found.length)

    def check(self, found: LogSlice) -> None:
        """*Blocking*, beside the loop: make sure that the offsets in `found` are what they were. Raises
        DamagedLog, and `sound` tells it from then on."""
        segment = self._locator.segment_at(found.segment_base)
        if segment.file is found.file:
            segment.check(found.position, found.length, self._locator.cache)

    def is_cheap(self, offset: int) -> bool:
        """Whether `read` at `offset` finds its index in memory (C25); otherwise `prepare_read` in a worker first."""
        return self._locator.is_cheap(offset)

    def prepare_read(self, offset: int) -> None:
        """*Blocking*, beside the loop: load the indexes that `read` at `offset` will ask for. Raises DamagedLog."""
        for segment in reversed(self._locator.segments.copy()):
            if segment.base_offset <= offset:
                segment.indexes(self._locator.cache)
                return

    def batch_ranges(self, start_offset: int, end_offset: int) -> list[ByteRange]:
        """For the copier: every whole batch that holds an offset of [start, end), file by file."""
        return self._locator.ranges(start_offset, end_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampedOffset | None:
        """*Blocking*: the first local record that is not older than `timestamp` (ms)."""
        return find_timestamp(list(self._locator.segments), self._locator.cache, timestamp, self.local_log_start_offset)

    def max_timestamp(self) -> TimestampedOffset | None:
        """*Blocking*: the first local record with the greatest timestamp (ListOffsets −3)."""
        return greatest_timestamp(list(self._locator.segments), self._locator.cache)

    # --- less ---------------------------------------------------------------------------------------------------

    def advance_log_start(self, offset: int) -> bool:
        """Records below `offset` ≤ log end are gone for readers; whether it moved. Never moves back.

        The checkpoint must be durable before local bytes below it are unlinked (`DataDir.write_checkpoints`).
        """
        if offset > self.log_end_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: cannot delete up to {offset}, the log ends at {self.log_end_offset}"
            )
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.owner.start_moved()
        return True

    def delete_local_before(self, offset: int) -> list[Segment]:
        """Forget the sealed segments that end at or below `offset`, and return them for `unlink`.

        One whose index files are still being written stays, with all after it. Readers that hold a slice keep its file.
        """
        count = 0
        flushed = self.flushed_end_offset
        for segment in self._locator.segments[:-1]:
            if segment.end_offset > min(offset, flushed) or segment.indexer is not None:
                break
            count += 1
        dropped = self._locator.drop_first(count)
        self._sealed_bytes -= sum(segment.size for segment in dropped)
        return dropped

    def unlink(self, segments: Iterable[Segment]) -> None:
        """*Blocking*, beside the loop: remove the files of what `delete_local_before` returned. Raises OSError."""
        drop_segment_files(self.disk, self.path, [segment.base_offset for segment in segments])

    def truncate_to(self, offset: int) -> None:
        """*Blocking*, alone: drop every batch that ends above `offset`; durable when it returns.

        The recovery-point checkpoint must not be above `offset`: write it first (`DataDir.lower_recovery_point`).
        Raises OSError, after which the log must be opened again.
        """
        if offset >= self.log_end_offset:
            return
        self._sync_all()  # what stays becomes durable first: the cut must not be the only thing that is
        segments = self._locator.segments
        if offset <= segments[0].base_offset:
            self.start_at(offset, self.epochs.truncate_from_end(offset), ())
            return
        segment = self._locator.segment_of(offset - 1)
        keep = segments.index(segment) + 1
        if offset < segment.end_offset:
            place = segment.locate(offset, self._locator.cache)
            segment.size, segment.end_offset = place.position, place.base_offset
        truncate(self.disk, self.path, segments, keep)
        segment.indexer = build_indexer(segment, seal=False)
        self._locator.replace(segments[:keep])
        end = segment.end_offset
        self._restart(end, self.epochs.truncate_from_end(end))
        self.producers = load_producers(
            self.disk, self.path, self.disk.list_dir(self.path), segments, end,
            self.config.producer_id_expiration_ms, 0, self._locator.cache,
        )  # fmt: skip
        self._save_epochs()

    def start_at(self, offset: int, epochs: LeaderEpochs, producers: Iterable[ProducerEntry]) -> None:
        """*Blocking*, alone: drop everything local and begin an empty log at `offset`, with the state the bucket holds.

        A crash in between is finished by the next open. Raises OSError, after which the log must be opened again.
        """
        fresh = Producers(self.config.producer_id_expiration_ms, producers)
        segment = restart_at(self.disk, self.path, offset, epochs, fresh, self.config.index_interval_bytes)
        self._locator.replace([segment])
        self.producers = fresh
        self._restart(offset, epochs)

    def _restart(self, end_offset: int, epochs: LeaderEpochs) -> None:
        self._active = self._locator.active
        self._sealed_bytes = sum(segment.size for segment in self._locator.segments[:-1])
        self.log_end_offset = end_offset
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.epochs = epochs
        latest = epochs.latest
        self._leader_epoch = -1 if latest is None else latest.epoch
        self._durability.restart_at(end_offset)

    # --- kept ---------------------------------------------------------------------------------------------------

    def checkpoint_state(self) -> LogCheckpoint:
        """What the data directory's checkpoints say of this log."""
        return LogCheckpoint(TopicPartition(self.topic, self.partition), self.recovery_point, self.log_start_offset)

    def expire_producers(self, now_ms: int) -> int:
        return self.producers.expire(now_ms)

    def close(self, clean: bool) -> None:
        """*Blocking*, alone. `clean`: sync everything and write indexes and producers, so that opening needs no scan.

        Readers that hold a slice keep its file. Raises OSError; then the stop is not clean and the marker must not be
        written.
        """
        if clean and self.state is not LogState.FAILED:
            self._sync_all()
            assert self._active.indexer is not None
            self._active.indexer.seal()
            write_index_files(self._active)
            write_producer_files(self.disk, self.path, self.producers.at(self.log_end_offset))
            self.disk.sync_dir(self.path)
        for segment in self._locator.segments:
            segment.let_go()

    def _sync_all(self) -> None:
        durability = self._durability
        sync = durability.begin_sync(self._active, self.log_end_offset)
        if sync is not None:
            sync.run()
            durability.finish_sync(sync)
        seal = durability.begin_seal(self.epochs)
        if seal is not None:
            seal.run()
            durability.finish_seal(seal, self.epochs)

    def _save_epochs(self) -> None:
        replace_file(self.disk, f"{self.path}/{EPOCHS_FILE}", self.epochs.to_bytes())
