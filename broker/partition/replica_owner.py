"""The owner of one replica on this broker: its log has one role at a time, or goes.

Owns the order of roles. One task for a replica follows the newest aim: it waits until the role that is over gave the
log back, then begins the next, or closes and removes the log. Always true: an aim ends a role at once; the next role
begins when nothing of the one before works on the log; an aim that changed before its turn is never begun. The states,
and what happens when the image says something else meanwhile, are drawn in `docs/design/late-work.md`.
Must not know how a role does its work, nor who decided it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

from broker.metadata.image import Topic
from broker.metadata.rebuilt import is_rebuilt
from broker.partition.following.follower_role import FollowerRole
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.leader_role import LeaderRole
from broker.partition.leading.publication import Publication
from broker.partition.roles import Roles
from logformat.errors import Corrupt, Fenced
from logformat.values import TopicPartition
from seams.tasks import supervise

log = logging.getLogger(__name__)


class Goal(Enum):
    """What is to become of a replica."""

    REST = "no role; its log stays open for the next one"
    LEAD = "led"
    FOLLOW = "copied"
    DROP = "held by other brokers: its log goes"
    DELETE = "of a deleted topic: its log is closed"


@dataclass(frozen=True, slots=True, eq=False)
class Aim:
    """What the image says, as one call of the publisher said it. `publication`: of what is to be led; `is_sure`: there
    is a proof that the log is not wanted here (R8, R24); else it is kept aside."""

    goal: Goal
    publication: Publication | None = None
    is_sure: Callable[[], bool] = lambda: False


_REST: Final = Aim(Goal.REST)


class ReplicaOwner:
    """See the module. `gone` is called when nothing of the replica is left here."""

    __slots__ = ("_aim", "_before", "_gone", "_roles", "_task", "_was_dropped", "index", "place", "role", "topic")

    def __init__(self, roles: Roles, topic: Topic, index: int, gone: Callable[[ReplicaOwner], None]) -> None:
        self.topic = topic
        """As the image has it now."""
        self.index = index
        self.place = TopicPartition(topic.name, index)
        self.role: LeaderRole | FollowerRole | None = None
        """The one that lasts, or that is over and gave the log not back yet."""
        self._roles = roles
        self._gone = gone
        self._aim = _REST
        self._before: LeaderReplica | None = None  # as it was led last, while its log stayed open since
        self._was_dropped = False  # since its last role: what a leader said is to be let go, once that is over
        self._task: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.topic.topic_id, self.index

    @property
    def damaged(self) -> str:
        """Why it is to be led and stays offline; empty where it does not."""
        return self.role.damaged if isinstance(self.role, LeaderRole) else ""

    @property
    def is_in_doubt(self) -> bool:
        """Whether its log's tail is: of a role, or of one that did not come to begin."""
        if self.role is not None:
            return self.role.is_in_doubt
        return self._aim.goal in (Goal.LEAD, Goal.FOLLOW) and self.topic.rows[self.index].partition_epoch > 0

    # ── what the image says ──────────────────────────────────────────────────────────────────────────────────────
    def rest(self) -> None:
        """Its role of an epoch is over; the log stays open."""
        epoch = self.role.leader_epoch if isinstance(self.role, LeaderRole) else ""
        self._end_role(Fenced(f"{self.place}: leader epoch {epoch} is over; refresh metadata"))
        self._follow(_REST)

    def lead(self, topic: Topic, publication: Publication) -> None:
        """Led from now on, in the leader epoch of its row."""
        self.topic = topic
        self._follow(Aim(Goal.LEAD, publication))

    def follow(self, topic: Topic) -> None:
        """Copied from now on, in the leader epoch of its row."""
        self.topic = topic
        self._follow(Aim(Goal.FOLLOW))

    def drop(self, *, is_seen: bool) -> None:
        """Others hold it; `is_seen`: by rows of one session of this process."""

        def is_sure() -> bool:
            return is_seen and not is_rebuilt(self._roles.metadata.image)

        self._was_dropped = True
        self._follow(Aim(Goal.DROP, is_sure=is_sure))

    def delete(self, is_remembered: Callable[[], bool]) -> None:
        """Its topic was deleted. `is_remembered`: somebody removes the files; else the cluster forgot the topic while
        this broker did not look, and what it does not name any more is no proof."""
        if isinstance(self.role, LeaderRole):
            self.role.is_visible = False  # the look-up tables lost the whole topic, and watchers were told
        self._end_role(Fenced(f"topic {self.topic.name} was deleted"))
        self._follow(Aim(Goal.DELETE, is_sure=is_remembered))

    def update(self, topic: Topic) -> None:
        """The topic as it is now: in the same leader epoch."""
        self.topic = topic
        if self.role is not None:
            self.role.topic = topic

    def stop(self, why: Exception) -> None:
        """The broker stops: nothing begins any more; what serves goes on until its log is closed."""
        if self._aim.publication is not None:
            self._aim.publication.drop(self.index, is_given_up=True)
        if isinstance(self.role, LeaderRole):
            if not self.role.is_visible:
                self.role.end(why)
        elif self.role is not None:
            self.role.end()
        if self._aim.goal in (Goal.LEAD, Goal.FOLLOW):
            self._follow(_REST)

    async def settled(self) -> None:
        """Wait until it has come to what was asked for; a role that it began may still be opening."""
        while self._task is not None:
            await asyncio.wait([self._task])

    # ── following it ─────────────────────────────────────────────────────────────────────────────────────────────
    def _end_role(self, why: Exception) -> None:
        if isinstance(self.role, LeaderRole):
            self.role.end(why)
        elif self.role is not None:
            self.role.end()

    def _follow(self, aim: Aim) -> None:
        if self._aim.publication is not None and self._aim is not aim:
            self._aim.publication.drop(self.index)  # where it never began: nobody waits for it any more
        self._aim = aim
        if self._task is None:
            name = f"replica {self.place}"
            work = supervise(name, self._reach, self._roles.world.rng, self._roles.report)
            self._task = self._roles.tasks.spawn(name, work)

    async def _reach(self) -> None:
        """Until the newest aim is reached."""
        while True:
            if self.role is not None and self.role.is_over:
                await self._take_back(self.role)
                continue
            if self._was_dropped:  # whether or not it is given back before its log goes
                self._was_dropped = False
                self._roles.tiers.drop_reported_end(UUID(self.topic.topic_id), self.index)
            aim = self._aim
            if aim.goal is Goal.LEAD and self.role is None:
                assert aim.publication is not None
                before = self._before
                self.role = LeaderRole(self._roles, self.topic, self.index, aim.publication, before, self._fenced)
                self.role.begin()
            elif aim.goal is Goal.FOLLOW and self.role is None:
                self._forget_before()
                self.role = FollowerRole(self._roles, self.topic, self.index)
                self.role.begin()
            elif aim.goal in (Goal.DROP, Goal.DELETE):
                self._forget_before()
                await self._remove(aim)
            if self._aim is aim and (self.role is None or not self.role.is_over):
                break
        self._task = None  # in the same turn of the loop: the next aim begins another one
        if aim.goal in (Goal.DROP, Goal.DELETE):
            self._gone(self)

    async def _take_back(self, role: LeaderRole | FollowerRole) -> None:
        """The role is over: the log is free when this returns."""
        await role.over()
        if isinstance(role, LeaderRole) and role.partition is not None:
            self._before = role.partition
        self.role = None

    def _fenced(self, role: LeaderRole, why: str) -> None:
        """The partition's root names a higher epoch: its leadership is over, this partition's alone. It leads again
        when the image says so, in a higher one."""
        assert self.role is role, f"{self.place}: a role that is over tells nothing"
        log.error("%s is led by somebody else: %s; it leads again in a higher leader epoch", self.place, why)
        role.end(Fenced(f"{self.place}: {why}"))
        self._follow(_REST)

    def _forget_before(self) -> None:
        if self._before is not None:
            self._roles.registry.forget(self._before)
            self._before = None

    # ── its log goes ─────────────────────────────────────────────────────────────────────────────────────────────
    async def _remove(self, aim: Aim) -> None:
        roles, place, topic_id = self._roles, self.place, UUID(self.topic.topic_id)
        try:
            await roles.logs.close_of(place, topic_id)
        except OSError as failure:  # of a file nobody needs any more; it is closed all the same
            roles.report(f"close {place}", failure)
        roles.tiers.forget(topic_id, self.index)
        if self._aim is not aim:
            return  # given back before its files went
        if aim.goal is Goal.DELETE:
            if not aim.is_sure():
                await self._move_aside(topic_id, aim)
        elif aim.is_sure():
            await self._remove_files(topic_id, aim)
        else:
            await self._move_aside(topic_id, aim)

    async def _move_aside(self, topic_id: UUID, aim: Aim) -> None:
        """A log that nobody knows goes where nothing opens it, and nothing removes it."""
        try:
            await self._roles.logs.move_stray(self.place, topic_id, lambda: self._aim is aim)
        except (Corrupt, OSError) as failure:  # it lies where it lay; whoever needs the place is told so
            self._roles.report(f"move {self.place} aside", failure)

    async def _remove_files(self, topic_id: UUID, aim: Aim) -> None:
        roles, place = self._roles, self.place
        try:
            await roles.logs.set_aside(place, topic_id, lambda: self._aim is aim)
        except (Corrupt, OSError) as failure:  # it lies where it lay: a stray to the next start
            roles.report(f"remove {place}", failure)
            return
        if self._aim is not aim:
            return  # given back while it waited for its turn
        log.info("%s of topic id %s is held by other brokers now: its log here is removed", place, topic_id)
        try:
            await roles.logs.directories.delete_set_aside()
        except OSError as failure:  # nothing opens it; the next removal, or the next start, removes it
            roles.report(f"remove {place}", failure)
