"""Attaches the tier of an open log for one leader epoch, and detaches it.

A log has one tier at a time, for the newest epoch in which it led. After `attach` the log may append up to
`log.reserved_end`; claim, copy and expiry have not begun. After detaching the log stays open for the next leader role;
until then it accepts no appends as a leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from coldstore.manifest.manifest import Manifest
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.object_store import AccessRefused, ObjectStore
from coldstore.roots.root import RootMissing
from hotstore.errors import ForeignLog, MissingSegments
from hotstore.host.lease import Lease
from hotstore.host.log_host import LogHost
from hotstore.host.open_log import OpenLog
from hotstore.log.log_config import LogConfig
from hotstore.log.partition_log import PartitionLog
from logformat.errors import Retryable, ThermoclineError
from logformat.values import TopicPartition
from seams.files.disk import is_full
from seams.world import World
from tiering.expiry.local_gaps import local_gaps
from tiering.opening.cold_start import ColdStart, begin_at_end, claim_and_reserve, state_at
from tiering.opening.log_starts import is_held_below
from tiering.opening.read_ahead import ReadAhead
from tiering.opening.reservation import ReportedEnd
from tiering.opening.tail_recovery import TailRecovery
from tiering.opening.unanswered_gap import is_unanswered
from tiering.partition_state import Block, TieredPartition
from tiering.partition_tier import PartitionTier
from tiering.tier_config import NO_SESSION, Lead, TierLimits

log = logging.getLogger(__name__)

GIVE_BACK_S: Final = 30.0
Key = tuple[UUID, int]


class AttachedTiers:
    """The tiers of one broker's logs. `make_tier` adds the broker's jobs to a led partition."""

    def __init__(
        self,
        store: ObjectStore,
        world: World,
        logs: LogHost,
        limits: TierLimits,
        make_tier: Callable[[TieredPartition], PartitionTier],
        is_fresh: Callable[[], bool],
        is_complete: Callable[[], bool],
        ahead: ReadAhead,
    ) -> None:
        self._store = store
        self._world = world
        self._logs = logs
        self._limits = limits
        self._make_tier = make_tier
        self._is_fresh = is_fresh
        self._is_complete = is_complete
        self._ahead = ahead
        self._pages = self._ahead.pages
        self._tiers: dict[Key, PartitionTier] = {}
        self._manifests: dict[Key, tuple[int, ManifestStore]] = {}  # for open and opening logs, with their leader epoch
        self._holes: dict[Key, tuple[int, int]] = {}  # leader epoch and hole end: see `claim_and_reserve`
        self._led: dict[Key, int] = {}  # last leader epoch in this process, while the log stays open
        self._reported: dict[Key, ReportedEnd] = {}  # for logs that followed, or led with followers
        self._sessions: dict[Key, int] = {}  # broker session in which an attached log is led
        self._store_away = False

    def __iter__(self) -> Iterator[PartitionTier]:
        return iter(tuple(self._tiers.values()))

    async def open_log(self, place: TopicPartition, topic_id: UUID, config: LogConfig, lead: Lead) -> OpenLog:
        """Open and return the log to lead. The bucket is read only if another topic's log has the directory, if the
        topic is no longer tiered and only the bucket held its first segments, or if no broker holds the log.

        Raises Retryable (the bucket is needed but does not answer), Fenced, Corrupt (ForeignLog, DamagedLog),
        OSError."""
        logs = self._logs
        try:
            if lead.new or not lead.holds_alone or lead.unclean_after is not None:
                return await logs.open_or_create(place, topic_id, config)
            return await logs.open(place, topic_id, config) or await self._make_again(place, topic_id, config, lead)
        except ForeignLog as foreign:
            await self._leave_to_its_topic(foreign, place, topic_id, lead)
            return await logs.create(place, topic_id, config)
        except MissingSegments as missing:
            manifest = await self._begin_at(missing, place, topic_id, lead)
            opened = await self._open_as_of(manifest, missing, place, topic_id, config)
            return opened or await logs.create(place, topic_id, config)

    async def open_copy(self, place: TopicPartition, topic_id: UUID, config: LogConfig) -> OpenLog | None:
        """Open and return the log to follow with; None if there is none. The bucket is read only if the topic is no
        longer tiered and only the bucket held its first segments. Raises as `open_log`."""
        try:
            return await self._logs.open(place, topic_id, config)
        except MissingSegments as missing:
            manifest = await self.manifests_to_read(topic_id, place.partition).load()
            if manifest is None:
                raise
            return await self._open_as_of(manifest, missing, place, topic_id, config)

    async def _open_as_of(
        self, manifest: Manifest, missing: MissingSegments, place: TopicPartition, topic_id: UUID, config: LogConfig
    ) -> OpenLog | None:
        """Open a log whose files begin above its start offset, at `missing.first`. No record below this offset is
        needed if the root's log start is at or above it. Otherwise objects must hold these records; if they do not, the
        records are lost, and `missing` is raised.
        """
        if manifest.log_start_offset >= missing.first:
            self._logs.raise_log_start(place, missing.first)
        elif not is_held_below(missing.first, manifest):
            raise missing
        opened = await self._logs.open(place, topic_id, replace(config, tiered=True))
        if opened is not None:
            opened.log.reconfigure(config)
        return opened

    async def _leave_to_its_topic(self, foreign: ForeignLog, place: TopicPartition, topic_id: UUID, lead: Lead) -> None:
        """Move away the directory of an earlier topic with this name (C9): for deletion if that topic is known to be
        deleted, otherwise as a stray (R24).

        Raises `foreign` if the partition has a root, because such a partition was served before and has its own log."""
        if not lead.new and await self._manifests_of((topic_id, place.partition), lead).load() is not None:
            raise foreign
        before = await self._logs.topic_id_at(place)
        if before is not None and lead.is_deleted(before):
            await self._logs.set_aside(place, before)
        elif before is not None:
            await self._logs.move_stray(place, before)

    async def _begin_at(self, missing: MissingSegments, place: TopicPartition, topic_id: UUID, lead: Lead) -> Manifest:
        """Claim the root of a log whose first segments are only in the bucket, and return it. That happens if the topic
        was tiered until the last process ended, or until it got replicas. Raises `missing` if the bucket does not hold
        these segments, because they are lost then."""
        first, manifests = missing.first, self._manifests_of((topic_id, place.partition), lead)
        try:
            manifest = await manifests.claim(lead.leader_epoch, lead.tier.topic, dict(lead.tier.configs))
        except RootMissing:
            raise missing from None
        if manifest.bucket_end_offset < first:
            raise missing
        if manifest.log_start_offset < first and not is_held_below(first, manifest):
            # No object holds the records below `first`, but the bucket's snapshot holds their state.
            manifest = await manifests.commit(lambda m: m.set_log_start(first))
        return manifest

    async def _make_again(self, place: TopicPartition, topic_id: UUID, config: LogConfig, lead: Lead) -> OpenLog:
        """Create a log again that this broker lost and that no other broker holds. It begins at the end offset of the
        claimed root. Without a root it begins empty, and `attach` handles that."""
        key = topic_id, place.partition
        if (read := self._ahead.take(key)) is not None:
            self._manifests.setdefault(key, (lead.leader_epoch, read))
        manifests = self._manifests_of(key, lead)
        try:
            manifest = await self._claim_to_make(key, manifests, lead)
        except RootMissing:
            return await self._logs.create(place, topic_id, config)
        deadline_s = self._limits.store_timeout_s
        begin = await begin_at_end(
            self._store, manifests, key, manifest, lead.leader_epoch, deadline_s, self._ahead.cold
        )
        return await self._logs.create(place, topic_id, config, begin)

    async def _claim_to_make(self, key: Key, manifests: ManifestStore, lead: Lead) -> Manifest:
        """Claim the root of a log that is created again. The claim reserves offsets once in an epoch."""
        is_done = self._holes.get(key, (-1, 0))[0] == lead.leader_epoch
        block = 0 if is_done else self._limits.reservation_offsets
        topic, configs = lead.tier.topic, dict(lead.tier.configs)
        manifest, hole_end = await claim_and_reserve(manifests, lead.leader_epoch, topic, configs, block)
        if not is_done:
            self._holes[key] = lead.leader_epoch, hole_end
        return manifest

    def _manifests_of(self, key: Key, lead: Lead) -> ManifestStore:
        """One manifest store per epoch, so that `attach` uses the root read by the opening."""
        found = self._manifests.get(key)
        if found is not None and found[0] == lead.leader_epoch:
            return found[1]
        made = self.manifests_to_read(*key)
        self._manifests[key] = lead.leader_epoch, made
        return made

    async def attach(self, lease: Lease, lead: Lead) -> PartitionTier:
        """The log's tier for the leader that holds `lease`.

        Raises Retryable (the bucket is needed but does not answer; try again), Fenced, Corrupt (damage: a person
        decides), StorageFailed and OSError (close the log and open it again)."""
        opened = lease.opened
        key = opened.topic_id, opened.log.partition
        assert key not in self._tiers, f"{lease}: the tier of the previous epoch is still attached"
        partition = TieredPartition(
            *key,
            lead.leader_epoch,
            lease=lease,
            manifests=self._manifests_of(key, lead),
            store=self._store,
            world=self._world,
            config=lead.tier,
            limits=self._limits,
            on_fenced=lead.on_fenced,
            on_behind=lead.on_behind,
            is_alone=lead.is_alone,
            is_fresh=self._is_fresh,
            is_complete=self._is_complete,
        )
        tail = TailRecovery(
            partition,
            was_clean=self._logs.was_clean,
            new=lead.new,
            followed=not lead.holds_alone,
            led_before=self._led.get(key),
            reported=self._reported_in(key, lead),
            hole_end=self._hole_end(key, opened, lead),
        )
        if lead.unclean_after is None:
            await tail.secure()
        else:
            await tail.begin_uncleanly(lead.unclean_after)
        if opened.log.reserved_end <= opened.log.log_end_offset:
            await self._reserve_first(partition)
        is_gap_unanswered = False
        if not lead.new:
            # A gap may be inside an open transaction, or include the beginning of one.
            in_bucket = () if partition.manifest is None else partition.manifest.gaps
            partition.local_gaps, is_gap_unanswered = await lease.call(_look_for_gaps, opened.log, in_bucket)
        tier = self._make_tier(partition)
        tier.lost, tier.is_gap_unanswered = tail.lost, is_gap_unanswered
        self._tiers[key] = tier
        self._led[key] = lead.leader_epoch
        self._reported.pop(key, None)
        self._holes.pop(key, None)
        self._sessions[key] = lead.broker_epoch
        return tier

    def _hole_end(self, key: Key, opened: OpenLog, lead: Lead) -> int | None:
        """The root's reserved end before the claim, if this log was created from a claim in this epoch; otherwise
        None."""
        epoch, hole_end = self._holes.get(key, (lead.leader_epoch, None))
        return hole_end if opened.is_bare and epoch == lead.leader_epoch else None

    def has_led(self, topic_id: UUID, partition: int) -> bool:
        """Whether the open log was led in this process, so that its tail is known."""
        return (topic_id, partition) in self._led

    def note_reported_end(self, topic_id: UUID, partition: int, end: ReportedEnd) -> None:
        """Store the reserved end that the leader reported last to this follower."""
        self._reported[topic_id, partition] = end

    def _reported_in(self, key: Key, lead: Lead) -> ReportedEnd | None:
        """The reported end, if it belongs to this broker session."""
        reported = self._reported.get(key)
        is_of_session = reported is not None and reported.broker_epoch == lead.broker_epoch != NO_SESSION
        return reported if is_of_session else None

    async def _reserve_first(self, partition: TieredPartition) -> None:
        """Reserve offsets for a log that has none reserved, because a clean stop released them. The log serves reads
        even if the bucket does not answer, and accepts appends once offsets are reserved."""
        try:
            await partition.reserve()
        except Retryable as unanswered:
            log.warning("%s refuses appends until the bucket answers: %s", partition.name, unanswered)
        except OSError as error:
            if not is_full(error):
                raise
            log.warning("%s refuses appends until its disk has space: %s", partition.name, error)

    async def state_at(self, topic_id: UUID, index: int, offset: int, since: int) -> ColdStart:
        """Epochs and producers of a log that continues at `offset`, and the bytes in the bucket from `since` on. The
        epochs and producers come from the object that holds `offset` − 1; without such an object they are empty. Reads
        the root again (D35). Raises Retryable, ObjectMissing, Corrupt."""
        manifests, deadline_s = self.manifests_to_read(topic_id, index), self._limits.store_timeout_s
        await manifests.load()
        return await state_at(self._store, manifests, (topic_id, index), offset, deadline_s, since)

    def manifests_to_read(self, topic_id: UUID, index: int) -> ManifestStore:
        """A manifest store that has read no root yet."""
        world = self._world
        return ManifestStore(
            self._store,
            topic_id,
            index,
            world.rng,
            world.clock,
            workers=world.workers,
            page_cache=self._pages,
            deadline_s=self._limits.store_timeout_s,
        )

    async def detach(self, tier: PartitionTier, *, give_back: bool) -> None:
        """Stop tiering a partition: its leader epoch ended here. `give_back` (a clean stop, no more appends): release
        its reservation too."""
        partition = tier.partition_state
        key = partition.topic_id, partition.partition
        await tier.close()
        if self._tiers.get(key) is tier:
            del self._tiers[key]
            self._manifests.pop(key, None)
        if give_back and not partition.fenced and not self._store_away:
            await self._give_back(partition)
        session = self._sessions.pop(key, NO_SESSION)
        if not partition.is_alone and not partition.fenced and Block.BEHIND not in partition.blocks:
            self._reported[key] = ReportedEnd(partition.lease.reserved_end, session)

    def drop_reported_end(self, topic_id: UUID, partition: int) -> None:
        """Drop the reported end. The partition is assigned to other brokers, which use or release these offsets
        (R21)."""
        self._reported.pop((topic_id, partition), None)

    def forget(self, topic_id: UUID, partition: int) -> None:
        """The log is closed: drop its state."""
        self._led.pop((topic_id, partition), None)
        self._reported.pop((topic_id, partition), None)
        self._manifests.pop((topic_id, partition), None)
        self._holes.pop((topic_id, partition), None)

    async def _give_back(self, partition: TieredPartition) -> None:
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                if partition.is_alone:
                    await partition.note_reservation()  # even without a release, because the next start reads it
                await partition.give_back()
        except (ThermoclineError, OSError) as kept:  # damaged roots and full disks, too; TimeoutError is an OSError
            # No record is lost: the next start continues below the reserved end, or declares the rest a gap.
            log.warning("%s: its reserved offsets are not given back: %s", partition.name, kept)
            # Thousands of partitions must not each wait for a bucket that does not answer.
            self._store_away |= isinstance(kept, Retryable | AccessRefused | TimeoutError)

    async def close(self) -> None:
        """Detach everything without releasing reservations."""
        for tier in self:
            await tier.close()
        self._tiers.clear()
        self._manifests.clear()


def _look_for_gaps(log: PartitionLog, in_bucket: Sequence[tuple[int, int]]) -> tuple[tuple[tuple[int, int], ...], bool]:
    """The gaps of the local log, and the result of `is_unanswered`. Blocking."""
    found = local_gaps(log)
    return found, is_unanswered(log, (*in_bucket, *found))
