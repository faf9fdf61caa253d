"""All logs of one data directory: opened, created, begun again, closed.

Owns the open logs, each with its flusher; the rounds their syncs go together in; the writing of the checkpoints, one
job at a time. Always true: a log is opened once however often it is asked for; where it would lie nothing else is
overwritten; a log that fails to open or close leaves the others alone (whose each directory is: `log_directories`).
Nothing here needs a bucket or a role: whoever has a role for a log becomes its owner (`log_owner`). Must not know
buckets, leader epochs, topics' configs beyond `LogConfig`. Source: Kafka's LogManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar, TypeVarTuple
from uuid import UUID
from weakref import WeakValueDictionary

from hotstore.file_names import LOG
from hotstore.flush.flusher import Flusher
from hotstore.flush.sync_rounds import SyncRounds
from hotstore.flush.sync_times import SyncTimes
from hotstore.host.data_dir import DataDir
from hotstore.host.lease import Lease
from hotstore.host.log_directories import LogDirectories
from hotstore.host.open_log import OpenLog, Remains
from hotstore.host.place import Place
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from hotstore.recovery.log_creation import Begin
from hotstore.recovery.log_loading import make_log, recover_log, recover_sound
from logformat.checkpoints import PARTITION_METADATA_FILE
from logformat.values import TopicPartition
from seams.tasks import FailureReport
from seams.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)


class _Occupied(Enum):
    """Of a place that came to another topic while its turn was waited for."""

    BY_ANOTHER = "another topic"


class _Found(NamedTuple):
    """What lies, or was made, in a place."""

    local: PartitionLog | None
    is_bare: bool = False


class LogHost:
    """See the module. One for a data directory, whose clean-shutdown marker went before (`DataDir.unmark`)."""

    def __init__(self, data_dir: DataDir, world: World, report: FailureReport | None = None) -> None:
        assert not data_dir.is_marked, data_dir.path
        self._data_dir = data_dir
        self._world = world
        self._report = report
        self._sync_rounds = SyncRounds(world.syncs, world.workers, report, world.afterwards)
        self._open: dict[TopicPartition, OpenLog] = {}
        self._places: WeakValueDictionary[TopicPartition, Place] = WeakValueDictionary()
        self._has_unsynced_name = False  # of a directory that a making left in its place, though it failed
        self._left_unclean = False  # some log, by this process: of those the marker of the last one says nothing
        self._checkpointing = asyncio.Lock()
        self.path = data_dir.path
        self.directories = LogDirectories(data_dir, world)
        self.ballast = data_dir.ballast
        self.late_effect = world.late_effect

    @property
    def was_clean(self) -> bool:
        """The last process left every log whole."""
        return self._data_dir.was_clean

    @property
    def sync_times(self) -> SyncTimes:
        """How long syncs took."""
        return self._sync_rounds.times

    @property
    def open_logs(self) -> list[OpenLog]:
        return list(self._open.values())

    def is_open(self, opened: OpenLog) -> bool:
        return opened.at.occupant is opened

    def found(self, place: TopicPartition, topic_id: UUID) -> OpenLog | None:
        """The open log of this very topic."""
        opened = self._open.get(place)
        return opened if opened is not None and opened.log.topic_id == topic_id.bytes else None

    def place(self, name: TopicPartition) -> Place:
        """The place of this name; the same for as long as somebody has it in hand."""
        found = self._places.get(name)
        if found is None:
            found = self._places[name] = Place(name, self._world.workers, self._report)
        return found

    def lend(self, opened: OpenLog, role: str) -> Lease:
        """The open log, for a role that begins. The role before it is over, and returned its lease."""
        assert self.is_open(opened) and not opened.is_closing, f"{opened.place} is closed, or about to be"
        assert opened.lease is None or opened.lease.is_returned, f"{opened.lease} has it still, {role} wants it"
        opened.lease = Lease(self, opened, role)
        return opened.lease

    # --- opened and created -------------------------------------------------------------------------------------

    def _holds(self, place: TopicPartition) -> bool:
        """Whether a log lies there: whose it is, or that it lost its metadata file, is said when it is opened."""
        disk, path = self._world.disk, self._data_dir.log_path(place.topic, place.partition)
        if disk.stat(path) is None:
            return False
        if disk.stat(f"{path}/{PARTITION_METADATA_FILE}") is not None:
            return True
        return any(name.endswith(LOG) for name in disk.list_dir(path))

    async def open(self, place: TopicPartition, topic_id: UUID, config: LogConfig) -> OpenLog | None:
        """The log of this very topic, recovered, None where there is none; asking again for an open one returns the
        same, but for a torn one, which is opened anew. Raises ForeignLog where another topic's lies here; Retryable
        while that is still open; DamagedLog, MissingSegments, NewerFormat, OSError."""
        return await self._opened(self._recover, place, topic_id, config)

    async def open_or_create(self, place: TopicPartition, topic_id: UUID, config: LogConfig) -> OpenLog:
        """`open`, and `create` where there is none. Raises as `open`."""
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
                    return known
                await self._close(known, clean=False)
            local, is_bare = await at.run_alone(
                find, place, topic_id, config, self._world.clock.wall_ms(), topic_id=topic_id.bytes
            )
            return None if local is None else self._add(at, local, is_bare=is_bare)

        return await self._in_turn(place, topic_id, open_it)

    async def _in_turn(self, name: TopicPartition, topic_id: UUID, work: Callable[[Place], Awaitable[T]]) -> T:
        """`work` in the turn at the name, once no other topic's log is open there."""
        at = self.place(name)

        async def when_vacated() -> T | _Occupied:
            if at.occupant is not None and at.occupant.log.topic_id != topic_id.bytes:
                return _Occupied.BY_ANOTHER
            return await work(at)

        while True:
            await at.vacated_by(topic_id.bytes)
            found = await at.alone(when_vacated)
            if not isinstance(found, _Occupied):
                return found

    # One call of a worker for all that finding a log takes: thousands are opened by a start, or made by a restore.

    def _recover(self, place: TopicPartition, topic_id: UUID, config: LogConfig, now_ms: int) -> _Found:
        if not self._holds(place):
            return _Found(None)
        if self._has_unsynced_name:  # before anything in it is acknowledged
            self._world.disk.sync_dir(self._data_dir.path)
            self._has_unsynced_name = False
        # From the recovery point on: after a clean stop that is little, whichever log it was.
        all_is_read = self._left_unclean
        return _Found(recover_log(self._data_dir, place, config, now_ms, topic_id.bytes, all_is_read=all_is_read))

    def _recover_or_make(self, place: TopicPartition, topic_id: UUID, config: LogConfig, now_ms: int) -> _Found:
        found = self._recover(place, topic_id, config, now_ms)
        return found if found.local is not None else _Found(self._make(place, topic_id, config), is_bare=True)

    def remains(self, place: TopicPartition, sound_end: int) -> Remains:
        """Of a log that is refused for damage at `sound_end`."""
        checkpoints = self._data_dir.checkpoints
        return Remains(checkpoints.seen_epoch(place), checkpoints.high_watermark(place), sound_end)

    async def open_sound(self, place: TopicPartition, topic_id: UUID, config: LogConfig, sound_end: int) -> OpenLog:
        """A log that is refused for damage at `sound_end`, cut there: what follows is given up for good. Raises
        DamagedLog where that is not all that is wrong, Retryable, OSError."""

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
        """A new, empty log; what lies in its place and is no other topic's is set aside first. Raises ForeignLog,
        Retryable, Corrupt, OSError."""

        async def make_it(at: Place) -> OpenLog:
            assert at.occupant is None, place
            local = await at.run_alone(self._make, place, topic_id, config, begin, topic_id=topic_id.bytes)
            return self._add(at, local, is_bare=True)

        return await self._in_turn(place, topic_id, make_it)

    def _make(
        self, place: TopicPartition, topic_id: UUID, config: LogConfig, begin: Begin | None = None
    ) -> PartitionLog:
        self.directories.clear(place, topic_id)
        try:
            return make_log(self._data_dir, place, topic_id.bytes, config, begin)
        except OSError:
            self._has_unsynced_name = True
            raise

    def _add(self, at: Place, local: PartitionLog, *, is_bare: bool = False) -> OpenLog:
        did = local.recovery
        if did.truncated_bytes:
            log.warning(
                "%s: %d bytes are cut off its damaged end, it ends at offset %d: %s",
                at.name,
                did.truncated_bytes,
                local.log_end_offset,
                did.truncated_reason,
            )
        flusher = self._flusher(at, local)
        flusher.seal_soon()  # what found no space before
        checkpoints = self._data_dir.checkpoints
        mark, epoch = checkpoints.high_watermark(at.name), checkpoints.seen_epoch(at.name)
        opened = OpenLog(at, local, flusher, mark, epoch, is_bare=is_bare)
        at.occupy(opened)
        self._open[at.name] = opened
        return opened

    def _flusher(self, at: Place, local: PartitionLog) -> Flusher:
        return Flusher(local, at, self._sync_rounds, report=self._report)

    # --- cut and begun elsewhere: by its lease ------------------------------------------------------------------

    async def truncate(self, opened: OpenLog, offset: int, check: Callable[[], None]) -> None:
        """See `Lease.truncate`. `check` raises where it is not wanted any more when its turn comes."""
        checkpoints = self._data_dir.checkpoints

        async def cut() -> None:
            check()
            await opened.flusher.flush()
            check()
            opened.is_torn = True  # first: a checkpoint meanwhile would claim again what is about to be cut
            async with self._checkpointing:
                await self._run(checkpoints.lower_recovery_point, opened.place, offset)
            await self._replaced(opened, opened.log.truncate_to, offset, self._world.clock.wall_ms())

        await opened.at.alone(cut)

    async def begin_at(self, opened: OpenLog, begin: Begin, check: Callable[[], None], *, forget_start: bool) -> None:
        """See `Lease.begin_at`. `check` as in `truncate`."""

        async def begin_elsewhere() -> None:
            check()
            opened.is_torn = True
            if forget_start:
                async with self._checkpointing:
                    await self._run(self._data_dir.checkpoints.forget_log_start, opened.place)
            else:
                await self.checkpoint_start(opened)  # the first local segment will not tell where the log starts
            await self._replaced(opened, opened.log.start_at, *begin)
            if forget_start:
                opened.log.advance_log_start(begin.offset)  # else the next checkpoint claims what is in no tier

        await opened.at.alone(begin_elsewhere)

    async def _replaced(self, opened: OpenLog, work: Callable[[*Ts], None], *args: *Ts) -> None:
        """While no sync, no sealing job and no other call runs: its flusher ends, another takes over. It is torn until
        then."""
        await opened.flusher.close()
        await opened.at.quiesce()
        try:
            await opened.at.run_alone(work, *args)
        finally:
            opened.at.resume()
        opened.is_torn = False
        opened.high_watermark = min(opened.high_watermark, opened.log.log_end_offset)
        opened.flusher = self._flusher(opened.at, opened.log)

    async def _run(self, function: Callable[[*Ts], None], *args: *Ts) -> None:
        """Of the data directory's own files."""
        await self._world.workers.run(function, *args)

    def believe_log_start(self, place: TopicPartition, offset: int) -> None:
        """A log that could not be opened begins at `offset`, says who knows: open it again."""
        self._data_dir.checkpoints.believe_log_start(place, offset)

    # --- closed and removed -------------------------------------------------------------------------------------

    async def close(self, opened: OpenLog, *, clean: bool) -> bool:
        """Stop its flusher, close its files; whether it is left so that opening needs no scan, as with `clean` it is
        unless it failed. What it says of itself is noted: the next checkpoint writes it. Raises OSError; then it is
        closed all the same. Does nothing to one that is closed. Who is cut off only stops waiting."""

        async def close_it() -> bool:
            return await self._close(opened, clean=clean) if self.is_open(opened) else clean

        if opened.lease is not None:
            await opened.lease.returned()
        return await opened.at.alone(close_it)

    async def _close(self, opened: OpenLog, *, clean: bool) -> bool:
        assert opened.lease is None or opened.lease.is_returned, f"{opened.lease} has it still"
        at, is_whole = opened.at, False
        opened.is_closing = True
        try:
            await opened.flusher.close()
            await at.quiesce()
            is_whole = clean and not opened.log.failure and not opened.is_torn  # of sealing, perhaps, at its last flush
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
        """Close the log of this very topic as it is, if it is open, or about to be. Raises OSError; then it is closed
        all the same."""
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
        """The log of this very topic is opened by no start any more; `delete_set_aside` removes it. Durable when it
        returns; does nothing where none lies, or where that is not wanted any more in its turn. It is closed first
        where it is open. `then` is called in the same turn, once no log of the topic lies there, also when the caller
        was cut off. Raises Corrupt, OSError."""
        await self._moved(self.directories.set_aside, place, topic_id, is_wanted, then)

    async def move_stray(
        self,
        place: TopicPartition,
        topic_id: UUID,
        is_wanted: Callable[[], bool] = lambda: True,
        then: Callable[[], None] = lambda: None,
    ) -> str | None:
        """As `set_aside`, of a log that nothing removes for a week; its new path, None where none lies."""
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
            if at.occupant is None or at.occupant.log.topic_id == topic_id.bytes:  # else another topic's lies there
                if at.occupant is not None:
                    await self._close(at.occupant, clean=False)
                moved = await at.run_alone(move, place, topic_id, topic_id=topic_id.bytes)
            then()
            return moved

        return await at.alone(move_it)

    async def topic_id_at(self, place: TopicPartition) -> UUID | None:
        """Whose log lies there; None where none lies, or it does not say. Raises Corrupt, OSError."""
        at = self.place(place)

        async def ask() -> UUID | None:
            if at.occupant is not None:
                return at.occupant.topic_id
            return await at.run_alone(self.directories.topic_id_at, place)

        return await at.alone(ask)

    async def settled(self) -> None:
        """Wait until nobody has or wants a turn: what is open then stays so."""
        for at in tuple(self._places.values()):
            await at.settled()

    # --- checkpoints --------------------------------------------------------------------------------------------

    async def checkpoint(self, high_watermarks: Mapping[PartitionLog, int]) -> None:
        """Note recovery point, log start and high watermark of these logs, so that the next start looks at less; of
        torn and closed ones nothing. Raises OSError; what was sampled is written by the next one."""
        for local, mark in high_watermarks.items():
            opened = self._open.get(TopicPartition(local.topic, local.partition))
            if opened is not None and opened.log is local and not opened.is_torn:
                self._sample(opened, mark)
        await self.write_checkpoints()

    async def write_checkpoints(self) -> None:
        """Write what was noted. Raises OSError."""
        job = self._data_dir.checkpoints.sample(())
        async with self._checkpointing:
            await self._run(job.run)

    def _sample(self, opened: OpenLog, high_watermark: int) -> None:
        self._data_dir.checkpoints.sample((opened.log,), {opened.place: high_watermark})
        self._sample_seen(opened)

    async def note_seen_epoch(self, opened: OpenLog, epoch: int) -> None:
        """See `Lease.note_seen_epoch`."""
        opened.seen_epoch = epoch
        self._sample_seen(opened)
        job = self._data_dir.checkpoints.seen_epochs_job()
        async with self._checkpointing:
            await self._run(job.run)

    def _sample_seen(self, opened: OpenLog) -> None:
        opened.noted_epoch = opened.seen_epoch
        self._data_dir.checkpoints.sample_seen_epoch(opened.place, opened.seen_epoch)

    async def checkpoint_start(self, opened: OpenLog) -> None:
        """See `Lease.checkpoint_start`."""
        job = self._data_dir.checkpoints.sample_start(opened.log)
        async with self._checkpointing:
            if not job.is_done:  # else with one of those that it waited for
                await self._run(job.run)
