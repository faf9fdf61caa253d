"""SyncGroup: the leader's assignments, stored and then sent to every member.

Source: KIP-559. No member gets an assignment before the assignments are stored. If they cannot be stored, every waiting
member gets the error and the group rebalances.
"""

from __future__ import annotations

import msgspec

from broker.error_codes import ErrorCode
from broker.groups.machine.events import StopTimer, Sync, SyncReply
from broker.groups.machine.rebalance import COMPLETING, DEAD, PREPARING, STABLE, SYNC_TIMER, RebalancingGroup


class AssignmentStore(msgspec.Struct, frozen=True):
    """A generation's assignments being stored."""

    generation: int
    assignments: dict[str, bytes]


class SyncingGroup(RebalancingGroup):
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
            if isinstance(store, AssignmentStore) and store.generation == self.generation:
                return  # the leader asks again while its first assignments are being stored
        assignments = {member.member_id: given.get(member.member_id, b"") for member in self.members}
        size = self.members.size_bytes + sum(map(len, assignments.values()))
        if size > self._config.group_record_bytes_max:
            self._fail_assignments(ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka, for a record that is too large
        else:
            self._store(self.metadata(assignments), AssignmentStore(self.generation, assignments))

    def _on_assignments_stored(self, store: AssignmentStore, error: ErrorCode) -> None:
        if self.state is not COMPLETING or self.generation != store.generation:
            return  # a member joined or left meanwhile: the next generation decides
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
        for member in self.members:  # in order of arrival: runs must be reproducible
            if member.member_id in self._unsynced:
                self._remove(member.member_id)
        self._prepare_rebalance()


def _contradicts(asked: str | None, held: str | None) -> bool:
    return asked is not None and held is not None and asked != held
