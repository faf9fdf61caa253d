"""One pass over the bucket's part of a compacted log, as its leader's job (ADR 32).

The dirty objects fill the map of keys; if it becomes full, the pass covers only the offsets before that point. Then the
objects below are read from the oldest on, rewritten without superseded records, and replaced in the manifest. Ascending
order makes tombstones safe: when a tombstone is removed, all objects below it were already cleaned. A pass ends when
its role or epoch ends, the configuration changes, or its objects are withdrawn. Committed replacements stay;
uncommitted objects are garbage. The empty last batches of producers are removed, because a recovery from the bucket
reads producers from the last object's footer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar, TypeVarTuple

from msgspec.structs import replace

from coldstore.keys import SegmentKey
from coldstore.manifest.manifest import EditRefused, Manifest, RemoteSegment
from coldstore.manifest.replacement import room_for_replaced, set_clean_end
from coldstore.object_store import ObjectMissing
from coldstore.segments.segment_object import SegmentFooter
from hotstore.cleaning.clean_pass import STEP_BYTES, MapTooSmall
from hotstore.cleaning.cleanable import Cleanable
from hotstore.cleaning.engine import CleanerLost
from logformat.compaction.rules import LOAD_FACTOR, CleanRules
from logformat.errors import Corrupt, Fenced
from seams.crash_points import reach
from tiering.cleaning.aborted import find_aborted
from tiering.cleaning.cold_plan import GROUP_MAX, ColdForecast, Room, dirt_of, forecast, joins
from tiering.cleaning.cold_rewrite import cleaned_body, is_unchanged
from tiering.cleaning.pass_objects import PassObjects, PolicyChanged
from tiering.cleaning.scratch import ColdCleaning, ScratchFiles
from tiering.copying.copier import Copier
from tiering.copying.segment_body import Body
from tiering.partition_state import Block, TieredPartition
from tiering.tier_config import TierConfig

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CHECK_S: Final = 300.0
"""Time between two checks of a compacted partition without uploads; a pass may become due by the age of records."""
AGAIN_S: Final = 1.0
"""Time between two passes if the map of keys was full in the first one."""
COMMIT_OBJECTS: Final = 8
"""New objects that one edit of the manifest names: writing a root costs as much as writing an object."""


@dataclass(slots=True)
class _Pass:
    """`era`: see `Verified`; in a later era the objects may be withdrawn. `end`: the pass reads up to this offset.
    `map_end`: the map knows all keys of the bucket in [first dirty, map_end)."""

    config: TierConfig
    era: int
    entries: Sequence[RemoteSegment]
    dirt: Cleanable
    files: ScratchFiles
    end: int = 0
    map_end: int = 0
    old: list[RemoteSegment] = field(default_factory=list)
    new: list[RemoteSegment] = field(default_factory=list)
    unnamed: list[SegmentKey] = field(default_factory=list)
    """Uploaded objects that no commit references yet."""
    read_bytes: int = 0
    kept_bytes: int = 0


class ColdCleaner:
    """The cold cleaner of one partition. `shared` None: this process cleans no bucket."""

    def __init__(self, partition: TieredPartition, copier: Copier, shared: ColdCleaning | None) -> None:
        self._partition = partition
        self._copier = copier
        self._shared = shared
        self.stale_share: float | None = None
        """Share of stale bytes in the last pass."""
        self.on_replaced: Callable[[], None] = lambda: None
        """Called after each commit, when the grace period of the replaced objects begins."""

    @property
    def is_wanted(self) -> bool:
        """Whether the policy is `compact`, the topic is tiered, and this process cleans. Topics with the policy
        `delete` only are never touched.
        """
        partition, config = self._partition, self._partition.config
        is_tiered = config.enabled and not config.internal and not config.copy_disable
        return self._shared is not None and self._shared.is_on and is_tiered and partition.log.config.compacts

    def forecast(self) -> ColdForecast:
        """See `cold_plan.forecast`; nothing for a topic that is not compacted."""
        manifest = self._partition.manifest
        if manifest is None or not self._partition.config.enabled or not self._partition.log.config.compacts:
            return ColdForecast()
        return forecast(manifest, self._partition.log.config, self.stale_share)

    @property
    def stands_still(self) -> str | None:
        """The reason why the last pass failed, with the object's name; None if it succeeded."""
        shared, of = self._shared, self._partition
        return None if shared is None else shared.stands_still.get((of.topic_id, of.partition))

    def forget(self) -> None:
        """The role ended; the next leader reports."""
        if self._shared is not None:
            self._shared.stands_still.pop((self._partition.topic_id, self._partition.partition), None)

    async def run(self) -> float | None:
        """Run a pass if it is due. Returns the seconds until the next check. Raises Retryable, OSError."""
        partition, shared = self._partition, self._shared
        if shared is None or not self.is_wanted or not partition.claimed or Block.BEHIND in partition.blocks:
            self.forget()
            return None  # woken by the claim, copies and config changes
        manifest = partition.manifest
        if manifest is None or not partition.is_complete() or partition.manifests.unanswered.withdraws:
            return CHECK_S
        place = (partition.topic_id, partition.partition)
        try:
            is_cut = await self._clean_if_due(shared, manifest)
        except Fenced:
            return None
        except PolicyChanged as changed:
            log.info("%s: a pass over the bucket ended: %s", partition.name, changed)
            return CHECK_S
        except EditRefused as moved:
            log.info("%s: a pass over the bucket is planned again: %s", partition.name, moved)
            return CHECK_S
        except (Corrupt, ObjectMissing, CleanerLost, MapTooSmall) as failure:
            partition.check_not_fenced()
            shared.counters.failed_passes += 1
            shared.stands_still[place] = str(failure)
            log.error("%s: the bucket is not compacted, but served as before: %s", partition.name, failure)
            return CHECK_S
        shared.stands_still.pop(place, None)
        return AGAIN_S if is_cut else CHECK_S

    # ── a pass ───────────────────────────────────────────────────────────────────────────────────────────────────
    async def _clean_if_due(self, shared: ColdCleaning, manifest: Manifest) -> bool:
        """Run a pass if one is due. Returns whether its map was full, so that dirty objects are left for another."""
        partition = self._partition
        start, era, config = partition.log_start_offset, partition.verified.era, partition.config
        entries = [entry async for entry in partition.manifests.segments(start) if entry.end_offset > start]
        now_ms = partition.world.clock.wall_ms()
        dirt = dirt_of(entries, manifest.clean_end_offset, now_ms, partition.log.config)
        if not dirt.is_due or room_for_replaced(manifest) < GROUP_MAX:
            return False
        files = await shared.open_files()
        try:
            work = _Pass(config, era, entries, dirt, files)
            is_whole = await self._pass(shared, work, now_ms)
        finally:
            await shared.remove_files(files)
        return is_whole and work.map_end < work.end

    async def _pass(self, shared: ColdCleaning, work: _Pass, now_ms: int) -> bool:
        """Returns False if the pass ended early (`_rewrite`)."""
        partition, config = self._partition, shared.config()
        share = min(config.io_buffer_load_factor / LOAD_FACTOR, 1.0)
        objects = PassObjects(partition, shared, work.files, lambda: self._check(work))
        aborted = await find_aborted(work.entries, work.dirt, objects.footer)
        work.end = aborted.end
        # A pass may remove a record as late as in its last hour. The record's tombstone is kept for its full time after
        # that.
        moved_bytes = 2 * (work.dirt.clean_bytes + 2 * work.dirt.dirty_bytes)  # more than it reads and writes
        retention_ms = partition.log.config.delete_retention_ms + shared.duration_ms(moved_bytes)
        # A replica may serve a deleted record above its clean end. A reader of this record needs the tombstone in the
        # bucket when the replica's local log starts above both.
        rules = CleanRules(
            now_ms,
            retention_ms,
            aborted=aborted.transactions,
            tombstones_end=partition.clean_end(),
        )
        try:
            await shared.step(shared.engine.begin, int(config.map_bytes * share), rules)
            await self._map(shared, work, objects)
            reach("cold.read")
            is_whole = await self._rewrite(shared, work, objects)
        finally:
            for key in work.unnamed:
                self._copier.remember_garbage(key)
            await shared.step(shared.engine.end)
        shared.counters.passes += 1
        self.stale_share = 1 - work.kept_bytes / work.read_bytes if work.read_bytes else None
        if is_whole:
            result = f"the bucket is compacted below {work.map_end}"
        else:
            result = "a pass over the bucket ended early: too many replaced objects wait for the end of their grace"
        log.info("%s: %s: %d bytes became %d", partition.name, result, work.read_bytes, work.kept_bytes)
        return is_whole

    def _check(self, work: _Pass) -> None:
        """Check before each step that the pass may go on. Raises LeaseOver, Fenced, PolicyChanged."""
        partition = self._partition
        partition.lease.check()
        partition.check_not_fenced()
        if partition.config != work.config or not self.is_wanted:
            raise PolicyChanged("the topic's configs were changed")
        if partition.verified.era != work.era:  # the configs may be the same again
            raise PolicyChanged("tiering was switched off, and the objects were withdrawn")

    async def _map(self, shared: ColdCleaning, work: _Pass, objects: PassObjects) -> None:
        """Fill the map from the dirty objects."""
        dirt, engine = work.dirt, shared.engine
        work.map_end = dirt.first_dirty
        for entry in work.entries:
            if entry.end_offset <= dirt.first_dirty or entry.base_offset >= work.end:
                continue
            file, footer = await objects.whole(entry, is_read_again=True)
            position = 0
            if entry.base_offset < dirt.first_dirty:
                position = footer.offset_index.lookup(dirt.first_dirty).position
            while position < entry.log_bytes:
                self._check(work)
                step = min(STEP_BYTES, entry.log_bytes - position)
                mapped = await self._engine_step(entry, shared, engine.map, file, position, step)
                position += mapped.taken_bytes
                work.map_end = max(work.map_end, mapped.end_offset)
                if mapped.is_full and work.map_end <= dirt.first_dirty:
                    raise MapTooSmall("one batch has more keys than log.cleaner.dedupe.buffer.size holds: raise it")
                if mapped.is_full:
                    return

    async def _engine_step(
        self, entry: RemoteSegment, shared: ColdCleaning, function: Callable[[*Ts], T], *args: *Ts
    ) -> T:
        """A step over the object's bytes; an error for damage names the object."""
        try:
            return await shared.step(function, *args)
        except Corrupt as damaged:
            key = entry.key(self._partition.topic_id, self._partition.partition)
            raise Corrupt(f"object {key}: {damaged}") from damaged

    async def _rewrite(self, shared: ColdCleaning, work: _Pass, objects: PassObjects) -> bool:
        """Rewrite the objects below the map's end. Returns False if the root has no room for more replaced objects; the
        next pass then begins again."""
        partition = self._partition
        below = deque(entry for entry in work.entries if entry.base_offset < work.map_end)
        room = Room(partition.log.config.segment_bytes, work.dirt.first_dirty, await self._borders())
        while True:
            # Retention may have deleted objects since the pass was planned, and the manifest refuses to replace them.
            while below and below[0].end_offset <= partition.log_start_offset:
                below.popleft()
            if not below:
                await self._commit(shared, work, is_last=True)
                return True
            manifest = partition.manifest
            assert manifest is not None
            most = room_for_replaced(manifest) - len(work.old)
            if most < 1:
                await self._commit(shared, work, is_last=False)
                return False
            room = replace(room, objects_max=min(most, GROUP_MAX))
            group, body = await self._clean(shared, work, objects, below, room)
            base = group[0].base_offset
            is_next = not work.old or (work.old[-1].end_offset == base and base not in room.borders)
            if body is None or not is_next or len(work.new) >= COMMIT_OBJECTS:
                await self._commit(shared, work, is_last=False)
            if body is not None:
                await self._upload(shared, work, body)
                work.old += group
                work.new.append(body.entry)

    async def _borders(self) -> frozenset[int]:
        """End offsets of pages. No new object crosses them, so that an edit rewrites only one page."""
        manifest = self._partition.manifest
        assert manifest is not None
        ends = {page.end_offset async for page in self._partition.manifests.leaves()}
        return frozenset(ends)

    async def _clean(
        self, shared: ColdCleaning, work: _Pass, objects: PassObjects, below: deque[RemoteSegment], room: Room
    ) -> tuple[Sequence[RemoteSegment], Body | None]:
        """Take the first objects of `below` that have `room` in one, and clean them. Returns them and their new object,
        which is in the scratch files; None if no record of the only object was removed."""
        partition, engine, outputs = self._partition, shared.engine, work.files.outputs
        group: list[RemoteSegment] = []
        footers: list[SegmentFooter] = []
        base_offset, interval = below[0].base_offset, partition.log.config.index_interval_bytes
        kept_bytes = 0
        while below and (not group or joins(group, kept_bytes, below[0], room)):
            entry = below.popleft()
            file, footer = await objects.whole(entry, is_read_again=False)
            if not group:
                await shared.step(engine.begin_segment, base_offset, interval, *outputs)
            group.append(entry)
            footers.append(footer)
            position = 0
            while position < entry.log_bytes:
                self._check(work)
                step = min(STEP_BYTES, entry.log_bytes - position)
                position += await self._engine_step(entry, shared, engine.clean, file, position, step)
            await objects.done(entry)
            kept_bytes = await shared.step(outputs[0].size)
        cleaned = await shared.step(engine.finish_segment)
        work.read_bytes += sum(entry.log_bytes for entry in group)
        work.kept_bytes += cleaned.size
        if cleaned.end_offset != group[-1].end_offset:
            raise Corrupt(
                f"{partition.name}: the pass cleaned up to {cleaned.end_offset}, not up to {group[-1].end_offset}"
            )
        if len(group) == 1 and await shared.step(is_unchanged, outputs[0], cleaned.size, footers[0]):
            return group, None
        uuid = partition.world.rng.uuid()
        key = SegmentKey(partition.topic_id, partition.partition, base_offset, partition.epoch, uuid)
        body = await shared.step(
            cleaned_body, key, work.config.topic, outputs[0], cleaned.size, cleaned.end_offset, footers, work.map_end
        )
        reach("cold.written")
        return group, body

    async def _upload(self, shared: ColdCleaning, work: _Pass, body: Body) -> None:
        partition, upload = self._partition, body.upload
        self._check(work)
        key = body.entry.key(partition.topic_id, partition.partition)
        work.unnamed.append(key)
        await self._copier.upload(key, upload)
        reach("cold.uploaded")
        shared.counters.written_bytes += upload.size
        await shared.took(upload.size)

    async def _commit(self, shared: ColdCleaning, work: _Pass, *, is_last: bool) -> None:
        """Commit the objects rewritten since the last commit. The last commit records the offset below which the bucket
        is clean."""
        partition = self._partition

        def finish(manifest: Manifest) -> Manifest:
            self._check(work)  # an earlier commit, for which this one waited, may have withdrawn the objects
            return set_clean_end(manifest, work.map_end)

        self._check(work)
        old, new = tuple(work.old), tuple(work.new)
        work.old, work.new = [], []
        if old:
            await partition.replace(old, new, finish if is_last else None, due_by=work.config)
            reach("cold.committed")
            work.unnamed.clear()
            shared.counters.replaced_objects += len(old)
            self.on_replaced()
            freed = sum(entry.object_bytes for entry in old) - sum(entry.object_bytes for entry in new)
            shared.counters.freed_bytes += max(freed, 0)
            await self._copier.verify_committed(new)  # the logs on the disks are cleaned below the verified end
        elif is_last:
            await partition.commit(finish, releases=True, due_by=work.config)
