"""Leader role of a partition on this broker: opens its log and tier, serves, and ends.

- Opening is retried until it succeeds, stays offline, or the role ends. `publication` publishes an open partition once.
- `end` takes effect at once: waiters fail, the lease ends, the look-up tables change. `over` waits for work in flight.
- A failed attempt that only waits for the bucket leaves the log open for the next attempt. Any other failed attempt
  closes the log.
- If another replica may lead instead, a refusal by the disk is reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from broker.config.topic.topic_config import log_config_of
from broker.metadata.image import Topic
from broker.metadata.row_steps import holds_alone, is_alone
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.publication import Publication
from broker.partition.roles import Roles
from broker.replication.in_sync import AppliedRow, applied_row
from coldstore.roots.root import RootVanished
from hotstore.errors import DamagedLog, ForeignLog, may_pass
from hotstore.host.lease import Lease
from hotstore.host.open_log import OpenLog
from logformat.errors import Corrupt, Fenced, Retryable, StorageFailed
from logformat.values import TopicPartition
from seams.loop.tasks import supervise
from tiering.partition_tier import PartitionTier
from tiering.tier_config import NO_SESSION, Lead

log = logging.getLogger(__name__)

REOPEN_S: Final = 5.0  # pause until a damaged object is read from the bucket again
REOPEN_S_MAX: Final = 60.0
BACKOFF_S_MAX: Final = 10.0  # longest pause between attempts after any other failure


class LeaderRole:
    """The leader role of one partition in one epoch. `before`: the previous leadership on this broker, if the log has
    stayed open since. `fenced` is called when the partition's root names a higher epoch while the partition serves."""

    __slots__ = (
        "_asks_again",
        "_before",
        "_fenced",
        "_is_new",
        "_lease",
        "_opening",
        "_publication",
        "_roles",
        "damaged",
        "index",
        "is_over",
        "is_refused",
        "is_visible",
        "leader_epoch",
        "partition",
        "place",
        "topic",
    )

    def __init__(
        self,
        roles: Roles,
        topic: Topic,
        index: int,
        publication: Publication,
        before: LeaderReplica | None,
        fenced: Callable[[LeaderRole, str], None],
    ) -> None:
        self.topic = topic  # as in the present image
        self.index = index
        self.place = TopicPartition(topic.name, index)
        self.leader_epoch = topic.rows[index].leader_epoch
        self.partition: LeaderReplica | None = None  # open and led in this epoch
        self.damaged = ""  # the reason why the partition stays offline; otherwise empty
        self.is_over = False
        self.is_refused = False  # the disk refused an attempt, and the controller was told
        self.is_visible = False  # published: in the look-up tables
        self._roles = roles
        self._publication = publication
        self._before = before
        self._fenced = fenced
        self._is_new = topic.rows[index].partition_epoch == 0  # no change since its creation: no replica has a log
        self._lease: Lease | None = None
        self._asks_again = False  # the bucket's object was damaged, perhaps only in transit
        self._opening: asyncio.Task[None] | None = None

    @property
    def topic_id(self) -> UUID:
        return UUID(self.topic.topic_id)

    @property
    def lost(self) -> tuple[int, int] | None:
        """The offsets [first, end) that the opening declared a gap."""
        return None if self.partition is None else self.partition.tier.lost

    @property
    def is_in_doubt(self) -> bool:
        """Whether the tail of the log is unknown, so that the next start has to ask the bucket again."""
        return bool(self.damaged) or (self.partition is None and not self._is_new)

    def begin(self) -> None:
        self._opening = self._roles.tasks.spawn(f"open {self.place}", self._open())

    # ── end ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def end(self, why: Exception) -> None:
        """Stop leading. Pending acknowledgements and readers fail with `why` now."""
        if self.is_over:
            return
        self.is_over = True
        if self._opening is not None:
            self._opening.cancel()
        self._publication.drop(self.index)
        if self.partition is not None:
            if self.is_visible:
                self._roles.registry.resign(self.partition)
            self.partition.resign(why)
        elif self._lease is not None:
            self._lease.end()
        if self.is_visible:
            for watcher in self._roles.watchers:
                watcher.resigned(*self.place)

    def stop(self, why: Exception) -> None:
        """As `end`, for the stop of the broker. The broker has detached the tier, and watchers are not called."""
        assert self.partition is not None, self.place
        if not self.is_over:  # otherwise the image ended the role during the flush of the stop
            self.is_over = True
            self.partition.resign(why)

    async def over(self) -> None:
        """Wait until all work of this role on the log has ended."""
        assert self.is_over, self.place
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self.partition is not None:
            await self._roles.tiers.detach(self.partition.tier, give_back=False)
        if self._lease is not None:
            await self._lease.returned()

    # ── changes of its row ───────────────────────────────────────────────────────────────────────────────────────
    def apply(self) -> None:
        """Apply the image: the partition's row, its minimum or a replica's session changed. This also holds before the
        partition is published, because its tier works already."""
        if self.partition is not None and not self.is_over:
            topic, registry = self.topic, self._roles.registry
            self._apply(self.partition)
            if registry.is_starting(self.partition) and topic.rows[self.index].clean:
                publish(self._roles, topic, [self])

    def _apply(self, partition: LeaderReplica) -> None:
        row = applied_row(self.topic, self.index, self._roles.metadata.image)
        partition.tier.partition_state.is_alone = is_alone(self.topic.rows[self.index], self._roles.node_id)
        partition.applied(row)

    def _on_fenced(self, why: str) -> None:
        if self.partition is not None and not self.is_over:
            self._fenced(self, why)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────
    async def _open(self) -> None:
        roles, name = self._roles, f"open {self.place}"
        await supervise(name, self._attempt, roles.world.rng, roles.report, backoff_max_s=BACKOFF_S_MAX)
        if self._asks_again:
            await asyncio.sleep(REOPEN_S)
            await supervise(
                f"{name} again",
                self._attempt_again,
                roles.world.rng,
                roles.report,
                backoff_s=REOPEN_S,
                backoff_max_s=REOPEN_S_MAX,
            )

    async def _attempt(self) -> None:
        try:
            self.partition = await self._opened()
        except ForeignLog:
            await self._roles.move_if_stray(self.place)
            raise  # the next attempt finds the directory free, at the latest after that topic is purged (C9)
        except RootVanished:
            raise  # the error passes when the purge of a deleted topic is done
        except (Fenced, StorageFailed, Corrupt, OSError) as refused:
            if may_pass(refused):
                raise
            self._asks_again = isinstance(refused, Corrupt) and not isinstance(refused, DamagedLog)
            self._stays_offline(refused)
            self._publication.drop(self.index)
            return
        self._publication.ready(self)

    async def _attempt_again(self) -> None:
        try:
            self.partition = await self._opened()
        except (DamagedLog, Fenced) as refused:
            self._stays_offline(refused)
            return
        self.damaged = ""
        log.warning("%s is online: its objects in the bucket are intact again", self.place)
        publish(self._roles, self.topic, [self])

    def _stays_offline(self, refused: Exception) -> None:
        self.damaged = str(refused)
        log.error("%s stays offline: %s", self.place, refused)

    async def _opened(self) -> LeaderReplica:
        """The partition, led in the leader epoch of its row. Raises as `TierService.attach` and `open_log`."""
        roles, of = self._roles, (self.topic.topic_id, self.index)
        log_failures = roles.registry.log_failures
        with roles.tiers.deferring_starts():  # includes the wait for a slot of `to_lead`
            async with roles.to_lead:
                lead, is_open = self._lead(), False
                try:
                    opened = await self._open_log(lead)  # waits until a log that is being closed can be opened again
                    is_open = True
                    partition = await self._attached(lead, opened)
                except (StorageFailed, OSError) as refused:
                    # Another in-sync replica may lead (D38), also while descriptors or space are too short here to open
                    # the log. An unclean start waits for them, because the other candidates may have fewer records. A
                    # later shortage is not reported: the log opens for a follower, which reports it as sound, so
                    # leadership would move in a circle while all replicas are short.
                    waits = may_pass(refused) and (is_open or lead.unclean_after is not None)
                    if not lead.is_alone and not waits:
                        self.is_refused = True
                        log_failures.failed(of, f"the log cannot be opened for a leader: {refused}")
                    raise
        if not partition.log.failure:
            log_failures.works(of)
        return partition

    def _lead(self) -> Lead:
        topic, index, roles = self.topic, self.index, self._roles
        log_failures, of, row = roles.registry.log_failures, (topic.topic_id, index), topic.rows[index]
        applied = applied_row(topic, index, roles.metadata.image)
        lead = Lead(
            applied.leader_epoch,
            roles.configs.of_tier(topic),
            self._on_fenced,
            self._is_new and row.partition_epoch == 0,  # other brokers may have led it since the first attempt
            roles.metadata.is_deleted,
            is_alone=is_alone(row, roles.node_id),
            holds_alone=holds_alone(row, roles.node_id),
            unclean_after=None if row.clean else row.served_epoch,
            broker_epoch=applied.sessions.get(roles.node_id, NO_SESSION),
        )
        if lead.is_alone:  # it restarts by itself from the bucket
            return lead
        return replace(lead, on_behind=lambda why: log_failures.damaged(of, why))

    async def _attached(self, lead: Lead, opened: OpenLog) -> LeaderReplica:
        roles, topic = self._roles, self.topic
        before = self._before if self._before is not None and self._before.opened is opened else None
        if self._lease is not None:
            await self._lease.returned()  # the calls of the previous attempt must end first
        lease = self._lease = roles.logs.lend(opened, f"leader epoch {lead.leader_epoch}")
        try:
            tier = await roles.tiers.attach(lease, lead)
        except (Retryable, Fenced):
            lease.end()
            raise  # the log is intact: the attempt waits for the bucket, or for a higher epoch
        except Exception:  # `supervise` tries again, and the next attempt opens the log again
            lease.end()
            await self._close(opened)
            raise
        if lead.unclean_after is not None:  # any damage was truncated
            roles.registry.log_failures.over((topic.topic_id, self.index))
        row = applied_row(topic, self.index, roles.metadata.image)
        partition = self._leading(lease, tier, row, before)
        gaps = tier.partition_state.local_gaps or ()
        partition.found_gaps(gaps, is_unanswered=tier.is_gap_unanswered)
        # Configs and row may have changed meanwhile, and the tier starts now.
        roles.configs.apply(self.topic, [partition])
        self._apply(partition)
        return partition

    def _leading(
        self, lease: Lease, tier: PartitionTier, row: AppliedRow, before: LeaderReplica | None
    ) -> LeaderReplica:
        roles, topic = self._roles, self.topic
        if before is not None:
            before.lead(lease, tier, row)
            return before
        registry = roles.registry
        return LeaderReplica(
            lease,
            tier,
            row,
            roles.configs.of(topic),
            registry.touched,
            registry.isr_pending,
            registry.log_failures,
            roles.node_id,
        )

    async def _close(self, opened: OpenLog) -> None:
        try:
            await self._roles.logs.close(opened, clean=False)
        finally:
            self._roles.tiers.forget(self.topic_id, self.index)

    async def _open_log(self, lead: Lead) -> OpenLog:
        """Open the log. A damaged log is reported, so that another replica leads (R18). In an unclean start the log is
        truncated at the damage. If the rest is damaged too, the log becomes a stray, and this replica starts with the
        bucket's part."""
        roles, topic_id, place = self._roles, self.topic_id, self.place
        config = log_config_of(roles.configs.of(self.topic))
        log_failures, of = roles.registry.log_failures, (self.topic.topic_id, self.index)
        try:
            return await roles.tiers.open_log(place, topic_id, config, lead)
        except DamagedLog as damaged:
            if lead.is_alone:
                raise
            if lead.unclean_after is None:
                log_failures.damaged(of, str(damaged))
                raise
            try:
                opened = await roles.logs.open_sound(place, topic_id, config, damaged.offset)
            except DamagedLog as worse:
                log.error("%s: the leader starts without its local log, which is damaged: %s", place, worse)
            else:
                log.error("%s: the leader starts with the undamaged part of its local log: %s", place, damaged)
                return opened
        await roles.logs.move_stray(place, topic_id, then=lambda: log_failures.over(of))
        return await roles.tiers.open_log(place, topic_id, config, lead)


def publish(roles: Roles, topic: Topic, ready: list[LeaderRole]) -> None:
    """Make open partitions visible to clients. Partitions of an unclean election serve when the image shows that the
    recovery is done (R20)."""
    partitions = [role.partition for role in ready if role.partition is not None]
    roles.on_opened(partitions)
    serving = []
    for role in ready:
        assert role.partition is not None and not role.is_over, role.place
        role.is_visible = True
        if topic.rows[role.index].clean:
            serving.append(role)
        else:
            roles.registry.start(role.partition)
            role.apply()  # the row may have changed while the log opened
    roles.registry.publish(topic, [role.partition for role in serving if role.partition is not None])
    for role in serving:
        assert role.partition is not None
        for watcher in roles.watchers:
            watcher.led(role.partition)
        if role.partition.tier.partition_state.fenced:
            role._on_fenced("another broker led the partition before this one served it")
        else:
            role.apply()
