"""JoinGroup: new members, rejoins, and static members that return under a new id.

Source: KIP-345, KIP-394, KIP-814. Each join is answered once, at once or at the end of the join phase. The old id of a
static member is fenced before the new id is answered.
"""

from __future__ import annotations

import msgspec

from broker.config.groups import NAME_BYTES_MAX, PROTOCOLS_MAX
from broker.error_codes import ErrorCode
from broker.groups.machine.events import (
    NO_MEMBER,
    Join,
    JoinReply,
    Protocol,
    StartTimer,
    StopTimer,
    SyncReply,
    Timer,
    TimerKind,
)
from broker.groups.machine.members import MEMBER_OVERHEAD_BYTES, Member
from broker.groups.machine.rebalance import COMPLETING, DEAD, EMPTY, PREPARING, STABLE, RebalancingGroup


class StaticStore(msgspec.Struct, frozen=True):
    """The pending write of a replaced static member, with the data to undo the replacement."""

    generation: int
    new_id: str
    old_id: str
    old_protocols: tuple[Protocol, ...]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int
    leader_before: str
    may_skip_assignment: bool


class JoiningGroup(RebalancingGroup):
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
        """Whether group.max.size allows another member, and the group's record could hold its metadata. A static member
        that returns under a new id does not count twice (in Kafka it may)."""
        if self.state is EMPTY:
            return True
        known_id = event.member_id
        if known_id == NO_MEMBER and event.instance_id is not None:
            known_id = self.members.static_id(event.instance_id) or NO_MEMBER
        known = self.members.get(known_id)
        more = MEMBER_OVERHEAD_BYTES + sum(len(protocol.metadata) for protocol in event.protocols)
        size = self.members.size_bytes + more - (0 if known is None else known.size_bytes)
        if size > self._config.group_record_bytes_max:
            return False  # no SyncGroup could succeed, and the leader would get all metadata in one response
        if self.state is PREPARING:
            # Waiting members count, so that after a reduction of the limit the members that rejoin last are removed.
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
        # The session timeout does not apply yet, because the member cannot send heartbeats while its join is parked. A
        # dead connection is not reported, so a join timeout applies. A live member joins again.
        self._start_session(member, self._config.new_member_join_timeout_ms)
        self._rebalance_or_complete()

    def _rejoin(self, event: Join) -> None:
        member = self.members.get(event.member_id)
        assert member is not None
        unchanged = member.protocols == event.protocols
        leads = self.members.is_leader(member.member_id)
        if self.state is COMPLETING and unchanged:
            # The member probably did not get the response to its first join.
            self._reply(event.token, self._joined(member))
        elif self.state is STABLE and unchanged and not leads:
            self._reply(event.token, self._joined(member))
        else:
            # A leader that joins again requests new assignments, even if its metadata is unchanged.
            self.members.update(member, event.protocols, event.session_timeout_ms, event.rebalance_timeout_ms)
            self._park_join(member, event.token)
            self._rebalance_or_complete()

    def _park_join(self, member: Member, token: object) -> None:
        previous = self.members.park_join(member, token)
        # Kafka drops the earlier request of a member that joins twice; here every request is answered.
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
            # The other members are not affected: store the new id, then answer with the current generation.
            undo = StaticStore(
                self.generation, event.new_member_id, old_id, *old, leader_before, event.may_skip_assignment
            )
            self._store(self.metadata(), undo)
        else:
            # In CompletingRebalance the leader may already be assigning partitions to the old id.
            self._rebalance_or_complete()

    def _on_static_stored(self, store: StaticStore, error: ErrorCode) -> None:
        member = self.members.get(store.new_id)
        if self.state is not STABLE or self.generation != store.generation or member is None:
            return  # a rebalance answers the parked join, or the member is gone
        if error is ErrorCode.NONE:
            leads = self.members.is_leader(store.new_id)
            if store.may_skip_assignment:
                reply = self._joined(member, skip_assignment=leads)
            else:
                # Before v9, a member whose id is the leader's id assigns partitions. If the response names the member's
                # old id as the leader, the member only syncs.
                reply = self._joined(member, leader=store.leader_before)
            self._reply(self.members.take_join(member), reply)
            self._start_session(member)
            return
        self._reply(self.members.take_join(member), JoinReply(error))
        self._effect(StopTimer(Timer(TimerKind.SESSION, store.new_id)))
        self.members.rename(member, store.old_id)
        self.members.update(member, store.old_protocols, store.old_session_timeout_ms, store.old_rebalance_timeout_ms)
        self._start_session(member)
