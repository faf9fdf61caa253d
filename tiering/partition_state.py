"""State shared by the jobs of one tiered partition: log, manifest, claim, reservation, and blocking conditions.

The claim is the first tiering act of an epoch (C1). `log.reserved_end` rises only after the root's commit and the sync
of the local copy. A root of a higher leader epoch fences at once, in the step that reads it, so the remote end of
another leader is never used as ours. After a `Fenced` there are no more commits of this partition; every commit is made
under our epoch. Runs on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Final
from uuid import UUID

from coldstore.manifest.manifest import Manifest, RemoteSegment
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.manifest.unanswered import Unanswered
from coldstore.object_store import ObjectStore, answered_within
from coldstore.roots.root import RootVanished
from hotstore.flush.flusher import Flusher
from hotstore.host.lease import Lease, LeaseOver
from logformat.errors import Fenced, Retryable
from logformat.record_batch import INT64_MAX
from seams.crash_points import reach
from seams.world import World
from tiering.opening.cold_start import is_below_start
from tiering.opening.log_starts import first_local_offset, start_at_least
from tiering.opening.reservation import (
    AppendRate,
    LocalReservation,
    block_size,
    raise_to,
    remove_reservation,
    write_reservation,
)
from tiering.opening.verified import Verified
from tiering.tier_config import TierConfig, TierLimits

log = logging.getLogger(__name__)


class Block(Enum):
    """Reasons why tiering of a partition makes no progress, worst first."""

    FENCED = "fenced"
    VANISHED = "root vanished"
    BEHIND = "log behind bucket"
    DISK = "disk full"
    DAMAGED = "damaged"
    HOLE = "hole"
    RESERVATION = "reservation"
    CLAIM = "claim"
    STORE = "store"
    TRANSACTION = "transaction"  # never in `blocks`; derived from the log


TRANSACTION_SHOWN_MS: Final = 10_000
"""Age from which an open transaction counts as blocking copies; most end within milliseconds."""


class TieredPartition:
    """One partition that this broker leads in `epoch`, tiered or not: every partition has a root and a reservation."""

    def __init__(
        self,
        topic_id: UUID,
        partition: int,
        epoch: int,
        *,
        lease: Lease,
        manifests: ManifestStore,
        store: ObjectStore,
        world: World,
        config: TierConfig,
        limits: TierLimits,
        on_fenced: Callable[[str], None],
        on_behind: Callable[[str], None],
        is_alone: bool,
        is_fresh: Callable[[], bool],
        is_complete: Callable[[], bool],
    ) -> None:
        self.lease = lease
        log = lease.log
        self._is_fresh = is_fresh
        self.is_complete = is_complete
        """Whether all topics and configs are known; otherwise no segment is deleted, local or remote (R29)."""
        self.is_alone = is_alone  # no other replica is assigned
        self.chooses_start = config.enabled  # this log's local start becomes the log start when tiering is switched off
        self.topic_id = topic_id
        self.partition = partition
        self.epoch = epoch
        self.log = log
        self.manifests = manifests
        self.store = store
        self.world = world
        self.config = config
        self.limits = limits
        self.visible_end: Callable[[], int] = lambda: log.stable_end_offset
        """The last stable offset: nothing at or above it is copied."""
        self.committed_end: Callable[[], int] = lambda: log.stable_end_offset
        """The high watermark: retention of segments that are not copied does not wait for open transactions, as in
        Kafka."""
        self.clean_end: Callable[[], int] = lambda: lease.clean_end
        """Offset below which the local log of every replica is clean, or has no records."""
        self.rate = AppendRate()
        self.blocks: dict[Block, str] = {}
        self.local_gaps: tuple[tuple[int, int], ...] | None = None  # None: not looked for yet
        self.fenced = False
        self.closed = False
        self.is_noted = True  # the copy on disk equals `log.reserved_end`
        self.on_claimed: Callable[[], None] = lambda: None
        self.on_remote_end: Callable[[int], None] = lambda _: None  # gets the claimed root's remote end
        self.on_verified: Callable[[], None] = lambda: None  # called for each verified object
        self._on_fenced = on_fenced
        self.on_behind = on_behind
        self.verified = Verified()
        self.switch_offs = 0  # how often tiering was switched off in this epoch
        self._is_parked = False
        self._needed_end = 0  # the greatest end of a waiting append
        self._released_from = 0  # the root's reserved end before a release that may still arrive
        self._claiming = asyncio.Lock()
        self._reserving = asyncio.Lock()
        manifests.on_newer = self._check_epoch
        manifests.on_attempt = self._forget_verified
        if manifests.manifest is not None:
            self._check_epoch(manifests.manifest)

    @property
    def flusher(self) -> Flusher:
        """The log's current flusher; truncation replaces it."""
        return self.lease.flusher

    @property
    def name(self) -> str:
        return f"{self.config.topic}-{self.partition}"

    @property
    def claimed(self) -> bool:
        return self.manifests.claimed_epoch is not None and not self.fenced

    @property
    def manifest(self) -> Manifest | None:
        """The newest manifest this process has read."""
        return self.manifests.manifest

    @property
    def remote_end_offset(self) -> int:
        manifest = self.manifests.manifest
        return 0 if manifest is None else manifest.remote_end_offset

    @property
    def is_in_bucket(self) -> bool:
        """Whether the bucket may hold records of this log, whatever the configs say, perhaps by a copy's commit without
        an answer."""
        manifest = self.manifests.manifest
        return manifest is None or not self.claimed or self.manifests.unanswered.adds or manifest.live.segments > 0

    def _forget_verified(self, unanswered: Unanswered) -> None:
        """An object that an attempt withdraws or replaces does not count as verified, from before the attempt is sent:
        local bytes stay, and a new replica does not begin above it."""
        if unanswered.withdraws:
            self.verified.forget_all()
        self.verified.forget_objects(unanswered.replaces)

    @property
    def moves_start_in_root(self) -> bool:
        """Whether the root has to name a log start before it moves on the disk: the topic is tiered, another broker may
        lead next, or the root may name objects of the records."""
        return self.config.enabled or not self.is_alone or self.is_in_bucket

    @property
    def log_start_offset(self) -> int:
        """The greater of the local log start and the root's (C26)."""
        manifest = self.manifests.manifest
        start = self.log.log_start_offset
        return start if manifest is None else max(start, manifest.log_start_offset)

    @property
    def copy_end_offset(self) -> int:
        """Nothing above it is copied: min(last stable offset, flushed end) (C6)."""
        return min(self.visible_end(), self.log.flushed_end_offset)

    def holds(self, epoch: int, end_offset: int) -> bool:
        """Whether the log has, or no longer needs, the records of the leader of an earlier `epoch` below `end_offset`;
        after a lost tail the same offsets may have been assigned again. False for this epoch and later epochs. Call it
        only if the bucket holds the offsets below the local log's start.
        """
        if epoch >= self.epoch:
            return False
        shared_end = self.log.epochs.shared_end(epoch, self.log.log_end_offset)
        return end_offset <= max(shared_end, self.log_start_offset)

    @property
    def blocked_by(self) -> str | None:
        found = next((block.value for block in Block if block in self.blocks), None)
        return Block.TRANSACTION.value if found is None and self._held_back_by() is not None else found

    @property
    def blocked_why(self) -> str:
        """The last error behind `blocked_by`; empty while nothing blocks."""
        if self.blocks:
            return next(self.blocks[block] for block in Block if block in self.blocks)
        producer_id = self._held_back_by()
        if producer_id is None:
            return ""
        first = self.log.producers.transactions.first_offsets[producer_id]
        return f"nothing from offset {first} on is copied until the transaction of producer {producer_id} ends"

    def _held_back_by(self) -> int | None:
        """The producer whose transaction has kept a sealed segment from the bucket for a while (C6)."""
        transactions = self.log.producers.transactions
        if not self.config.copies or not transactions.first_offsets:
            return None
        opened = transactions.begun_before(self.world.clock.wall_ms() - TRANSACTION_SHOWN_MS)
        producer_id = min(opened, key=transactions.first_offsets.__getitem__, default=None)
        if producer_id is None:
            return None
        uncopied = max(transactions.first_offsets[producer_id], self.remote_end_offset)
        return producer_id if any(of.end_offset > uncopied for of in self.log.sealed_segments()[-1:]) else None

    # ── claim and fence ──────────────────────────────────────────────────────────────────────────────────────────
    async def claim(self, also: Callable[[Manifest], Manifest] | None = None) -> Manifest:
        """Claim the partition unless this process has claimed it, with the edit `also` in the same write; returns the
        manifest. Raises Fenced, Retryable and as `ManifestStore`."""
        async with self._claiming:
            manifest = self.manifests.manifest
            if not self.claimed or manifest is None:
                self.check_not_fenced()
                try:
                    topic, configs = self.config.topic, dict(self.config.configs)
                    manifest = await self.manifests.claim(self.epoch, topic, configs, also)
                except Fenced as fenced:
                    raise self.fence(fenced) from fenced
                await self._reconcile(manifest)
                self.on_claimed()
            return manifest

    async def commit(
        self, edit: Callable[[Manifest], Manifest], *, releases: bool = False, due_by: TierConfig | None = None
    ) -> Manifest:
        """Commit to the claimed root. `releases`: the edit releases data, so each send calls `check_fresh`. `due_by`:
        the configs that make the edit due. They are also compared at each send, because retries may take half a minute.
        Raises Fenced if a newer leader exists, also right after our commit; Retryable if the configs were changed."""

        return await self._fencing(self.manifests.commit(edit, self._may_send(due_by) if releases else None))

    async def replace(
        self,
        old: Sequence[RemoteSegment],
        new: Sequence[RemoteSegment],
        also: Callable[[Manifest], Manifest] | None,
        *,
        due_by: TierConfig,
    ) -> Manifest:
        """See `ManifestStore.replace`; each send calls `check_fresh` and compares the configs. Raises as `commit`."""
        now_ms = self.world.clock.wall_ms()
        return await self._fencing(self.manifests.replace(old, new, now_ms, self._may_send(due_by), also))

    def _may_send(self, due_by: TierConfig | None) -> Callable[[], None]:
        def may_send() -> None:
            self.check_fresh()
            if due_by is not None:
                self.check_due(due_by)

        return may_send

    def check_due(self, due_by: TierConfig) -> None:
        """Raise Retryable if the configs that make work due were changed."""
        if due_by != self.config:
            raise Retryable(f"{self.name}: the topic's configs were changed; due work is decided again")

    def check_start_on_disk(self) -> None:
        """Raise Retryable if the root has to name a log start by now (R7)."""
        if self.moves_start_in_root:
            raise Retryable(f"{self.name}: replicas or objects came meanwhile; the log start moves through the root")

    async def _fencing(self, committing: Coroutine[Any, Any, Manifest]) -> Manifest:
        try:
            self.check_not_fenced()
            manifest = await committing
        except LeaseOver:
            raise  # the role ended without a fence
        except Fenced as fenced:
            raise self.fence(fenced) from fenced
        finally:
            committing.close()
        self.check_not_fenced()
        return manifest

    def _check_epoch(self, manifest: Manifest) -> None:
        """A newer root was read. A higher epoch in it fences like a refused commit, and sooner than `cluster.json`."""
        if manifest.leader_epoch > self.epoch:
            self.fence(Fenced(f"{self.name}: epoch {self.epoch} superseded by {manifest.leader_epoch}"))

    async def move_start(self, edit: Callable[[Manifest], Manifest], due_by: TierConfig | None = None) -> None:
        """Commit a log start and the other changes of `edit`, then apply the start locally (C26). `due_by` and errors:
        see `commit`."""
        manifest = await self.commit(edit, releases=True, due_by=due_by)
        self.lease.check()
        self.lease.advance_log_start(min(manifest.log_start_offset, self.log.log_end_offset))

    def reconfigure(self, config: TierConfig) -> None:
        """The topic's configs changed."""
        self.switch_offs += self.config.enabled and not config.enabled
        self.config = config
        self.chooses_start |= config.enabled

    @property
    def is_to_be_switched_off(self) -> bool:
        """Whether the topic is no longer tiered, and the root does not record that yet."""
        manifest = self.manifests.manifest
        return manifest is not None and manifest.is_switched_off_by(self.config.configs)

    async def switch_off(self) -> None:
        """See `Manifest.switch_off`. A broker that did not lead when tiering was switched off may lack records, so it
        does not move the start. Raises as `commit`."""
        config = self.config
        start = self.log.local_log_start_offset if self.chooses_start else self.log_start_offset
        await self.move_start(lambda m: m.switch_off(config.topic, dict(config.configs), start), config)
        log.info("%s is no longer tiered: its log starts at offset %d", self.name, self.log_start_offset)

    async def _switch_off_at_roots_start(self) -> None:
        """Record in the root that the topic is no longer tiered, and keep the root's log start. Raises as `commit`."""
        config = self.config
        await self.commit(lambda m: m.switch_off(config.topic, dict(config.configs), m.log_start_offset))

    def fence(self, why: Fenced) -> Fenced:
        """Stop tiering this partition in this epoch. Calls `on_fenced` unless only the topic was deleted."""
        vanished = isinstance(why, RootVanished)
        if not self.fenced:
            self.fenced = True
            self.blocks[Block.VANISHED if vanished else Block.FENCED] = str(why)
            log.error("%s stops tiering: %s", self.name, why)
            if not vanished and not self.closed:
                self._on_fenced(str(why))
        return why

    def check_not_fenced(self) -> None:
        if self.fenced:
            raise Fenced(f"{self.name}: epoch {self.epoch} was superseded; tiering of it stopped")

    def check_fresh(self) -> None:
        """Call before each send that releases data. Raises Fenced if this broker's metadata image has another leader.
        Raises Retryable if the image may be outdated, because a new, idle leader may not have claimed yet and would not
        fence this broker (R23).
        """
        self.check_not_fenced()
        self.lease.check()
        if not self._is_fresh() or not self.is_complete():
            raise Retryable(f"{self.name}: this broker does not know its current leader or topics; nothing is released")

    async def _reconcile(self, manifest: Manifest) -> None:
        """Compare the root, at its first read in this epoch, with the local log that is already serving."""
        local = self.log
        self.lease.check()
        if manifest.bucket_end_offset > local.log_end_offset:
            # The log ends below its own flushed and copied records, so the data directory is an old copy (C6).
            self.lease.reserve(local.log_end_offset)
            await self.lease.call(remove_reservation, local.directory)
            self.lease.check()  # otherwise its topic may be deleted, and the report is never withdrawn
            what = (
                "restart the broker to continue at the bucket's end" if self.is_alone else "another replica has to lead"
            )
            self.blocks[Block.BEHIND] = (
                f"{self.name} ends at {local.log_end_offset}, but the bucket ends at {manifest.bucket_end_offset}; "
                f"{what}"
            )
            log.error("%s refuses appends: %s", self.name, self.blocks[Block.BEHIND])
            self.on_behind(self.blocks[Block.BEHIND])
            return
        start_at_least(self.lease, manifest)
        self.on_remote_end(manifest.remote_end_offset)

    # ── reservation ──────────────────────────────────────────────────────────────────────────────────────────────
    def reservation_wanted(self) -> int | None:
        """The end to reserve now; None while more than half a block is left, or if no offset may be assigned."""
        end = self.log.log_end_offset
        self.rate.note(self.world.clock.wall_ms(), end)
        if Block.BEHIND in self.blocks or self._is_parked:
            return None
        block = block_size(self.limits.reservation_offsets, self.rate.last_hour(end))
        wanted = raise_to(end, self.log.reserved_end, block, self._needed_end)
        return None if wanted is None else min(wanted, INT64_MAX)

    @property
    def reserve_at(self) -> int:
        """Log end at which a new block is wanted, with the smallest block: a cheap test for the append path."""
        return self.log.reserved_end - self.limits.reservation_offsets // 2

    async def reserve(self) -> bool:
        """Raise the reservation if due; returns whether it was raised. Claims first. Raises as `commit`, and
        OSError."""
        async with self._reserving:
            wanted = self.reservation_wanted()
            if wanted is None:
                return False
            # Always write an end above the end of a pending release, which may still lower it.
            target, log_end = max(wanted, self._released_from + 1), self.log.log_end_offset
            # Thousands of partitions open at once: claim and reservation are one request if both are due.
            manifest = await self.claim(lambda m: m if m.bucket_end_offset > log_end else m.reserve(target))
            if Block.BEHIND in self.blocks:
                return False
            if manifest.reserved_end_offset < target:
                manifest = await self.commit(lambda m: m.reserve(target))
            reach("reserve.committed")
            await self.write_local_reservation(manifest.reserved_end_offset)
            self.lease.reserve(manifest.reserved_end_offset)
            self._released_from = 0
            self.blocks.pop(Block.RESERVATION, None)
            return True

    def request_end(self, end_offset: int) -> None:
        """An append up to `end_offset` waits, so the next `reserve` covers at least that."""
        self._is_parked = False
        self._needed_end = max(self._needed_end, end_offset)

    async def note_reservation(self) -> None:
        """Write the local copy of the reservation that a leader reported, for the next start as the only replica.
        Raises as `write_local_reservation`."""
        async with self._reserving:
            if not self.is_noted and Block.BEHIND not in self.blocks:
                await self.write_local_reservation(self.log.reserved_end)

    async def write_local_reservation(self, reserved_end: int) -> None:
        """Write the broker's copy; it is durable when this returns. Raises as `commit`, and OSError."""
        if self.claimed and not self.chooses_start and self.is_to_be_switched_off:
            await self._switch_off_at_roots_start()  # with the copy, the next start would choose this log's start
        self.lease.check()
        value = LocalReservation(
            self.topic_id,
            self.partition,
            reserved_end,
            self.log.config.flush_sync,
            self.world.clock.boot_id(),
        )
        self.lease.opened.is_bare = False
        await self.lease.call(write_reservation, self.log.directory, value)
        self.lease.check()
        self.is_noted = True

    async def give_back(self) -> bool:
        """Lower the reservation to the log's end if the bucket ends there too; returns whether it was lowered.

        The root then shows that no higher offset was assigned, so the loss of the disk causes no gap. The next append
        raises the reservation first (`request_end`, ADR 13). The local copy is lowered before the root. A crash in
        between leaves the root too high, which causes a gap after the loss of the disk, but no offset is assigned
        twice. The next `reserve` overwrites a release that arrives late. Does nothing while other replicas are
        assigned, because their logs may end higher (D29). Raises as `commit`, and OSError."""
        if not self.is_alone:
            return False
        async with self._reserving:
            manifest = await self.claim()
            self.lease.check()
            end = self.log.log_end_offset  # no await until `lease.reserve` stops appends beyond it
            if not self.is_alone or manifest.bucket_end_offset != end or Block.BEHIND in self.blocks:
                return False  # a replica may have been assigned meanwhile
            self.lease.reserve(end)
            self._is_parked = True
            self._needed_end = 0
            if manifest.reserved_end_offset > end:
                self._released_from = manifest.reserved_end_offset
                await self.write_local_reservation(end)
                await self.commit(lambda m: m.release_reservation(end), releases=True)
                reach("reserve.released")
                self._released_from = 0
            return True

    # ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def is_live(self, entry: RemoteSegment) -> bool:
        """Read the root: whether it names the object, and the object is not expired. Only then a missing object is
        damage. Raises Fenced if a newer leader wrote the root, because that leader may have deleted the object (T4);
        Retryable."""
        async with answered_within(self.limits.store_timeout_s, f"{self.name}: reading the root"):
            await self.manifests.reload_if_changed()
            named = await self.manifests.find(entry.base_offset)
        self.check_not_fenced()
        return named is not None and named.uuid == entry.uuid and not is_below_start(self.manifest, entry)

    @property
    def sure_end_offset(self) -> int:
        """Local segments that end at or below it may be deleted at once: they are below the root's log start, or in
        objects that this process verified, without a hole from the first local one on."""
        manifest = self.manifests.manifest
        if manifest is None or not self.claimed:
            return 0
        return self.verified.covered_from(max(first_local_offset(self.log), manifest.log_start_offset))
