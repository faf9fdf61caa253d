"""All logs of one data directory: opened, created, truncated, closed, deleted (Kafka's LogManager).

Concurrent callers share one opening of a log. A log that fails to open or close does not affect the others. One job at
a time writes checkpoints. The host needs neither a bucket nor a role.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeVar, TypeVarTuple
from uuid import UUID
from weakref import WeakValueDictionary

from hotstore.file_names import LOG
from hotstore.flush.flusher import Flusher
from hotstore.flush.sync_rounds import SyncRounds, SyncTimes
from hotstore.host.data_dir import DataDir
from hotstore.host.lease import Lease
from hotstore.host.log_directories import LogDirectories
from hotstore.host.offset_checkpoints import CheckpointJob
from hotstore.host.open_log import OpenLog, RefusedLog
from hotstore.host.place import Place
from hotstore.log.log_config import LogConfig
from hotstore.log.log_swap import SegmentRun
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_creation import Begin
from hotstore.recovery.log_loading import make_log, recover_log, recover_sound
from logformat.checkpoints import PARTITION_METADATA_FILE, REPLICATION_FILE
from logformat.values import TopicPartition
from seams.loop.tasks import FailureReport, log_failure
from seams.loop.workers import Lane
from seams.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)

_OPENED_TOGETHER: Final = 64
"""Logs that are opened between two calls of `keep_objects`. Without the calls, a broker that opens 4 000 logs scans all
its objects again and again, up to 0.4 s at once on the loop."""


class _Occupied(Enum):
    """Another topic took the directory while this topic waited for its turn."""

    BY_ANOTHER = "another topic"


class _Found(NamedTuple):
    """A log that was found or created."""

    local: PartitionLog | None
    is_bare: bool = False


class LogHost:
    """The host of one data directory, whose clean-shutdown marker was removed before
    (`DataDir.remove_clean_marker`)."""

    def __init__(self, data_dir: DataDir, world: World, report: FailureReport | None = None) -> None:
        assert not data_dir.has_clean_marker, data_dir.path
        self._data_dir = data_dir
        self._world = world
        self._report = report
        self._sync_rounds = SyncRounds(world.syncs, world.workers, report, world.afterwards)
        self._open: dict[TopicPartition, OpenLog] = {}
        self._places: WeakValueDictionary[TopicPartition, Place] = WeakValueDictionary()
        self._unsynced_names: set[object] = set()  # failed creations that may have left a name that is not durable
        self._left_unclean = False  # this process closed a log uncleanly, so the marker does not cover that log
        self._checkpointing = asyncio.Lock()
        self.path = data_dir.path
        self.directories = LogDirectories(data_dir, world)
        self.ballast = data_dir.ballast
        self.late_effect = world.late_effect

    @property
    def was_clean(self) -> bool:
        """Whether the last process closed every log cleanly."""
        return self._data_dir.was_clean

    @property
    def sync_times(self) -> SyncTimes:
        return self._sync_rounds.times

    @property
    def open_logs(self) -> list[OpenLog]:
        return list(self._open.values())

    def is_open(self, opened: OpenLog) -> bool:
        return opened.at.occupant is opened

    def place(self, name: TopicPartition) -> Place:
        """The place of this name. It is the same object while it is referenced."""
        found = self._places.get(name)
        if found is None:
            found = self._places[name] = Place(name, self._world.workers, self._report or log_failure)
        return found

    def lend(self, opened: OpenLog, role: str) -> Lease:
        """A lease of the open log for a new role. The lease of the previous role must have ended and returned."""
        assert self.is_open(opened) and not opened.is_closing, f"{opened.place} is closed, or about to be"
        assert opened.lease is None or opened.lease.is_returned, (
            f"{opened.lease} still holds the log that {role} asks for"
        )
        opened.lease = Lease(self, opened, role)
        return opened.lease

    def forget_joining(self, place: TopicPartition, topic_id: UUID) -> None:
        """The broker may have left the partition since its log was opened. See `OpenLog.joins`."""
        opened = self._open.get(place)
        if opened is not None and opened.topic_id == topic_id:
            opened.joins = False

    # --- opened and created -------------------------------------------------------------------------------------

    def _holds(self, place: TopicPartition) -> bool:
        """Whether the place has a log. Its topic id and metadata file are checked when it is opened."""
        disk, path = self._world.disk, self._data_dir.log_path(place.topic, place.partition)
        if disk.stat(path) is None:
            return False
        if disk.stat(f"{path}/{PARTITION_METADATA_FILE}") is not None:
            return True
        return any(name.endswith(LOG) for name in disk.list_dir(path))

    async def open(self, place: TopicPartition, topic_id: UUID, config: LogConfig) -> OpenLog | None:
        """The recovered log of this topic; None if there is none. An open log gets `config`. A torn log is closed and
        opened again.

        Raises ForeignLog if another topic's log is there, Retryable while that log is open, DamagedLog,
        MissingSegments, NewerFormat, OSError."""
        return await self._opened(self._recover, place, topic_id, config)

    async def open_or_create(self, place: TopicPartition, topic_id: UUID, config: LogConfig) -> OpenLog:
        """Open the log, or create it if there is none. Raises the errors of `open`."""
        opened = await self._opened(self._recover_or_make, place, topic_id, config)
        assert opened is not None
        return opened

    async def _opened(
        self,
        find: Callable[[TopicPartition, UUID, LogConfig, int], _Found],
        place: TopicPartition,
        topic_id: UUID,
        config: LogConfig,
    ) -> OpenLog | None:
        async def open_it(at: Place) -> OpenLog | None:
            if (known := at.occupant) is not None:
                if not known.is_torn:
                    known.log.reconfigure(config)  # no role applied the changes of a log between two roles
                    return known
                await self._close(known, clean=False)
            local, is_bare = await at.run_alone(
                find, place, topic_id, config, self._world.clock.wall_ms(), topic_id=topic_id.bytes
            )
            return None if local is None else self._add(at, local, is_bare=is_bare)

        return await self._in_turn(place, topic_id, open_it)

    async def _in_turn(self, name: TopicPartition, topic_id: UUID, work: Callable[[Place], Awaitable[T]]) -> T:
        """Run `work` in the place's turn, when no log of another topic is open there."""
        at = self.place(name)

        async def when_vacated() -> T | _Occupied:
            if at.occupant is not None and at.occupant.log.topic_id != topic_id.bytes:
                return _Occupied.BY_ANOTHER
            return await work(at)

        while True:
            await at.wait_vacated(topic_id.bytes)
            found = await at.alone(when_vacated)
            if not isinstance(found, _Occupied):
                return found

    # A log is found, recovered or created by one worker call, because a start or a restore does this for thousands of
    # logs.

    def _recover(self, place: TopicPartition, topic_id: UUID, config: LogConfig, now_ms: int) -> _Found:
        if not self._holds(place):
            return _Found(None)
        if unsynced := self._unsynced_names.copy():  # make the name durable before a record of the log is acknowledged
            self._world.disk.sync_dir(self._data_dir.path)
            self._unsynced_names -= unsynced  # without those that failed in another worker during the sync
        # Recovery reads from the recovery point on. After a clean close that is little.
        all_is_read = self._left_unclean
        return _Found(recover_log(self._data_dir, place, config, now_ms, topic_id.bytes, all_is_read=all_is_read))

    def _recover_or_make(self, place: TopicPartition, topic_id: UUID, config: LogConfig, now_ms: int) -> _Found:
        found = self._recover(place, topic_id, config, now_ms)
        return found if found.local is not None else _Found(self._make(place, topic_id, config), is_bare=True)

    def refused_log(self, place: TopicPartition, sound_end: int) -> RefusedLog:
        """State of a log that cannot be opened because of damage at `sound_end`."""
        checkpoints = self._data_dir.checkpoints
        return RefusedLog(checkpoints.seen_epoch(place), checkpoints.high_watermark(place), sound_end)

    async def open_sound(self, place: TopicPartition, topic_id: UUID, config: LogConfig, sound_end: int) -> OpenLog:
        """Open a log that is damaged at `sound_end`. The log is truncated there, and later records are lost. Raises
        DamagedLog if there is other damage, Retryable, OSError."""

        async def open_it(at: Place) -> OpenLog:
            assert at.occupant is None, place
            now_ms = self._world.clock.wall_ms()
            async with self._checkpointing:
                local = await at.run_alone(
                    recover_sound,
                    self._data_dir,
                    place,
                    config,
                    now_ms,
                    topic_id.bytes,
                    sound_end,
                    topic_id=topic_id.bytes,
                )
            return self._add(at, local)

        return await self._in_turn(place, topic_id, open_it)

    async def create(
        self, place: TopicPartition, topic_id: UUID, config: LogConfig, begin: Begin | None = None
    ) -> OpenLog:
        """A new, empty log. If its place has a directory without an owner, that directory is set aside first. Raises
        ForeignLog, Retryable, Corrupt, OSError."""

        async def make_it(at: Place) -> OpenLog:
            assert at.occupant is None, place
            local = await at.run_alone(self._make, place, topic_id, config, begin, topic_id=topic_id.bytes)
            return self._add(at, local, is_bare=True)

        return await self._in_turn(place, topic_id, make_it)

    def _make(
        self, place: TopicPartition, topic_id: UUID, config: LogConfig, begin: Begin | None = None
    ) -> PartitionLog:
        self._world.disk.check_descriptors()
        self.directories.clear(place, topic_id)
        try:
            return make_log(self._data_dir, place, topic_id.bytes, config, begin)
        except OSError:
            self._unsynced_names.add(object())
            raise

    def _add(self, at: Place, local: PartitionLog, *, is_bare: bool = False) -> OpenLog:
        did = local.recovery
        if did.truncated_bytes:
            log.warning(
                "%s: %d bytes are cut off its damaged end, and it ends at offset %d: %s",
                at.name,
                did.truncated_bytes,
                local.log_end_offset,
                did.truncated_reason,
            )
        flusher = self._flusher(at, local)
        flusher.seal_soon()  # for files for which the disk had no space during recovery
        checkpoints = self._data_dir.checkpoints
        mark, epoch = checkpoints.high_watermark(at.name), checkpoints.seen_epoch(at.name)
        opened = OpenLog(at, local, flusher, mark, epoch, is_bare=is_bare)
        at.occupy(opened)
        self._open[at.name] = opened
        if len(self._open) % _OPENED_TOGETHER == 0:
            self._world.keep_objects()
        return opened

    def _flusher(self, at: Place, local: PartitionLog) -> Flusher:
        return Flusher(local, at, self._sync_rounds, report=self._report)

    # --- truncated and restarted, by its lease ------------------------------------------------------------------

    async def truncate(self, opened: OpenLog, offset: int, check: Callable[[], None]) -> None:
        """See `Lease.truncate`. `check` raises if the lease ended before its turn."""
        checkpoints = self._data_dir.checkpoints

        async def cut() -> None:
            check()
            await opened.flusher.flush()
            check()
            opened.is_torn = True  # set first: a checkpoint would otherwise name offsets that are being truncated
            end = await opened.at.call(opened.log.cut_end, offset)
            async with self._checkpointing:
                await self._run(checkpoints.lower_recovery_point, opened.place, end)
            await self._replaced(opened, opened.log.truncate_to, offset, self._world.clock.wall_ms())

        await opened.at.alone(cut)

    async def begin_at(self, opened: OpenLog, begin: Begin, check: Callable[[], None], *, forget_start: bool) -> None:
        """See `Lease.begin_at`. `check`: see `truncate`."""

        async def begin_elsewhere() -> None:
            check()
            opened.is_torn = True
            await self._write(self._data_dir.checkpoints.forget_cleaned(opened.place))
            if begin.offset < opened.log.log_end_offset:
                async with self._checkpointing:
                    await self._run(self._data_dir.checkpoints.lower_recovery_point, opened.place, begin.offset)
            if forget_start:
                async with self._checkpointing:
                    await self._run(self._data_dir.checkpoints.forget_log_start, opened.place)
            else:
                await self._note_start(opened)  # the first local segment no longer shows where the log starts
            await self._replaced(opened, opened.log.start_at, *begin)
            if forget_start:
                opened.log.advance_log_start(begin.offset)  # otherwise the next checkpoint has offsets of no tier

        await opened.at.alone(begin_elsewhere)

    async def swap(self, opened: OpenLog, run: SegmentRun, size: int, check: Callable[[], None]) -> bool:
        """See `Lease.swap`. `check`: see `truncate`. Readers and syncs continue during the swap, because a replaced
        file stays open for its users."""

        async def swap_it() -> bool:
            check()
            local = opened.log
            if not local.holds(run):
                return False
            cleaned = await opened.at.call(local.open_cleaned, run, size, lane=Lane.CLEAN)
            check()
            if not local.holds(run):  # retention deleted a segment meanwhile
                return False
            local.swap_in(run, cleaned)
            try:
                await opened.at.call(local.name_swapped, run, lane=Lane.CLEAN)
            except OSError as error:
                opened.flusher.fail(error)  # opening the log again finishes the swap, or undoes it
                raise
            cleaned.release_indexes()
            return True

        return await opened.at.alone(swap_it)

    def cleaned_offset(self, opened: OpenLog) -> int | None:
        """The offset below which the log is clean; None if it was never cleaned."""
        return self._data_dir.checkpoints.cleaned_offset(opened.place)

    async def checkpoint_cleaned(self, opened: OpenLog, offset: int, check: Callable[[], None]) -> None:
        """See `Lease.checkpoint_cleaned`. This runs in the place's turn, because a truncation lowers the cleaned
        offset."""

        async def note() -> None:
            check()
            end = min(offset, opened.log.log_end_offset)
            await self._write(self._data_dir.checkpoints.sample_cleaned(opened.place, end))
            opened.log.owner.cleaned()

        await opened.at.alone(note)

    async def checkpoint_committed(self, opened: OpenLog, offset: int) -> None:
        """See `Lease.checkpoint_committed`."""
        checkpoints = self._data_dir.checkpoints
        noted = checkpoints.high_watermark(opened.place)
        if noted < offset or not checkpoints.are_saved((REPLICATION_FILE,)):  # a noted one may not be written yet
            await self.checkpoint({opened.log: max(offset, noted)})

    async def _replaced(self, opened: OpenLog, work: Callable[[*Ts], None], *args: *Ts) -> None:
        """Change the log's files while no sync, seal job or other call runs, then start a new flusher. The log is torn
        until then."""
        await opened.flusher.close()
        await opened.at.quiesce()
        try:
            await opened.at.run_alone(work, *args)
        finally:
            opened.at.resume()
        opened.is_torn = False
        # The high watermark is lowered now, because new records will get the truncated offsets, and are not committed
        # yet.
        opened.high_watermark = min(opened.high_watermark, opened.log.log_end_offset)
        opened.flusher = self._flusher(opened.at, opened.log)

    async def _run(self, function: Callable[[*Ts], None], *args: *Ts) -> None:
        """Run blocking work on the data directory's own files."""
        await self._world.workers.run(function, *args)

    def raise_log_start(self, place: TopicPartition, offset: int) -> None:
        """Raise the log start of a log that could not be opened, by its root. The caller then opens it again."""
        self._data_dir.checkpoints.raise_log_start(place, offset)

    # --- closed and removed -------------------------------------------------------------------------------------

    async def close(self, opened: OpenLog, *, clean: bool) -> bool:
        """Stop the log's flusher and close its files. Returns whether it may be opened without a scan, because it was
        closed as `clean` and did not fail.

        Its state is recorded for the next checkpoint. A closed log does not change. The work continues if the caller is
        cancelled. The log is closed even if this raises OSError.
        """

        async def close_it() -> bool:
            return await self._close(opened, clean=clean) if self.is_open(opened) else clean

        if opened.lease is not None:
            await opened.lease.returned()
        return await opened.at.alone(close_it)

    async def _close(self, opened: OpenLog, *, clean: bool) -> bool:
        assert opened.lease is None or opened.lease.is_returned, f"{opened.lease} still holds the log"
        at, is_whole = opened.at, False
        opened.is_closing = True
        try:
            await opened.flusher.close()
            await at.quiesce()
            is_whole = clean and not opened.log.failure and not opened.is_torn  # the last flush may have failed
            await at.run_alone(opened.log.close, is_whole)
        except BaseException:
            is_whole = False
            raise
        finally:
            self._left_unclean |= not is_whole
            if not opened.is_torn:
                self._sample(opened, opened.high_watermark)
            del self._open[at.name]
            at.vacate()
        return is_whole

    async def close_of(self, place: TopicPartition, topic_id: UUID) -> None:
        """Close the log of this topic without a flush, if it is open or being opened. The log is
        closed even if this raises OSError."""
        at = self.place(place)

        async def close_it() -> None:
            if at.occupant is not None and at.occupant.log.topic_id == topic_id.bytes:
                await self._close(at.occupant, clean=False)

        await at.alone(close_it)

    async def set_aside(
        self,
        place: TopicPartition,
        topic_id: UUID,
        is_wanted: Callable[[], bool] = lambda: True,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Close the log of this topic and rename its directory, so that no start opens it. `delete_set_aside` removes
        the directory.

        Durable when it returns. Does nothing if there is no log, or if `is_wanted` returns False in its turn. `then` is
        called in the same turn, when no log of the topic is there any more, also if the caller was cancelled. Raises
        Corrupt, OSError."""
        await self._moved(self.directories.set_aside, place, topic_id, is_wanted, then)

    async def move_stray(
        self,
        place: TopicPartition,
        topic_id: UUID,
        is_wanted: Callable[[], bool] = lambda: True,
        then: Callable[[], None] = lambda: None,
    ) -> str | None:
        """Close the log of this topic and rename its directory to a stray, which is kept for a week. Returns the new
        path; None if there is no log. Otherwise this does the same as `set_aside`."""
        return await self._moved(self.directories.move_stray, place, topic_id, is_wanted, then)

    async def _moved(
        self,
        move: Callable[[TopicPartition, UUID], T],
        place: TopicPartition,
        topic_id: UUID,
        is_wanted: Callable[[], bool],
        then: Callable[[], None],
    ) -> T | None:
        at = self.place(place)

        async def move_it() -> T | None:
            if not is_wanted():
                return None
            moved = None
            if at.occupant is None or at.occupant.log.topic_id == topic_id.bytes:  # no log of another topic is open
                if at.occupant is not None:
                    await self._close(at.occupant, clean=False)
                moved = await at.run_alone(move, place, topic_id, topic_id=topic_id.bytes)
            then()
            return moved

        return await at.alone(move_it)

    async def topic_id_at(self, place: TopicPartition) -> UUID | None:
        """Topic id of the log at `place`; None if there is no log or no metadata file. Raises Corrupt, OSError."""
        at = self.place(place)

        async def ask() -> UUID | None:
            if at.occupant is not None:
                return at.occupant.topic_id
            return await at.run_alone(self.directories.topic_id_at, place)

        return await at.alone(ask)

    async def settled(self) -> None:
        """Wait until no turn is taken or waited for. Open logs then stay open."""
        for at in tuple(self._places.values()):
            await at.settled()

    # --- checkpoints --------------------------------------------------------------------------------------------

    async def checkpoint(self, high_watermarks: Mapping[PartitionLog, int]) -> None:
        """Write recovery point, log start and high watermark of these logs. Torn and closed logs are left out.

        After an OSError the next call writes the sampled values.
        """
        for local, mark in high_watermarks.items():
            opened = self._open.get(TopicPartition(local.topic, local.partition))
            if opened is not None and opened.log is local and not opened.is_torn:
                self._sample(opened, mark)
        await self.write_checkpoints()

    async def write_checkpoints(self) -> None:
        """Write the sampled values. Raises OSError."""
        await self._write(self._data_dir.checkpoints.sample(()))

    def _sample(self, opened: OpenLog, high_watermark: int) -> None:
        mark = min(high_watermark, opened.log.log_end_offset)  # a follower lowers it after its log was cut
        self._data_dir.checkpoints.sample((opened.log,), {opened.place: mark})
        self._sample_seen(opened)

    async def note_seen_epoch(self, opened: OpenLog, epoch: int) -> None:
        """See `Lease.note_seen_epoch`."""
        opened.seen_epoch = epoch
        self._sample_seen(opened)
        await self._write(self._data_dir.checkpoints.seen_epochs_job())

    def _sample_seen(self, opened: OpenLog) -> None:
        opened.noted_epoch = opened.seen_epoch
        self._data_dir.checkpoints.sample_seen_epoch(opened.place, opened.seen_epoch)

    async def checkpoint_start(self, opened: OpenLog) -> None:
        """See `Lease.checkpoint_start`. This runs in the place's turn, because the start is undefined while the log
        restarts at another offset."""
        await opened.at.alone(lambda: self._note_start(opened))

    async def raise_start(self, opened: OpenLog, offset: int, check: Callable[[], None]) -> None:
        """See `Lease.raise_log_start`. `check`: see `truncate`."""

        async def raise_it() -> None:
            check()
            local = opened.log
            local.check_start(offset)
            local.pending_start_offset = offset
            try:
                await self._note_start(opened)
                check()
                local.advance_log_start(offset)
            finally:
                local.pending_start_offset = 0
                if local.log_start_offset < offset:  # the next role serves the records, so a kill must not take them
                    await self._note_start(opened)

        await opened.at.alone(raise_it)

    async def _note_start(self, opened: OpenLog) -> None:
        await self._write(self._data_dir.checkpoints.sample_start(opened.log))

    async def _write(self, job: CheckpointJob) -> None:
        async with self._checkpointing:
            if not job.is_done:  # an earlier job may have written it
                await self._run(job.run)
