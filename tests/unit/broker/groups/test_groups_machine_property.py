"""Whatever members do, in whatever order, and whenever records are stored: what always holds of a classic group."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode
from broker.groups.machine.events import (
    GroupMetadata,
    GroupState,
    JoinReply,
    Leaver,
    Protocol,
    Store,
    SyncReply,
    Unload,
)
from tests.support.groups.group_play import Play

PROTOCOLS = [
    (Protocol("x", b"1"),),
    (Protocol("x", b"2"), Protocol("y", b"2")),
    (Protocol("y", b"3"), Protocol("x", b"3")),
]
INSTANCES = ["i", "j"]
ERRORS = [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]


class ClassicGroupMachine(RuleBasedStateMachine):
    """Members are what the answers say they are: the model knows only tokens and replies."""

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(GroupConfig(group_size_max=4, pending_members_max=3), auto_store=False)
        self.known: list[str] = ["nobody"]
        self.parked: set[str] = set()
        self.generation_seen = 0
        self.leaders: dict[int, str] = {}
        self.members_of: dict[int, set[str]] = {}
        self.stored: list[GroupMetadata] = []
        self.serial = 0

    def ask(self, token: str) -> None:
        self.parked.add(token)

    @rule(member=st.integers(0, 9), known=st.booleans(), words=st.sampled_from(PROTOCOLS), required=st.booleans())
    def join(self, member: int, known: bool, words: tuple[Protocol, ...], required: bool) -> None:
        self.serial += 1
        new_id = f"m{self.serial}"
        member_id = self.known[member % len(self.known)] if known else ""
        token = self.play.join(
            member_id, new_id=new_id, protocols=words, member_id_required=required, rebalance_timeout_ms=8_000
        )
        self.known.append(new_id)
        self.ask(token)

    @rule(instance=st.sampled_from(INSTANCES), words=st.sampled_from(PROTOCOLS), skip=st.booleans())
    def join_static(self, instance: str, words: tuple[Protocol, ...], skip: bool) -> None:
        self.serial += 1
        new_id = f"{instance}{self.serial}"
        token = self.play.join(
            new_id=new_id,
            instance_id=instance,
            protocols=words,
            may_skip_assignment=skip,
            rebalance_timeout_ms=8_000,
            session_timeout_ms=20_000,
        )
        self.known.append(new_id)
        self.ask(token)

    @rule(member=st.integers(0, 30), behind=st.sampled_from([0, 0, 0, 1]))
    def sync(self, member: int, behind: int) -> None:
        member_id = self.known[-1 - member % len(self.known)]
        given = {m.member_id: m.member_id.encode() for m in self.play.group.members}
        self.ask(self.play.sync(member_id, self.play.group.generation - behind, given))

    @rule()
    def leader_syncs(self) -> None:
        leader = self.play.group.members.leader
        if leader is not None:
            given = {m.member_id: m.member_id.encode() for m in self.play.group.members}
            self.ask(self.play.sync(leader, given=given))

    @rule(member=st.integers(0, 30))
    def beat(self, member: int) -> None:
        error = self.play.beat(self.known[-1 - member % len(self.known)])
        assert error in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)

    @rule(member=st.integers(0, 30), instance=st.sampled_from([None, *INSTANCES]))
    def leave(self, member: int, instance: str | None) -> None:
        self.play.leave(Leaver(self.known[-1 - member % len(self.known)] if instance is None else "", instance))

    @rule(delay_ms=st.sampled_from([1, 500, 3_000, 8_000, 10_001, 400_000]))
    def wait(self, delay_ms: int) -> None:
        self.play.wait(delay_ms)

    @precondition(lambda self: self.play.stores)
    @rule(error=st.sampled_from(ERRORS))
    def store(self, error: ErrorCode) -> None:
        metadata = self.play.stores[0].metadata
        self.play.store(error)
        if error is ErrorCode.NONE:
            self.stored.append(metadata)

    @rule(member=st.integers(0, 30), behind=st.sampled_from([0, 1]))
    def commit(self, member: int, behind: int) -> None:
        member_id = self.known[-1 - member % len(self.known)]
        group = self.play.group
        error = self.play.admit(member_id, group.generation - behind)
        if group.generation - behind < 0 and group.state is GroupState.EMPTY:
            assert error is ErrorCode.NONE  # −1: from outside, and nobody is here
        elif error is ErrorCode.NONE:
            assert behind == 0 and member_id in group.members
            assert group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE)

    # ---- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.play.group.generation >= self.generation_seen
        self.generation_seen = self.play.group.generation

    @invariant()
    def a_generation_has_one_leader_who_alone_sees_its_members(self) -> None:
        for token in [t for t in self.parked if t in self.play.answers]:
            self.parked.discard(token)
            reply = self.play.answers[token]
            if isinstance(reply, JoinReply) and reply.error is ErrorCode.NONE and reply.members:
                if reply.skip_assignment:
                    continue  # a static leader under a new id: it leads, but must not assign
                assert reply.leader == reply.member_id
                assert self.leaders.setdefault(reply.generation, reply.leader) == reply.leader
                self.members_of[reply.generation] = {m.member_id for m in reply.members}
            if isinstance(reply, SyncReply) and reply.error is ErrorCode.NONE:
                assert reply.assignment in {b""} | {m.encode() for m in self.known}

    @invariant()
    def assignments_go_to_members_only(self) -> None:
        for metadata in self.stored:
            for row in metadata.members:
                ids = {row.member_id.encode(), b""}
                # A static member keeps what was assigned to the id it had.
                assert row.assignment in ids or row.instance_id is not None
        self.stored = self.stored[-1:]

    @invariant()
    def whoever_waits_will_be_answered(self) -> None:
        """A parked token has a timer of the group or a record on its way behind it."""
        if self.parked - set(self.play.answers):
            assert self.play.timers or self.play.stores

    @invariant()
    def counts_are_those_of_the_members(self) -> None:
        members = self.play.group.members
        assert members.awaiting_join == sum(m.join_token is not None for m in members)
        assert members.size_bytes == sum(m.size_bytes for m in members)
        assert len(members) <= 4 + 1 or self.play.group.state is GroupState.PREPARING_REBALANCE
        for instance in INSTANCES:
            holders = [m.member_id for m in members if m.instance_id == instance]
            assert holders == ([] if members.static_id(instance) is None else [members.static_id(instance)])

    @invariant()
    def every_member_can_be_expired_or_waits(self) -> None:
        """No member lives for ever without a word: it has a session timer, or an excuse that ends."""
        for member in self.play.group.members:
            if self.play.session_ends_ms(member.member_id) is None:
                assert member.excuses_silence

    @invariant()
    def an_empty_group_has_nobody(self) -> None:
        group = self.play.group
        if group.state is GroupState.EMPTY:
            assert len(group.members) == 0
            assert group.protocol_name is None
        elif group.state is not GroupState.PREPARING_REBALANCE:
            assert group.members.leader in group.members

    def teardown(self) -> None:
        """Time and the log go on: in the end everybody was answered."""
        while self.play.stores:
            self.play.store()
        for _ in range(50):
            self.play.wait(100_000)
            while self.play.stores:
                self.play.store()
        assert not self.parked - set(self.play.answers)
        assert self.play.group.is_idle and not self.play.timers
        self.play.give(Unload())
        assert not any(isinstance(effect, Store) for effect in self.play.stores)


TestClassicGroup = ClassicGroupMachine.TestCase
TestClassicGroup.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
