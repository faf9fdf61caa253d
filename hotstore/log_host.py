"""All logs of one data directory: opened, created, begun again, closed.

Owns the open logs, each with its flusher; the rounds their syncs go together in; the writing of the checkpoints, one
job at a time. Always true: a log is opened once however often it is asked for; where it would lie nothing else is
overwritten; a log that fails to open or close leaves the others alone (whose place is whose: `places`). Nothing
here needs a bucket or a role: whoever has a role for a log becomes its owner (`log_owner`). Must not know buckets,
leader epochs, topics' configs beyond `LogConfig`. Source: Kafka's LogManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar, TypeVarTuple
from uuid import UUID
from weakref import WeakValueDictionary

from hotstore.data_dir import DataDir
from hotstore.file_names import LOG
from hotstore.flusher import Flusher
from hotstore.kept_log import make_log, recover_log, recover_sound
from hotstore.log_config import LogConfig
from hotstore.making import Begin
from hotstore.partition_log import PartitionLog
from hotstore.places import Places
from hotstore.sync_rounds import SyncRounds
from hotstore.sync_times import SyncTimes
from logformat.checkpoints import PARTITION_METADATA_FILE
from logformat.leader_epochs import LeaderEpochs
from logformat.producer_snapshot import ProducerEntry
from logformat.values import TopicPartition
from seams.tasks import FailureReport
from seams.workers import run_to_end
from seams.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = logging.getLogger(__name__)


class OpenLog:
    """A recovered log and what makes it durable. `high_watermark`: as checkpointed, within the log as it is; a replica
    starts from it. `seen_epoch`: the last leader epoch in which it agreed with its leader, or led, as checkpointed or
    as its records say (UNDEFINED_EPOCH: none). `is_torn`: it is being cut, or begins elsewhere, or that failed in the
    middle: what it says of itself is not what lies on the disk. `is_bare`: this process made its directory, and whoever
    puts a file of his own there says here that it is bare no more: nothing has to be looked for."""

    __slots__ = ("flusher", "high_watermark", "is_bare", "is_torn", "log", "noted_epoch", "seen_epoch")

    def __init__(
        self, local: PartitionLog, flusher: Flusher, high_watermark: int, noted_epoch: int, *, is_bare: bool
    ) -> None:
        self.log = local
        self.is_torn = False
        self.is_bare = is_bare
        self.flusher = flusher
        self.high_watermark = max(local.log_start_offset, min(high_watermark, local.log_end_offset))
        self.noted_epoch = noted_epoch
        """What the checkpoint was last told."""
        self.seen_epoch = max(noted_epoch, local.leader_epoch)

    @property
    def place(self) -> TopicPartition:
        return TopicPartition(self.log.topic, self.log.partition)


class _Found(NamedTuple):
    """What lies, or was made, in a place."""

    local: PartitionLog | None
    is_bare: bool = False


class Remains(NamedTuple):
    """What is left of a log that is refused: as its checkpoints say, and where the damage begins."""

    seen_epoch: int
    high_watermark: int
    end: int


class LogHost:
    """See the module. One for a data directory, whose clean-shutdown marker went before (`DataDir.unmark`)."""

    def __init__(self, data_dir: DataDir, world: World, report: FailureReport | None = None) -> None:
        assert not data_dir.is_marked, data_dir.path
        self._data_dir = data_dir
        self._world = world
        self._report = report
        self._sync_rounds = SyncRounds(world.syncs, world.workers, report, world.afterwards)
        self._open: dict[tuple[bytes, int], OpenLog] = {}
        self._has_unsynced_name = False  # of a directory that a making left in its place, though it failed
        self._left_unclean = False  # some log, by this process: of those the marker of the last one says nothing
        self._turns: WeakValueDictionary[tuple[bytes, int], asyncio.Lock] = WeakValueDictionary()
        self._checkpointing = asyncio.Lock()
        self.path = data_dir.path
        self.places = Places(data_dir, world)
        self.ballast = data_dir.ballast

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
        return self._open.get(_key(opened)) is opened

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
        same, but for a torn one, which is opened anew. Raises ForeignLog where another topic's lies here; DamagedLog,
        MissingSegments, NewerFormat, OSError."""
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
        async with self._turn(place, topic_id):
            known = self._open.get((topic_id.bytes, place.partition))
            if known is not None and known.is_torn:
                await self.close(known, clean=False)
            elif known is not None:
                return known
            local, is_bare = await self._run(find, place, topic_id, config, self._world.clock.wall_ms())
            return None if local is None else self._add(local, is_bare=is_bare)

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
        DamagedLog where that is not all that is wrong, OSError."""
        now_ms = self._world.clock.wall_ms()
        async with self._turn(place, topic_id), self._checkpointing:
            return self._add(
                await self._run(recover_sound, self._data_dir, place, config, now_ms, topic_id.bytes, sound_end)
            )

    async def create(
        self, place: TopicPartition, topic_id: UUID, config: LogConfig, begin: Begin | None = None
    ) -> OpenLog:
        """A new, empty log; what lies in its place and is no log is set aside first. Raises OSError."""
        async with self._turn(place, topic_id):
            return self._add(await self._run(self._make, place, topic_id, config, begin), is_bare=True)

    def _make(
        self, place: TopicPartition, topic_id: UUID, config: LogConfig, begin: Begin | None = None
    ) -> PartitionLog:
        self.places.clear(place)
        try:
            return make_log(self._data_dir, place, topic_id.bytes, config, begin)
        except OSError:
            self._has_unsynced_name = True
            raise

    def _add(self, local: PartitionLog, *, is_bare: bool = False) -> OpenLog:
        did, place = local.recovery, TopicPartition(local.topic, local.partition)
        if did.truncated_bytes:
            log.warning(
                "%s: %d bytes are cut off its damaged end, it ends at offset %d: %s",
                place,
                did.truncated_bytes,
                local.log_end_offset,
                did.truncated_reason,
            )
        flusher = Flusher(local, self._world.workers, self._sync_rounds, report=self._report)
        flusher.seal_soon()  # what found no space before
        checkpoints = self._data_dir.checkpoints
        mark, epoch = checkpoints.high_watermark(place), checkpoints.seen_epoch(place)
        opened = OpenLog(local, flusher, mark, epoch, is_bare=is_bare)
        self._open[_key(opened)] = opened
        return opened

    def _turn(self, place: TopicPartition, topic_id: UUID) -> asyncio.Lock:
        return self._turns.setdefault((topic_id.bytes, place.partition), asyncio.Lock())

    async def _run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """In a worker, to its end: a topic may be deleted, and made again, while its log is opened."""
        return await run_to_end(self._world.workers, function, *args)

    # --- begun again --------------------------------------------------------------------------------------------

    async def start_at(
        self,
        opened: OpenLog,
        offset: int,
        epochs: LeaderEpochs,
        producers: Iterable[ProducerEntry],
        *,
        forget_start: bool,
    ) -> None:
        """Drop everything local and begin at `offset`. `forget_start`: nothing below it is in any tier. Raises OSError,
        after which the log must be closed and opened again."""
        if forget_start:
            await self._run(self._data_dir.checkpoints.forget_log_start, opened.place)
        await self._run(opened.log.start_at, offset, epochs, producers)

    async def truncate(self, opened: OpenLog, offset: int) -> None:
        """Drop every batch that ends above `offset` (`PartitionLog.truncate_to`), durably. Nothing else may append or
        read; what was appended is flushed first. Raises OSError, LogFailed, after which the log must be closed and
        opened again."""
        checkpoints = self._data_dir.checkpoints
        await opened.flusher.flush()
        opened.is_torn = True  # first: a checkpoint meanwhile would claim again what is about to be cut
        async with self._checkpointing:
            await self._run(checkpoints.lower_recovery_point, opened.place, offset)
        await self._alone(opened, opened.log.truncate_to, offset, self._world.clock.wall_ms())

    async def begin_at(
        self,
        opened: OpenLog,
        offset: int,
        epochs: LeaderEpochs,
        producers: Iterable[ProducerEntry],
        *,
        forget_start: bool,
    ) -> None:
        """`start_at` of a log that was appended to. Raises as `truncate`."""
        opened.is_torn = True
        if forget_start:
            async with self._checkpointing:
                await self._run(self._data_dir.checkpoints.forget_log_start, opened.place)
        else:
            await self.checkpoint_start(opened.log)  # the first local segment will not tell where the log starts
        await self._alone(opened, opened.log.start_at, offset, epochs, producers)
        if forget_start:
            opened.log.advance_log_start(offset)  # else the next checkpoint claims what is in no tier

    async def _alone(self, opened: OpenLog, work: Callable[[*Ts], None], *args: *Ts) -> None:
        """While no sync and no sealing job runs: its flusher ends, another takes over. It is torn until then."""
        await opened.flusher.close()
        await self._run(work, *args)
        opened.is_torn = False
        opened.flusher = Flusher(opened.log, self._world.workers, self._sync_rounds, report=self._report)

    def believe_log_start(self, place: TopicPartition, offset: int) -> None:
        """A log that could not be opened begins at `offset`, says who knows: open it again."""
        self._data_dir.checkpoints.believe_log_start(place, offset)

    # --- closed and removed -------------------------------------------------------------------------------------

    async def close(self, opened: OpenLog, *, clean: bool) -> bool:
        """Stop its flusher, close its files; whether it is left so that opening needs no scan, as with `clean` it is
        unless it failed. Raises OSError; then it is closed all the same. Does nothing to one that is closed."""
        if not self.is_open(opened):
            return clean
        try:
            await opened.flusher.close()
            clean &= not opened.log.failure and not opened.is_torn  # of sealing, perhaps, after its last flush
            await self._run(opened.log.close, clean)
        except BaseException:
            self._left_unclean = True
            raise
        finally:
            if self.is_open(opened):
                del self._open[_key(opened)]
        self._left_unclean |= not clean
        return clean

    # --- checkpoints --------------------------------------------------------------------------------------------

    async def checkpoint(self, high_watermarks: Mapping[PartitionLog, int]) -> None:
        """Note recovery point, log start and high watermark of these logs, so that the next start looks at less; of
        torn ones nothing. Raises OSError; what was sampled is written by the next one."""
        found = ((of, self._open.get((of.topic_id, of.partition))) for of in high_watermarks)
        whole = {of: opened for of, opened in found if opened is None or not opened.is_torn}
        marks = {TopicPartition(of.topic, of.partition): high_watermarks[of] for of in whole}
        job = self._data_dir.checkpoints.sample(whole, marks)
        for opened in whole.values():
            if opened is not None:
                self._sample_seen(opened)
        async with self._checkpointing:
            await self._world.workers.run(job.run)

    async def note_seen_epoch(self, opened: OpenLog, epoch: int) -> None:
        """Durably: this log leads in `epoch`, whatever it held before. Raises OSError."""
        opened.seen_epoch = epoch
        self._sample_seen(opened)
        job = self._data_dir.checkpoints.seen_epochs_job()
        async with self._checkpointing:
            await self._world.workers.run(job.run)

    def _sample_seen(self, opened: OpenLog) -> None:
        opened.noted_epoch = opened.seen_epoch
        self._data_dir.checkpoints.sample_seen_epoch(opened.place, opened.seen_epoch)

    async def checkpoint_start(self, local: PartitionLog) -> None:
        """Make a log's start durable: its bytes below may go. Many at once are one write. Raises OSError."""
        job = self._data_dir.checkpoints.sample_start(local)
        async with self._checkpointing:
            if not job.is_done:  # else with one of those that it waited for
                await self._world.workers.run(job.run)


def _key(opened: OpenLog) -> tuple[bytes, int]:
    return opened.log.topic_id, opened.log.partition
