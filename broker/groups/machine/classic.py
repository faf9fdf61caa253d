"""State machine of the classic consumer-group protocol: events in, effects out.

Handles heartbeats, leaving, commits, timers and stored records of one group; `joins` and `syncs` handle JoinGroup and
SyncGroup, `rebalance` handles the phases. A token is answered at most once. For every parked token a timer runs or a
store is pending.

      Empty ──Join──► PreparingRebalance ──all joined, or time──► CompletingRebalance ──leader's Sync stored──► Stable
        ▲                │  ▲                                          │                                         │
        └─no member left─┘  └───────── a member joins, leaves, changes, is silent, or never sent its Sync ───────┘

Source: Kafka 4.3's group coordinator (classic groups); KIP-345 (static members), KIP-394 (member id required), KIP-559
(protocol in SyncGroup), KIP-814 (skip assignment). Differences from Kafka are marked in the code.
"""

from __future__ import annotations

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.machine.events import (
    NO_MEMBER,
    AdmitCommit,
    AdmitReply,
    Effect,
    Event,
    GroupMetadata,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    LeftMember,
    Protocol,
    StopTimer,
    Stored,
    Sync,
    SyncReply,
    TimedOut,
    Timer,
    TimerKind,
    Unload,
)
from broker.groups.machine.joins import JoiningGroup, StaticStore
from broker.groups.machine.members import Member
from broker.groups.machine.rebalance import (
    COMPLETING,
    DEAD,
    EMPTY,
    JOIN_TIMER,
    PREPARING,
    STABLE,
    SYNC_TIMER,
)
from broker.groups.machine.syncs import AssignmentStore, SyncingGroup


class ClassicGroup(JoiningGroup, SyncingGroup):
    """One group, changed only by `step`."""

    @classmethod
    def restore(cls, config: GroupConfig, metadata: GroupMetadata) -> tuple[ClassicGroup, tuple[Effect, ...]]:
        """The group as its last record describes it: Stable, with sessions that start now, or Empty."""
        group = cls(config, metadata.state_since_ms)
        group.generation = metadata.generation
        group.protocol_type = metadata.protocol_type or None
        group.protocol_name = metadata.protocol_name
        for row in metadata.members:
            rebalance_ms = row.rebalance_timeout_ms if row.rebalance_timeout_ms >= 0 else row.session_timeout_ms
            protocols = (Protocol(metadata.protocol_name or "", row.subscription),)
            group.members.add(
                Member(
                    row.member_id,
                    row.instance_id,
                    row.client_id,
                    row.client_host,
                    row.session_timeout_ms,
                    rebalance_ms,
                    protocols,
                    row.assignment,
                )
            )
        if group.members:
            group.state = STABLE
            if metadata.leader is not None and metadata.leader in group.members:
                group.members.leader = metadata.leader
        for member in group.members:
            group._start_session(member)
        if len(group.members) > config.group_size_max:  # the limit was lowered: members may commit and then rebalance
            group._prepare_rebalance()
        return group, group._take_effects()

    # ---- queries ---------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """No member, no pending member, no store: only committed offsets can keep this group alive."""
        return self.state is EMPTY and not self._pending and not self._stores

    def knows(self, member_id: str) -> bool:
        """Whether the id belongs to a member, or was handed out."""
        return member_id in self.members or member_id in self._pending

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == "consumer"

    def step(self, event: Event, now_ms: int) -> tuple[Effect, ...]:
        """Handle one event at wall time `now_ms`. The effects must be performed in order, before the next step."""
        self._now_ms = now_ms
        match event:
            case Heartbeat():
                self._on_heartbeat(event)
            case AdmitCommit():
                self._on_admit_commit(event)
            case Join():
                self._on_join(event)
            case Sync():
                self._on_sync(event)
            case Leave():
                self._on_leave(event)
            case TimedOut():
                self._on_timed_out(event.timer)
            case Stored():
                self._on_stored(event)
            case Unload():
                self._on_unload(event)
        return self._take_effects()

    # ---- heartbeats, leaving, commits ------------------------------------------------------------------------------

    def _on_heartbeat(self, event: Heartbeat) -> None:
        error = self._check_identity(event.member_id, event.instance_id, event.generation)
        if error is ErrorCode.NONE:
            self._start_session_of(event.member_id)
            if self.state is PREPARING:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        self._reply(event.token, HeartbeatReply(error))

    def _on_leave(self, event: Leave) -> None:
        if self.state is DEAD:
            self._reply(event.token, LeaveReply(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        rows = []
        for member_id, instance_id in event.members:
            rows.append(LeftMember(member_id, instance_id, self._leave_one(member_id, instance_id)))
        self._reply(event.token, LeaveReply(members=tuple(rows)))
        if any(row.error is ErrorCode.NONE for row in rows) and self.state is not EMPTY:
            self._rebalance_or_complete()

    def _leave_one(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if member_id == NO_MEMBER:
            known_id = None if instance_id is None else self.members.static_id(instance_id)
            if known_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            self._remove(known_id)
            return ErrorCode.NONE
        if member_id in self._pending:
            self._pending.discard(member_id)
            self._effect(StopTimer(Timer(TimerKind.SESSION, member_id)))
            return ErrorCode.NONE
        error = self._check_member(member_id, instance_id)
        if error is ErrorCode.NONE:
            self._remove(member_id)
        return error

    def _on_admit_commit(self, event: AdmitCommit) -> None:
        error = self._refuses_commit(event)
        if error is ErrorCode.NONE and self.state in (STABLE, PREPARING) and not event.is_transactional:
            self._start_session_of(event.member_id)  # a commit is a sign of life
        self._reply(event.token, AdmitReply(error))

    def _refuses_commit(self, event: AdmitCommit) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if event.generation < 0 and self.state is EMPTY:
            return ErrorCode.NONE
        if event.generation < 0 and event.member_id == NO_MEMBER and event.instance_id is None:
            if event.is_transactional:
                return ErrorCode.NONE
            return ErrorCode.UNKNOWN_MEMBER_ID  # it is outside group management, but the group has members
        error = self._check_identity(event.member_id, event.instance_id, event.generation)
        if error is ErrorCode.NONE and self.state is COMPLETING and not event.is_transactional:
            # The member knows the new generation but has no assignment in it yet.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    # ---- timers, stores, the end -----------------------------------------------------------------------------------

    def _on_timed_out(self, timer: Timer) -> None:
        if self.state is DEAD:
            return
        if timer.kind is TimerKind.JOIN:
            self._on_join_timer()
        elif timer.kind is TimerKind.SYNC:
            self._on_sync_timer()
        else:
            self._on_session_timer(timer.member_id)

    def _on_session_timer(self, member_id: str) -> None:
        if member_id in self._pending:
            self._pending.discard(member_id)
            self._complete_join_if_all_came()
            return
        member = self.members.get(member_id)
        if member is None or member.excuses_silence:
            return
        self._remove(member_id)
        if self.state in (STABLE, COMPLETING):
            self._prepare_rebalance()
        else:
            self._complete_join_if_all_came()

    def _on_stored(self, event: Stored) -> None:
        store = self._stores.pop(event.ticket)
        if isinstance(store, AssignmentStore):
            self._on_assignments_stored(store, event.error)
        elif isinstance(store, StaticStore):
            self._on_static_stored(store, event.error)
        # An empty generation that was not stored needs no action. After a restart the previous generation is back, and
        # its members time out.

    def _on_unload(self, event: Unload) -> None:
        if self.state is DEAD:
            return
        for member in self.members:
            self._reply(self.members.take_join(member), JoinReply(event.error, member.member_id))
            self._answer_sync(member, SyncReply(event.error))
            self._effect(StopTimer(Timer(TimerKind.SESSION, member.member_id)))
        for member_id in sorted(self._pending):
            self._effect(StopTimer(Timer(TimerKind.SESSION, member_id)))
        self._pending.clear()
        self._effect(StopTimer(JOIN_TIMER))
        self._effect(StopTimer(SYNC_TIMER))
        self._move_to(DEAD)
