"""The phases of a rebalance: from one generation of a classic group to the next.

Transitions follow `PREDECESSORS`; the generation only grows. A removed member's parked requests are answered. Source:
Kafka 4.3's group coordinator (classic groups); KIP-134 (initial rebalance delay).
"""

from __future__ import annotations

from typing import Final

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.machine.events import (
    NO_MEMBER,
    Effect,
    GroupMetadata,
    GroupState,
    JoinReply,
    Reply,
    Result,
    StartTimer,
    StopTimer,
    Store,
    SyncReply,
    Timer,
    TimerKind,
)
from broker.groups.machine.members import Member, Members

EMPTY: Final = GroupState.EMPTY
PREPARING: Final = GroupState.PREPARING_REBALANCE
COMPLETING: Final = GroupState.COMPLETING_REBALANCE
STABLE: Final = GroupState.STABLE
DEAD: Final = GroupState.DEAD

PREDECESSORS: Final[dict[GroupState, frozenset[GroupState]]] = {
    EMPTY: frozenset({PREPARING}),
    PREPARING: frozenset({EMPTY, COMPLETING, STABLE}),
    COMPLETING: frozenset({PREPARING}),
    STABLE: frozenset({COMPLETING}),
    DEAD: frozenset({EMPTY, PREPARING, COMPLETING, STABLE}),
}

JOIN_TIMER: Final = Timer(TimerKind.JOIN)
SYNC_TIMER: Final = Timer(TimerKind.SYNC)
GROUP_OVERHEAD_BYTES: Final = 2_000  # a group without members (measured: 1.8 KB, CPython 3.11)
PENDING_OVERHEAD_BYTES: Final = 600  # a handed out id, with its timer (measured: 0.5 KB)


class RebalancingGroup:
    """State, members and phases of one group. Effects are collected until `_take_effects`."""

    def __init__(self, config: GroupConfig, now_ms: int) -> None:
        self.state = EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members = Members()
        self.state_since_ms = now_ms
        self._config = config
        self._pending: set[str] = set()  # ids given out with MEMBER_ID_REQUIRED that have not joined yet
        self._unsynced: set[str] = set()  # members of this generation without a SyncGroup yet
        self._is_initial = False  # the group was Empty: the delay ends the phase, not the number of joins
        self._initial_left_ms = 0
        self._initial_extends = False
        self._now_ms = now_ms
        self._last_ticket = 0
        self._stores: dict[int, object] = {}  # by ticket: a pending record, and its continuation
        self._effects: list[Effect] = []

    @property
    def size_bytes(self) -> int:
        return GROUP_OVERHEAD_BYTES + self.members.size_bytes + PENDING_OVERHEAD_BYTES * len(self._pending)

    def metadata(self, assignments: dict[str, bytes] | None = None) -> GroupMetadata:
        """The record of this generation. `assignments` (not yet given out) replace the members' assignments."""
        rows = tuple(
            member.stored(
                self.protocol_name, member.assignment if assignments is None else assignments.get(member.member_id, b"")
            )
            for member in self.members
        )
        leader = self.members.leader
        return GroupMetadata(
            self.protocol_type or "", self.generation, self.protocol_name, leader, self.state_since_ms, rows
        )

    # ---- the join phase --------------------------------------------------------------------------------------------

    def _rebalance_or_complete(self) -> None:
        if self.state in PREDECESSORS[PREPARING]:
            self._prepare_rebalance()
        elif not self._is_initial:
            self._complete_join_if_all_came()

    def _prepare_rebalance(self) -> None:
        if self.state is COMPLETING:
            for member in self.members:
                self.members.assign(member, b"")
                self._answer_sync(member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
        self._unsynced.clear()
        self._effect(StopTimer(SYNC_TIMER))
        self._is_initial = self.state is EMPTY
        self._move_to(PREPARING)
        if self._is_initial:
            # A new group: other members probably start at the same time, and one rebalance is cheaper than several.
            delay_ms = self._config.initial_rebalance_delay_ms
            self._initial_left_ms = max(self.members.rebalance_timeout_ms() - delay_ms, 0)
            self._initial_extends = False
            self._effect(StartTimer(JOIN_TIMER, delay_ms))
        elif not self._complete_join_if_all_came():
            self._effect(StartTimer(JOIN_TIMER, self.members.rebalance_timeout_ms()))

    def _on_join_timer(self) -> None:
        if self.state is not PREPARING:
            return
        delay_ms = self._config.initial_rebalance_delay_ms
        if self._is_initial and self._initial_extends and self._initial_left_ms > 0:
            self._initial_extends = False
            delay_ms = min(delay_ms, self._initial_left_ms)
            self._initial_left_ms -= delay_ms
            self._effect(StartTimer(JOIN_TIMER, delay_ms))
        else:
            self._complete_join()

    def _complete_join_if_all_came(self) -> bool:
        if self.state is PREPARING and self.members.awaiting_join == len(self.members) and not self._pending:
            self._complete_join()
            return True
        return False

    def _complete_join(self) -> None:
        for member in self.members:
            if member.join_token is None and member.instance_id is None:
                self._remove(member.member_id)
        if len(self.members) > 0 and not self.members.elect_joined_leader():
            # All members are static and none has joined: wait until one joins, or until their sessions end.
            self._effect(StartTimer(JOIN_TIMER, self.members.rebalance_timeout_ms()))
            return
        self._effect(StopTimer(JOIN_TIMER))
        self._is_initial = False
        self.generation += 1
        self._unsynced.clear()
        if len(self.members) == 0:
            self.protocol_name = None
            self._move_to(EMPTY)
            self._store(self.metadata(), None)
            return
        self.protocol_name = self.members.elect_protocol()
        self._move_to(COMPLETING)
        for member in self.members:
            self._reply(self.members.take_join(member), self._joined(member))
            member.is_new = False
            self._start_session(member)
            self._unsynced.add(member.member_id)
        self._effect(StartTimer(SYNC_TIMER, self.members.rebalance_timeout_ms()))

    def _joined(self, member: Member, *, leader: str | None = None, skip_assignment: bool = False) -> JoinReply:
        assert self.protocol_name is not None
        leads = leader is None and self.members.is_leader(member.member_id)
        return JoinReply(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader if leader is not None else self.members.leader or NO_MEMBER,
            skip_assignment=skip_assignment,
            members=self.members.listed(self.protocol_name) if leads else (),
        )

    # ---- helpers ---------------------------------------------------------------------------------------------------

    def _check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known_id = self.members.static_id(instance_id)
            if known_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def _check_identity(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._check_member(member_id, instance_id)
        if error is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _remove(self, member_id: str) -> None:
        """Remove a member, with an error that makes a live client join as a new member."""
        member = self.members.get(member_id)
        assert member is not None
        self._reply(self.members.take_join(member), JoinReply(ErrorCode.UNKNOWN_MEMBER_ID))
        self._answer_sync(member, SyncReply(ErrorCode.UNKNOWN_MEMBER_ID))
        self.members.remove(member_id)
        self._unsynced.discard(member_id)
        self._effect(StopTimer(Timer(TimerKind.SESSION, member_id)))

    def _start_session(self, member: Member, delay_ms: int | None = None) -> None:
        delay_ms = member.session_timeout_ms if delay_ms is None else delay_ms
        self._effect(StartTimer(Timer(TimerKind.SESSION, member.member_id), delay_ms))

    def _start_session_of(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._start_session(member)

    def _answer_sync(self, member: Member, reply: SyncReply) -> None:
        token, member.sync_token = member.sync_token, None
        if token is not None:
            self._reply(token, reply)
            self._start_session(member)  # the session may have expired while the member waited

    def _move_to(self, state: GroupState) -> None:
        assert self.state in PREDECESSORS[state], f"{self.state} to {state}"
        self.state = state
        self.state_since_ms = self._now_ms

    def _store(self, metadata: GroupMetadata, meaning: object) -> None:
        self._last_ticket += 1
        self._stores[self._last_ticket] = meaning
        self._effect(Store(self._last_ticket, metadata))

    def _reply(self, token: object | None, result: Result) -> None:
        if token is not None:
            self._effects.append(Reply(token, result))

    def _effect(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _take_effects(self) -> tuple[Effect, ...]:
        effects, self._effects = tuple(self._effects), []
        return effects
