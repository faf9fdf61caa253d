"""Follower role of a partition on this broker in one leader epoch: opens the log and gives it to a fetcher.

- The log's tail is flushed before the first fetch (D65).
- The reservation of an earlier leadership is deleted before the first fetch. The reservation stays if this broker is
  the only assigned replica, or if there is no leader and this broker is the only holder.
- A failed opening is retried while the role lasts, and reported if the disk refused it.
- After a leadership that the disk refused, the opening waits. An open log is reported as sound, so replicas whose disks
  refuse leaderships only would elect each other without a pause.
- `end` takes effect at once; `over` waits for work in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final
from uuid import UUID

from broker.config.topic.topic_config import log_config_of
from broker.metadata.image import Topic
from broker.metadata.records import NO_LEADER
from broker.metadata.row_steps import holds_alone, is_alone
from broker.partition.following.fetcher_manager import LeaderFetchers
from broker.partition.following.follower_replica import FollowerReplica
from broker.partition.registry import RefusedCopy
from broker.partition.roles import Roles
from broker.replication.fetch_session_handler import Key, key_of
from broker.replication.replication_quota import is_throttled
from hotstore.errors import DamagedLog, ForeignLog, may_pass
from hotstore.host.lease import Lease
from hotstore.host.open_log import OpenLog, RefusedLog
from logformat.errors import StorageFailed
from logformat.leader_epochs import UNDEFINED_EPOCH
from logformat.values import TopicPartition
from seams.loop.tasks import supervise
from tiering.opening.log_starts import lacks_segments
from tiering.opening.older_copy_note import has_older_copy_note
from tiering.opening.reservation import remove_reservation

log = logging.getLogger(__name__)

BACKOFF_S_MAX: Final = 10.0
_AGAIN_S: Final = 0.5
_NOTHING: Final = RefusedLog(UNDEFINED_EPOCH, 0, 0)


class FollowerRole:
    __slots__ = (
        "_begins_at_s",
        "_has_asked",
        "_keeps_reservation",
        "_lease",
        "_opening",
        "_pause_s",
        "_refused",
        "_roles",
        "followed",
        "index",
        "is_over",
        "place",
        "row",
        "topic",
    )

    def __init__(self, roles: Roles, topic: Topic, index: int, begins_at_s: float) -> None:
        self.topic = topic
        """The topic in the current image. The role uses `row`, from its beginning."""
        self.index = index
        self.place = TopicPartition(topic.name, index)
        self.row = topic.rows[index]
        self.followed: FollowerReplica | None = None  # None until the log is open
        self.is_over = False
        self._roles = roles
        self._keeps_reservation = False  # whether a later leadership may use the reservation of an earlier one
        self._begins_at_s = begins_at_s
        self._has_asked = False  # an end was reported in this epoch
        self._pause_s = _AGAIN_S  # pause before the log is opened again
        self._lease: Lease | None = None
        self._opening: asyncio.Task[None] | None = None
        self._refused: RefusedCopy | None = None

    @property
    def topic_id(self) -> UUID:
        return UUID(self.topic.topic_id)

    @property
    def _key(self) -> Key:
        return key_of(self.topic_id, self.index)

    @property
    def is_in_doubt(self) -> bool:
        """Whether the log is closed, failed, or may lack records that its reservation covers. It may lack records if
        the reservation was kept and no leadership followed an unclean stop. Only a leader resolves the doubt, with the
        bucket (C30).
        """
        if self.followed is None or self.followed.failure:
            return True
        roles = self._roles
        is_known = roles.logs.was_clean or roles.tiers.has_led(self.topic_id, self.index)
        return self._keeps_reservation and not is_known

    def begin(self) -> None:
        self._try(self._begin)

    def _try(self, attempt: Callable[[], Awaitable[None]]) -> None:
        name, roles = f"follow {self.place}", self._roles

        async def attempt_in_place() -> None:
            try:
                await attempt()
            except ForeignLog:  # the move needs no slot, so other topics do not wait until the foreign log is closed
                await roles.move_if_stray(self.place)
                raise  # the next attempt finds the directory free
            except (StorageFailed, OSError) as refused:
                if not may_pass(refused):  # reported: an unclean recovery would wait for this replica (R20)
                    of = self.topic.topic_id, self.index
                    roles.registry.log_failures.failed(of, f"the log cannot be opened for a follower: {refused}")
                raise

        work = supervise(name, attempt_in_place, roles.world.rng, roles.report, backoff_max_s=BACKOFF_S_MAX)
        self._opening = roles.tasks.spawn(name, work)

    # ── end ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def end(self) -> None:
        """Stop following: writes stop now, and waiting consumers go to the leader."""
        if self.is_over:
            return
        self.is_over = True
        if self._opening is not None:
            self._opening.cancel()
        if self._refused is not None:
            self._roles.registry.forget_refused(*self.place, self._refused)
        if self.followed is not None:
            self.followed.resign()
        elif self._lease is not None:
            self._lease.end()

    async def over(self) -> None:
        """Wait until all work of this role on the log has ended."""
        assert self.is_over, self.place
        if self._opening is not None:
            await asyncio.wait([self._opening])
        await self._end_copy()
        if self._lease is not None:
            await self._lease.returned()

    async def _end_copy(self) -> None:
        followed, roles = self.followed, self._roles
        if followed is None:
            return
        roles.fetchers.leave(self._key, followed)
        await followed.over()  # if this wait is cancelled, the end of the role repeats it
        self.followed = None
        roles.registry.unfollow(followed)
        if followed.opened.is_torn:
            roles.tiers.forget(self.topic_id, self.index)

    # ── configs ──────────────────────────────────────────────────────────────────────────────────────────────────
    def reconfigure(self) -> None:
        if self.followed is not None:
            self.followed.log.reconfigure(log_config_of(self._roles.configs.of(self.topic)))
            if (fetcher := self._fetcher()) is not None:
                fetcher.throttle(self._key, is_throttled=self._is_throttled)

    def _fetcher(self) -> LeaderFetchers | None:
        return None if self.row.leader == NO_LEADER else self._roles.fetchers.of(self.row.leader)

    @property
    def _is_throttled(self) -> bool:
        return is_throttled(self.topic.configs, self.index, self._roles.node_id)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _again(self) -> None:
        """Reopen the log in the same epoch, or begin it anew. Each pause is longer, because opening reads the complete
        log."""
        if self.is_over or self.followed is None:
            return
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, BACKOFF_S_MAX)
        lacks = self.followed.lacks

        async def attempt() -> None:
            nonlocal pause_s, lacks
            await self._end_copy()
            wait_s, pause_s = pause_s, 0.0
            await asyncio.sleep(wait_s)
            if lacks:  # a truncation would lower the checkpoints that show this, before the log is empty
                await self._begin_anew(lacks)
                lacks = ""
            await self._begin()

        self._try(attempt)

    async def _begin(self) -> None:
        roles = self._roles
        if (pause_s := self._begins_at_s - roles.world.clock.monotonic_s()) > 0:
            await asyncio.sleep(pause_s)
        if self._lease is not None:
            await self._lease.returned()  # the calls of the previous attempt must end first
        async with roles.to_follow:
            opened = await self._open(is_new=not self._has_asked)
            if opened is None:
                return
            if opened.log.config.waits_for_flush and not opened.log.failure:
                await opened.flusher.flush()
        lease = self._lease = roles.logs.lend(opened, f"follower epoch {self.row.leader_epoch}")
        try:
            await self._remove_reservation(lease)
        except BaseException:
            lease.end()
            raise
        self._has_asked = True
        opened.log.reconfigure(log_config_of(roles.configs.of(self.topic)))  # they may have changed since it opened
        fetcher = self._fetcher()
        self.followed = followed = FollowerReplica(
            lease,
            self.row,
            roles.tiers,
            roles.tasks,
            roles.world.clock,
            roles.registry.touched,
            roles.registry.log_failures,
            roles.registry.copied,
            (lambda: None) if fetcher is None else partial(fetcher.wake, self._key),
            self._again,
        )
        roles.registry.followed[self.place] = followed
        roles.on_opened((followed,))
        if fetcher is not None:
            fetcher.follow(self._key, followed, is_throttled=self._is_throttled)

    async def _open(self, *, is_new: bool) -> OpenLog | None:
        """Open the log. None: the log is damaged and must not be changed in this epoch. `is_new`: no report was sent in
        this epoch yet."""
        roles, place, topic_id, row = self._roles, self.place, self.topic_id, self.row
        log_failures, of = roles.registry.log_failures, (self.topic.topic_id, self.index)
        config, remains = log_config_of(roles.configs.of(self.topic)), _NOTHING
        try:
            opened = await roles.tiers.open_copy(place, topic_id, config)
        except DamagedLog as damaged:
            if is_alone(row, roles.node_id):
                raise
            log_failures.damaged(of, str(damaged))
            remains = roles.logs.refused_log(place, damaged.offset)
            opened = None
        lost = log_failures.lost.get(of)
        is_out = roles.node_id not in row.in_sync and row.leader != NO_LEADER
        joins = roles.node_id in row.adding
        if lost is None and is_out and is_new and opened is not None:
            if joins:
                lost = lacks_segments(opened.log) or may_lack_tombstones(opened, row.leader_epoch)
            if opened.log.config.compacts and await opened.at.call(has_older_copy_note, opened.log.directory):
                lost = "it is compacted and an older copy, so it may lack tombstones"
        if lost is not None:
            if is_out and row.clean:  # the next role begins when the unclean start is done
                await self._begin_anew(lost)
                opened = None
            elif row.leader != NO_LEADER:
                return None
            elif opened is None:  # without a leader, the intact part of the log is a candidate (R20)
                self._refused = RefusedCopy(topic_id, row.leader_epoch, remains)
                roles.registry.refused[place] = self._refused
                return None
        opened = opened or await roles.logs.create(place, topic_id, config)
        opened.joins = joins and (is_out or opened.joins)
        return opened

    async def _begin_anew(self, why: str) -> None:
        """Move the log aside as a stray, so that copying restarts in an empty directory. The replica is out of the
        in-sync set, so its reports do not count, and its leader serves (R16, R18)."""
        roles, of = self._roles, (self.topic.topic_id, self.index)

        def is_aside() -> None:  # runs even if this role is cancelled: the next role finds no log and no damage
            roles.tiers.forget(self.topic_id, self.index)
            roles.registry.log_failures.over(of)

        log.error("%s is copied again from its leader, and its log here becomes a stray: %s", self.place, why)
        await roles.logs.move_stray(self.place, self.topic_id, then=is_aside)

    async def _remove_reservation(self, lease: Lease) -> None:
        """Delete the reservation of an earlier leadership, because later leaders may have assigned the reserved offsets
        (R21). The reservation stays if this broker is the only assigned replica, or if there is no leader and this
        broker is the only holder."""
        row, me = self.row, self._roles.node_id
        is_ours = is_alone(row, me) or (row.leader == NO_LEADER and holds_alone(row, me))
        self._keeps_reservation = is_ours and not lease.opened.is_bare
        if not lease.opened.is_bare and not is_ours:
            await lease.call(remove_reservation, lease.log.directory)


def may_lack_tombstones(opened: OpenLog, leader_epoch: int) -> str | None:
    """The reason why a log that a move gives to this broker may have records that other replicas deleted; None if it
    has none. While this broker was not assigned the partition, its log did not keep their tombstones (ADR 32). The
    leader epoch grew when the broker left, so the log has not seen the epoch. If the replica is joining already, its
    log is of this move (`LogHost.forget_joining`)."""
    log = opened.log
    is_of_before = not opened.joins and opened.seen_epoch < leader_epoch
    if not is_of_before or not log.config.compacts or log.log_end_offset == log.local_log_start_offset:
        return None
    return f"it is compacted and last agreed with a leader of epoch {opened.seen_epoch}, so it may lack tombstones"
