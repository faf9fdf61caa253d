"""Owner of one replica on this broker: gives its log one role at a time, or removes it.

One task per replica works towards the newest aim. A new aim ends the current role at once. The next role begins after
all work of the previous one on the log ended. An aim that is replaced before its turn never begins.
`docs/design/late-work.md` draws the states and transitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Final
from uuid import UUID

import msgspec

from broker.metadata.image import Topic
from broker.metadata.rebuilt import is_rebuilt
from broker.partition.following.follower_role import FollowerRole
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.leader_role import LeaderRole
from broker.partition.leading.publication import Publication
from broker.partition.roles import Roles
from logformat.errors import Corrupt, Fenced
from logformat.values import TopicPartition
from seams.loop.tasks import supervise

log = logging.getLogger(__name__)

PAUSE_S: Final = 1.0  # pause before this replica follows, after its disk refused a leadership; doubled each time
PAUSE_S_MAX: Final = 30.0


class Goal(Enum):
    REST = "no role; its log stays open for the next one"
    LEAD = "leader"
    FOLLOW = "follower"
    DROP = "held by other brokers: its log is removed"
    DELETE = "of a deleted topic: its log is closed"


class Aim(msgspec.Struct, frozen=True, eq=False):
    """One order of the publisher. `publication` is set if the partition is to be led. `is_sure` returns whether there
    is proof that the log is not wanted here (R8, R24). A log without this proof is kept as a stray.
    """

    goal: Goal
    publication: Publication | None = None
    is_sure: Callable[[], bool] = lambda: False


_REST: Final = Aim(Goal.REST)


class ReplicaOwner:
    """The owner of one replica. `gone` is called when this broker has removed the replica completely."""

    __slots__ = (
        "_aim",
        "_before",
        "_follows_at_s",
        "_gone",
        "_pause_s",
        "_roles",
        "_task",
        "_was_dropped",
        "index",
        "place",
        "role",
        "topic",
    )

    def __init__(self, roles: Roles, topic: Topic, index: int, gone: Callable[[ReplicaOwner], None]) -> None:
        self.topic = topic  # as the image has it now
        self.index = index
        self.place = TopicPartition(topic.name, index)
        self.role: LeaderRole | FollowerRole | None = None
        """The current role, or an ended one that still works on the log."""
        self._roles = roles
        self._gone = gone
        self._aim = _REST
        self._before: LeaderReplica | None = None  # the last leadership, if its log is still open
        self._pause_s = PAUSE_S  # after the next leadership that the disk refuses
        self._follows_at_s = 0.0
        self._was_dropped = False  # others alone held the partition, or may have: forget notes of before
        self._task: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.topic.topic_id, self.index

    @property
    def damaged(self) -> str:
        """The reason why the log cannot be opened to lead; empty if it can be opened."""
        return self.role.damaged if isinstance(self.role, LeaderRole) else ""

    @property
    def is_in_doubt(self) -> bool:
        if self.role is not None:
            return self.role.is_in_doubt
        return self._aim.goal in (Goal.LEAD, Goal.FOLLOW) and self.topic.rows[self.index].partition_epoch > 0

    # ── aims ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def rest(self, *, may_have_left: bool = False) -> None:
        """End the current role. The log stays open. `may_have_left`: other brokers alone may have held the partition
        since the last image."""
        self._was_dropped |= may_have_left
        epoch = self.role.leader_epoch if isinstance(self.role, LeaderRole) else ""
        self._end_role(Fenced(f"{self.place}: leader epoch {epoch} is over; refresh metadata"))
        self._set_aim(_REST)

    def lead(self, topic: Topic, publication: Publication) -> None:
        self.topic = topic
        self._set_aim(Aim(Goal.LEAD, publication))

    def follow(self, topic: Topic) -> None:
        self.topic = topic
        self._set_aim(Aim(Goal.FOLLOW))

    def drop(self, *, is_seen: bool) -> None:
        """Remove the replica, because other brokers hold the partition. `is_seen`: rows of one session of this process
        show this."""

        def is_sure() -> bool:
            return is_seen and not is_rebuilt(self._roles.metadata.image)

        self._was_dropped = True
        self._set_aim(Aim(Goal.DROP, is_sure=is_sure))

    def delete(self, is_remembered: Callable[[], bool]) -> None:
        """Close the log, because the topic was deleted. `is_remembered` returns whether the image still names the
        deletion, or the files are being removed. Otherwise the cluster forgot the topic while this broker had no
        session. That does not prove a deletion."""
        if isinstance(self.role, LeaderRole):
            self.role.is_visible = False  # the tables dropped the topic already, and watchers were called
        self._end_role(Fenced(f"topic {self.topic.name} was deleted"))
        self._set_aim(Aim(Goal.DELETE, is_sure=is_remembered))

    def update(self, topic: Topic) -> None:
        """The topic changed within the same leader epoch."""
        self.topic = topic
        if self.role is not None:
            self.role.topic = topic

    def stop(self, why: Exception) -> None:
        """The broker stops. No role begins; a visible leader serves until its log is closed."""
        if self._aim.publication is not None:
            self._aim.publication.drop(self.index, is_given_up=True)
        if isinstance(self.role, LeaderRole):
            if not self.role.is_visible:
                self.role.end(why)
        elif self.role is not None:
            self.role.end()
        if self._aim.goal in (Goal.LEAD, Goal.FOLLOW):
            self._set_aim(_REST)

    async def aim_reached(self) -> None:
        """Wait until the newest aim is reached. The role that the aim began may still be opening."""
        while self._task is not None:
            await asyncio.wait([self._task])

    # ── reaching the aim ─────────────────────────────────────────────────────────────────────────────────────────
    def _end_role(self, why: Exception) -> None:
        if isinstance(self.role, LeaderRole):
            self.role.end(why)
        elif self.role is not None:
            self.role.end()

    def _set_aim(self, aim: Aim) -> None:
        if self._aim.publication is not None and self._aim is not aim:
            self._aim.publication.drop(self.index)  # the publication must not wait for a role that never begins
        self._aim = aim
        if self._task is None:
            name = f"replica {self.place}"
            work = supervise(name, self._reach, self._roles.world.rng, self._roles.report)
            self._task = self._roles.tasks.spawn(name, work)

    async def _reach(self) -> None:
        while True:
            if self.role is not None and self.role.is_over:
                await self._await_end(self.role)
                continue
            if self._was_dropped:  # also if the replica was assigned again meanwhile
                self._was_dropped = False
                self._roles.tiers.drop_reported_end(UUID(self.topic.topic_id), self.index)
                self._roles.logs.forget_joining(self.place, UUID(self.topic.topic_id))
            aim = self._aim
            if aim.goal is Goal.LEAD and self.role is None:
                assert aim.publication is not None
                before = self._before
                self.role = LeaderRole(self._roles, self.topic, self.index, aim.publication, before, self._fenced)
                self.role.begin()
            elif aim.goal is Goal.FOLLOW and self.role is None:
                self._forget_before()
                self.role = FollowerRole(self._roles, self.topic, self.index, self._follows_at_s)
                self.role.begin()
            elif aim.goal in (Goal.DROP, Goal.DELETE):
                self._forget_before()
                await self._remove(aim)
            if self._aim is aim and (self.role is None or not self.role.is_over):
                break
        self._task = None  # no await follows: the next aim starts another task
        if aim.goal in (Goal.DROP, Goal.DELETE):
            self._gone(self)

    async def _await_end(self, role: LeaderRole | FollowerRole) -> None:
        await role.over()
        if isinstance(role, LeaderRole):
            if role.partition is not None:
                self._before, self._pause_s = role.partition, PAUSE_S
            elif role.is_refused:
                self._follows_at_s = self._roles.world.clock.monotonic_s() + self._pause_s
                self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        self.role = None

    def _fenced(self, role: LeaderRole, why: str) -> None:
        """The partition's root has a higher epoch, so this leader role ended. The replica leads again when the image
        gives it a higher epoch."""
        assert self.role is role, f"{self.place}: a role that is over was fenced"
        log.error(
            "%s is led by another broker: %s; this broker may lead it again in a higher leader epoch", self.place, why
        )
        role.end(Fenced(f"{self.place}: {why}"))
        self._set_aim(_REST)

    def _forget_before(self) -> None:
        if self._before is not None:
            self._roles.registry.forget(self._before)
            self._before = None

    # ── removing the log ─────────────────────────────────────────────────────────────────────────────────────────
    async def _remove(self, aim: Aim) -> None:
        roles, place, topic_id = self._roles, self.place, UUID(self.topic.topic_id)
        try:
            await roles.logs.close_of(place, topic_id)
        except OSError as failure:  # the log is not needed any more, but its files must be closed
            roles.report(f"close {place}", failure)
        roles.tiers.forget(topic_id, self.index)
        if self._aim is not aim:
            return  # assigned again before its files were removed
        if not aim.is_sure():
            await self._move_aside(topic_id, aim)
        elif aim.goal is Goal.DROP:
            await self._remove_files(topic_id, aim)

    def _forget_failures(self) -> None:
        """Forget the log's failures. This runs after the removal: if the replica is assigned again before the removal,
        its damaged log is still damaged (R18).
        """
        self._roles.registry.log_failures.over(self.key)

    async def _move_aside(self, topic_id: UUID, aim: Aim) -> None:
        """Move a log without an owner to the strays, so that it is not opened."""
        try:
            await self._roles.logs.move_stray(self.place, topic_id, lambda: self._aim is aim, self._forget_failures)
        except (Corrupt, OSError) as failure:  # the log stays; opening another log in its place fails with the reason
            self._roles.report(f"move {self.place} aside", failure)

    async def _remove_files(self, topic_id: UUID, aim: Aim) -> None:
        roles, place = self._roles, self.place
        try:
            await roles.logs.set_aside(
                place, topic_id, lambda: self._aim is aim and aim.is_sure(), self._forget_failures
            )
        except (Corrupt, OSError) as failure:  # the log stays; the next start treats it as a stray
            roles.report(f"remove {place}", failure)
            return
        if self._aim is not aim:
            return  # assigned again while this task waited
        if not aim.is_sure():  # the cluster was rebuilt while this task waited
            await self._move_aside(topic_id, aim)
            return
        log.info("%s of topic id %s is now on other brokers: its log here is removed", place, topic_id)
        try:
            await roles.logs.directories.delete_set_aside()
        except OSError as failure:  # the next removal or the next start removes it
            roles.report(f"remove {place}", failure)
