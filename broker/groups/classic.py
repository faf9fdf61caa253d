"""The classic consumer-group protocol as a machine: events in, effects out.

Owns what each request, timer and stored record means to one group; `rebalance` below it owns the phases. Always true: a
token is answered at most once, and every parked token has a running timer or a pending store behind it, so it will be.
Must not know clocks (delays come out, timers come back), randomness, the log, the wire, or committed offsets.

      Empty ──Join──► PreparingRebalance ──all joined, or time──► CompletingRebalance ──leader's Sync stored──► Stable
        ▲                │  ▲                                          │                                         │
        └── nobody left ─┘  └───────── a member comes, goes, changes, is silent, or its Sync never came ─────────┘

Source: Kafka 4.3's group coordinator (classic groups); KIP-345 (static members), KIP-394 (member id required), KIP-559
(protocol in SyncGroup), KIP-814 (skip assignment). Where it differs from Kafka the code says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.config.groups import NAME_BYTES_MAX, PROTOCOLS_MAX, GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.events import (
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
    StartTimer,
    StopTimer,
    Stored,
    Sync,
    SyncReply,
    TimedOut,
    Timer,
    TimerKind,
    Unload,
)
from broker.groups.members import Member
from broker.groups.rebalance import (
    COMPLETING,
    DEAD,
    EMPTY,
    JOIN_TIMER,
    PREPARING,
    STABLE,
    SYNC_TIMER,
    RebalancingGroup,
)


@dataclass(frozen=True, slots=True)
class _AssignmentStore:
    """A generation's assignments on their way to the log."""

    generation: int
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class _StaticStore:
    """A replaced static member on its way to the log, with what undoes the replacement."""

    generation: int
    new_id: str
    old_id: str
    old_protocols: tuple[Protocol, ...]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int
    leader_before: str
    may_skip_assignment: bool


class ClassicGroup(RebalancingGroup):
    """One group. `step` is the only way to change it."""

    @classmethod
    def restore(cls, config: GroupConfig, metadata: GroupMetadata) -> tuple[ClassicGroup, tuple[Effect, ...]]:
        """The group as its last record left it: Stable with everybody's session starting now, or Empty."""
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
        if len(group.members) > config.group_size_max:  # the limit was lowered: let them commit, then sort it out
            group._prepare_rebalance()
        return group, group._take_effects()

    # ---- what others may ask ---------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nobody here, nobody coming, nothing being stored: only committed offsets can keep this group alive."""
        return self.state is EMPTY and not self._pending and not self._stores

    def knows(self, member_id: str) -> bool:
        """Whether the id is a member's, or was handed out."""
        return member_id in self.members or member_id in self._pending

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == "consumer"

    def step(self, event: Event, now_ms: int) -> tuple[Effect, ...]:
        """Take one event at wall time `now_ms`; the effects must be performed in order, before the next step."""
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

    # ---- join ------------------------------------------------------------------------------------------------------

    def _on_join(self, event: Join) -> None:
        error = self._refuses_join(event)
        if error is not ErrorCode.NONE:
            self._reply(event.token, JoinReply(error, event.member_id))
        elif not self._has_room(event):
            self._kick_out(event.member_id)
            self._reply(event.token, JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif not self._speaks(event):
            self._reply(event.token, JoinReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, event.member_id))
        elif event.member_id == NO_MEMBER:
            self._join_unnamed(event)
        elif event.member_id in self._pending and event.instance_id is None:
            self._add(event, event.member_id)
        else:
            error = self._check_member(event.member_id, event.instance_id)
            if error is not ErrorCode.NONE:
                self._reply(event.token, JoinReply(error, event.member_id))
            else:
                self._rejoin(event)

    def _refuses_join(self, event: Join) -> ErrorCode:
        config = self._config
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not config.session_timeout_min_ms <= event.session_timeout_ms <= config.session_timeout_max_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if len(event.protocols) > PROTOCOLS_MAX:
            return ErrorCode.INVALID_REQUEST
        names = [event.protocol_type, event.instance_id or "", *(protocol.name for protocol in event.protocols)]
        if any(len(name) > NAME_BYTES_MAX or len(name.encode()) > NAME_BYTES_MAX for name in names):
            return ErrorCode.INVALID_REQUEST
        if sum(len(protocol.metadata) for protocol in event.protocols) > config.member_metadata_bytes_max:
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _has_room(self, event: Join) -> bool:
        """group.max.size. A static member that comes back under a new id takes no new place (in Kafka it may not)."""
        if self.state is EMPTY:
            return True
        known_id = event.member_id
        if known_id == NO_MEMBER and event.instance_id is not None:
            known_id = self.members.static_id(event.instance_id) or NO_MEMBER
        known = self.members.get(known_id)
        if self.state is PREPARING:
            # Those who wait are counted, so that after the limit was lowered the last ones to rejoin are kicked out.
            waiting = known is not None and known.join_token is not None
            return waiting or self.members.awaiting_join < self._config.group_size_max
        return known is not None or len(self.members) < self._config.group_size_max

    def _kick_out(self, member_id: str) -> None:
        self._pending.discard(member_id)
        if member_id in self.members:
            self._remove(member_id)
        if not self._is_initial:
            self._complete_join_if_all_came()

    def _speaks(self, event: Join) -> bool:
        if self.state is EMPTY:
            return event.protocol_type != "" and len(event.protocols) > 0
        names = (protocol.name for protocol in event.protocols)
        return self.protocol_type == event.protocol_type and self.members.common(names)

    def _join_unnamed(self, event: Join) -> None:
        if event.instance_id is not None:
            old_id = self.members.static_id(event.instance_id)
            if old_id is None:
                self._add(event, event.new_member_id)
            else:
                self._replace_static(event, old_id)
        elif not event.member_id_required:
            self._add(event, event.new_member_id)
        elif len(self._pending) >= self._config.pending_members_max:
            self._reply(event.token, JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED))
        else:
            self._pending.add(event.new_member_id)
            self._effect(StartTimer(Timer(TimerKind.SESSION, event.new_member_id), event.session_timeout_ms))
            self._reply(event.token, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, event.new_member_id))

    def _add(self, event: Join, member_id: str) -> None:
        member = Member(
            member_id,
            event.instance_id,
            event.client_id,
            event.client_host,
            event.session_timeout_ms,
            event.rebalance_timeout_ms,
            event.protocols,
            is_new=True,
        )
        if not self.members:
            self.protocol_type = event.protocol_type
        if self.state is PREPARING and self._is_initial:
            self._initial_extends = True
        self._pending.discard(member_id)
        self.members.add(member)
        self.members.park_join(member, event.token)
        # Not the session timeout: it cannot send heartbeats while its join is parked, and if its connection died
        # nobody tells us. One that is alive simply asks again.
        self._start_session(member, self._config.new_member_join_timeout_ms)
        self._rebalance_or_complete()

    def _rejoin(self, event: Join) -> None:
        member = self.members.get(event.member_id)
        assert member is not None
        unchanged = member.protocols == event.protocols
        leads = self.members.is_leader(member.member_id)
        if self.state is COMPLETING and unchanged:
            # It probably never got the answer to its first join.
            self._reply(event.token, self._joined(member))
        elif self.state is STABLE and unchanged and not leads:
            self._reply(event.token, self._joined(member))
        else:
            # A leader that joins again wants new assignments: it saw something the metadata does not say.
            self.members.update(member, event.protocols, event.session_timeout_ms, event.rebalance_timeout_ms)
            self._park_join(member, event.token)
            self._rebalance_or_complete()

    def _park_join(self, member: Member, token: object) -> None:
        previous = self.members.park_join(member, token)
        # Kafka forgets the earlier request of a member that asks twice; here every request gets an answer.
        self._reply(previous, JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))

    # ---- static members --------------------------------------------------------------------------------------------

    def _replace_static(self, event: Join, old_id: str) -> None:
        """A static member is back under a new id: the old id is fenced at once."""
        member = self.members.get(old_id)
        assert member is not None
        leader_before = self.members.leader or NO_MEMBER
        old = (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)
        self._reply(self.members.take_join(member), JoinReply(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._answer_sync(member, SyncReply(ErrorCode.FENCED_INSTANCE_ID))
        self._effect(StopTimer(Timer(TimerKind.SESSION, old_id)))
        self._unsynced.discard(old_id)
        self.members.rename(member, event.new_member_id)
        member.is_new = False
        self.members.update(member, event.protocols, event.session_timeout_ms, event.rebalance_timeout_ms)
        self._park_join(member, event.token)
        self._start_session(member)
        if self.state is STABLE and self.members.elect_protocol() == self.protocol_name:
            # Nothing changes for the others: store the new id, then answer with the running generation.
            undo = _StaticStore(
                self.generation, event.new_member_id, old_id, *old, leader_before, event.may_skip_assignment
            )
            self._store(self.metadata(), undo)
        else:
            # In CompletingRebalance the leader may already be assigning partitions to the old id.
            self._rebalance_or_complete()

    def _on_static_stored(self, store: _StaticStore, error: ErrorCode) -> None:
        member = self.members.get(store.new_id)
        if self.state is not STABLE or self.generation != store.generation or member is None:
            return  # a rebalance took the parked join over, or the member is gone
        if error is ErrorCode.NONE:
            leads = self.members.is_leader(store.new_id)
            if store.may_skip_assignment:
                reply = self._joined(member, skip_assignment=leads)
            else:
                # Before v9 one told that it leads would assign; told that its old id leads, it only syncs.
                reply = self._joined(member, leader=store.leader_before)
            self._reply(self.members.take_join(member), reply)
            self._start_session(member)
            return
        self._reply(self.members.take_join(member), JoinReply(error))
        self._effect(StopTimer(Timer(TimerKind.SESSION, store.new_id)))
        self.members.rename(member, store.old_id)
        self.members.update(member, store.old_protocols, store.old_session_timeout_ms, store.old_rebalance_timeout_ms)
        self._start_session(member)

    # ---- sync ------------------------------------------------------------------------------------------------------

    def _on_sync(self, event: Sync) -> None:
        error = self._refuses_sync(event)
        if error is not ErrorCode.NONE:
            self._reply(event.token, SyncReply(error))
            return
        member = self.members.get(event.member_id)
        assert member is not None
        self._unsynced.discard(event.member_id)
        if not self._unsynced:
            self._effect(StopTimer(SYNC_TIMER))
        if self.state is STABLE:
            self._reply(
                event.token, SyncReply(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)
            )
            return
        previous, member.sync_token = member.sync_token, event.token
        self._reply(previous, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        if self.members.is_leader(event.member_id):
            self._store_assignments(dict(event.assignments))

    def _refuses_sync(self, event: Sync) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._check_member(event.member_id, event.instance_id)
        if error is not ErrorCode.NONE:
            return error
        if event.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if _contradicts(event.protocol_type, self.protocol_type) or _contradicts(
            event.protocol_name, self.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.REBALANCE_IN_PROGRESS if self.state is PREPARING else ErrorCode.NONE

    def _store_assignments(self, given: dict[str, bytes]) -> None:
        for store in self._stores.values():
            if isinstance(store, _AssignmentStore) and store.generation == self.generation:
                return  # the leader asks again while its first answer is being stored
        assignments = {member.member_id: given.get(member.member_id, b"") for member in self.members}
        size = self.members.size_bytes + sum(map(len, assignments.values()))
        if size > self._config.group_record_bytes_max:
            self._fail_assignments(ErrorCode.UNKNOWN_SERVER_ERROR)  # Kafka's answer to a record that is too large
        else:
            self._store(self.metadata(assignments), _AssignmentStore(self.generation, assignments))

    def _on_assignments_stored(self, store: _AssignmentStore, error: ErrorCode) -> None:
        if self.state is not COMPLETING or self.generation != store.generation:
            return  # somebody came or went meanwhile: the next generation will decide
        if error is not ErrorCode.NONE:
            self._fail_assignments(error)
            return
        self._move_to(STABLE)
        for member in self.members:
            self.members.assign(member, store.assignments.get(member.member_id, b""))
            reply = SyncReply(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)
            self._answer_sync(member, reply)

    def _fail_assignments(self, error: ErrorCode) -> None:
        for member in self.members:
            self.members.assign(member, b"")
            self._answer_sync(member, SyncReply(error))
        self._prepare_rebalance()

    def _on_sync_timer(self) -> None:
        if self.state not in (COMPLETING, STABLE) or not self._unsynced:
            return
        for member in self.members:  # in order of arrival: the same run twice must do the same
            if member.member_id in self._unsynced:
                self._remove(member.member_id)
        self._prepare_rebalance()

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
        if error is ErrorCode.NONE and self.state in (STABLE, PREPARING):
            self._start_session_of(event.member_id)  # a commit is a sign of life
        self._reply(event.token, AdmitReply(error))

    def _refuses_commit(self, event: AdmitCommit) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if event.generation < 0 and self.state is EMPTY:
            return ErrorCode.NONE
        if event.generation < 0 and event.member_id == NO_MEMBER and event.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID  # somebody outside group management, while the group has members
        error = self._check_identity(event.member_id, event.instance_id, event.generation)
        if error is ErrorCode.NONE and self.state is COMPLETING:
            # It knows the new generation but has no assignment in it yet.
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
        if isinstance(store, _AssignmentStore):
            self._on_assignments_stored(store, event.error)
        elif isinstance(store, _StaticStore):
            self._on_static_stored(store, event.error)
        # An empty generation that was not stored: after a restart the one before it is back, and times out.

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


def _contradicts(asked: str | None, held: str | None) -> bool:
    return asked is not None and held is not None and asked != held
