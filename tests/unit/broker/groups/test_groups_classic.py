"""Playbooks of the classic group machine: each transition, each refusal, each timer."""

from __future__ import annotations

import pytest

from broker.config.groups import GroupConfig
from broker.error_codes import ErrorCode as E
from broker.groups.machine.classic import ClassicGroup
from broker.groups.machine.events import GroupState, Leaver, Protocol, TimedOut, Timer, TimerKind, Unload
from tests.support.groups.group_play import RANGE, Play

EMPTY, PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
COMPLETING, STABLE, DEAD = GroupState.COMPLETING_REBALANCE, GroupState.STABLE, GroupState.DEAD


# ---- the first generation ------------------------------------------------------------------------------------------


def test_a_new_group_waits_for_others_before_its_first_generation():
    """group.initial.rebalance.delay.ms: one rebalance for all who start together."""
    p = Play()
    first = p.join(new_id="a")
    p.wait(2_999)
    second = p.join(new_id="b")
    assert p.group.state is PREPARING and p.is_parked(first)
    p.wait(1)
    assert p.is_parked(first), "a newcomer within the delay extends it"
    p.wait(3_000)
    assert p.group.state is COMPLETING
    assert [p.joined(t).generation for t in (first, second)] == [1, 1]


def test_the_initial_delay_ends_at_the_rebalance_timeout_however_many_come():
    """Newcomers can extend the delay only up to the rebalance timeout."""
    p = Play()
    first = p.join(new_id="a", rebalance_timeout_ms=7_000)
    for i in range(20):
        p.wait(500)
        if not p.is_parked(first):
            break
        p.join(new_id=f"b{i}", rebalance_timeout_ms=7_000)
    assert p.now_ms == 7_000


def test_all_having_joined_does_not_shorten_the_initial_delay():
    """Nobody knows yet who else will come."""
    p = Play()
    p.join(new_id="a")
    p.wait(2_999)
    assert p.group.state is PREPARING
    p.wait(1)
    assert p.group.state is COMPLETING


def test_everyone_leaving_during_the_initial_delay_empties_the_group():
    """The delay then ends in an empty generation."""
    p = Play()
    token = p.join(new_id="a")
    assert p.leave("a") == [E.NONE]
    assert p.joined(token).error is E.UNKNOWN_MEMBER_ID
    p.wait(10_000)
    assert (p.group.state, p.group.generation) == (EMPTY, 1)


def test_the_leader_alone_gets_the_members():
    """The first to come leads, and sees everybody's metadata."""
    p = Play()
    first = p.join(new_id="a", protocols=(Protocol("range", b"A"),))
    second = p.join(new_id="b", protocols=(Protocol("range", b"B"),), instance_id=None)
    p.wait(6_000)
    assert [(m.member_id, m.metadata) for m in p.joined(first).members] == [("a", b"A"), ("b", b"B")]
    assert p.joined(second).members == ()
    assert p.joined(first).leader == p.joined(second).leader == "a"


def test_assignments_reach_members_only_when_they_are_durable():
    """The leader's sync is stored first; then everybody is answered, and the group is stable."""
    p = Play(auto_store=False)
    p.join(new_id="a")
    p.join(new_id="b")
    p.wait(6_000)
    follower = p.sync("b")
    leader = p.sync("a", given={"a": b"1", "b": b"2", "stranger": b"3"})
    assert p.group.state is COMPLETING and p.is_parked(follower) and p.is_parked(leader)
    (stored,) = p.stores
    assert [(m.member_id, m.assignment) for m in stored.metadata.members] == [("a", b"1"), ("b", b"2")]
    assert (stored.metadata.generation, stored.metadata.leader) == (1, "a")
    p.store()
    assert p.group.state is STABLE
    assert (p.synced(leader).assignment, p.synced(follower).assignment) == (b"1", b"2")


def test_a_follower_that_syncs_late_gets_its_share_from_the_stable_group():
    """And one that syncs again, the same."""
    p = Play()
    p.join(new_id="a")
    p.join(new_id="b")
    p.wait(6_000)
    p.sync("a", given={"b": b"2"})
    assert p.synced(p.sync("b")).assignment == b"2"
    assert p.synced(p.sync("a")).assignment == b"", "the leader forgot itself"


def test_assignments_that_cannot_be_stored_start_the_rebalance_over():
    """Members hear the error, and a new join phase begins."""
    p = Play(auto_store=False)
    p.join(new_id="a")
    p.wait(3_000)
    token = p.sync("a", given={"a": b"1"})
    p.store(E.COORDINATOR_NOT_AVAILABLE)
    assert p.synced(token).error is E.COORDINATOR_NOT_AVAILABLE
    assert p.group.state is PREPARING


def test_assignments_stored_after_the_next_rebalance_began_are_ignored():
    """The log's answer belongs to a generation that is over."""
    p = Play(auto_store=False)
    p.join(new_id="a")
    p.wait(3_000)
    old = p.sync("a", given={"a": b"1"})
    p.join(new_id="b")
    assert p.synced(old).error is E.REBALANCE_IN_PROGRESS
    p.store()
    assert p.group.state is PREPARING
    assert p.group.members.get("a").assignment == b""


def test_a_leader_that_syncs_twice_stores_once():
    """Its first answer was slow: the repeated request replaces the parked one."""
    p = Play(auto_store=False)
    p.join(new_id="a")
    p.wait(3_000)
    first = p.sync("a", given={"a": b"1"})
    second = p.sync("a", given={"a": b"1"})
    assert len(p.stores) == 1 and p.synced(first).error is E.REBALANCE_IN_PROGRESS
    p.store()
    assert p.synced(second).assignment == b"1"


def test_assignments_that_no_record_can_hold_are_refused():
    """group_record_bytes_max bounds what a leader can make us keep."""
    p = Play(GroupConfig(group_record_bytes_max=2_000))
    p.join(new_id="a")
    p.wait(3_000)
    assert p.synced(p.sync("a", given={"a": bytes(1_001)})).error is E.UNKNOWN_SERVER_ERROR


# ---- member ids ------------------------------------------------------------------------------------------------------


def test_member_id_required_hands_out_an_id_and_waits_for_it():
    """KIP-394: v4+ clients come back with the id; until then nobody rebalances for them."""
    p = Play()
    token = p.join(new_id="a", member_id_required=True)
    assert (p.joined(token).error, p.joined(token).member_id) == (E.MEMBER_ID_REQUIRED, "a")
    assert p.group.state is EMPTY and not p.group.is_idle
    p.join("a")
    assert p.group.state is PREPARING


def test_a_pending_member_that_never_comes_back_is_forgotten():
    """After its session timeout; the rebalance that waited for it goes on."""
    p = Play()
    (a,) = p.become_stable("a")
    p.join(new_id="b", member_id_required=True)
    assert p.group.state is STABLE, "an id alone disturbs nobody"
    token = p.join(a)
    assert p.is_parked(token), "the join phase waits for the pending one"
    p.wait(10_000)
    assert p.joined(token).generation == 2
    assert p.joined(p.join("b")).error is E.UNKNOWN_MEMBER_ID


def test_a_pending_member_may_leave():
    """And is gone."""
    p = Play()
    p.join(new_id="a", member_id_required=True)
    assert p.leave("a", "a") == [E.NONE, E.UNKNOWN_MEMBER_ID]
    assert p.group.is_idle


def test_pending_members_have_a_bound():
    """A client that asks for ids for ever cannot fill the memory."""
    p = Play(GroupConfig(pending_members_max=2))
    errors = [p.joined(p.join(new_id=f"m{i}", member_id_required=True)).error for i in range(3)]
    assert errors == [E.MEMBER_ID_REQUIRED, E.MEMBER_ID_REQUIRED, E.GROUP_MAX_SIZE_REACHED]


# ---- rebalances ------------------------------------------------------------------------------------------------------


def test_a_newcomer_makes_everybody_rejoin():
    """Members hear of it by their heartbeat; the last one to rejoin ends the phase."""
    p = Play()
    a, b = p.become_stable("a", "b")
    new = p.join(new_id="c")
    assert p.group.state is PREPARING
    assert p.beat(a) is E.REBALANCE_IN_PROGRESS
    assert p.synced(p.sync(a)).error is E.REBALANCE_IN_PROGRESS
    first = p.join(a)
    assert p.is_parked(first) and p.is_parked(new)
    second = p.join(b)
    assert {p.joined(t).generation for t in (new, first, second)} == {2}
    assert [m.member_id for m in p.joined(first).members] == ["a", "b", "c"]


def test_who_does_not_rejoin_in_time_is_out():
    """The rebalance timeout of the slowest member bounds the phase."""
    p = Play()
    a, b = p.become_stable("a", "b")
    new = p.join(new_id="c")
    token = p.join(b)
    for _ in range(12):
        p.wait(5_000)
        p.beat(a)
    assert p.joined(new).generation == p.joined(token).generation == 2
    assert [m.member_id for m in p.joined(token).members] == ["b", "c"], "the oldest that joined leads"
    assert p.beat(a) is E.UNKNOWN_MEMBER_ID


def test_a_leader_that_joins_again_forces_a_rebalance_a_follower_does_not():
    """The leader may have seen what the metadata does not say (new partitions)."""
    p = Play()
    a, b = p.become_stable("a", "b")
    assert p.joined(p.join(b)).generation == 1
    assert p.group.state is STABLE
    assert p.is_parked(p.join(a))
    assert p.group.state is PREPARING


def test_changed_metadata_forces_a_rebalance():
    """A follower subscribed to something else."""
    p = Play()
    _, b = p.become_stable("a", "b")
    assert p.is_parked(p.join(b, protocols=(Protocol("range", b"more"),)))
    assert p.group.state is PREPARING


def test_a_repeated_join_in_completing_rebalance_gets_the_generation_again():
    """Its first answer was lost; the leader gets the member list again."""
    p = Play()
    p.join(new_id="a")
    p.join(new_id="b")
    p.wait(6_000)
    assert len(p.joined(p.join("a")).members) == 2
    assert p.joined(p.join("b")).members == ()
    assert (p.group.state, p.group.generation) == (COMPLETING, 1)


def test_changed_metadata_in_completing_rebalance_starts_over():
    """Those who wait for an assignment are told to rejoin."""
    p = Play()
    p.join(new_id="a")
    p.join(new_id="b")
    p.wait(6_000)
    waiting = p.sync("a") if p.group.members.leader != "a" else p.sync("b")
    p.join("a", protocols=(Protocol("range", b"more"),))
    assert p.synced(waiting).error is E.REBALANCE_IN_PROGRESS
    assert p.group.state is PREPARING


def test_a_member_that_joined_and_never_syncs_is_out():
    """The pending-sync timer: it beats, but does not take its assignment."""
    p = Play()
    p.join(new_id="a", rebalance_timeout_ms=8_000)
    p.join(new_id="b", rebalance_timeout_ms=8_000)
    p.wait(6_000)
    p.sync("a", given={"a": b"1", "b": b"2"})
    assert p.group.state is STABLE
    p.wait(4_000)
    p.beat("b")
    p.beat("a")
    p.wait(4_000)
    assert p.group.state is PREPARING
    assert p.beat("b") is E.UNKNOWN_MEMBER_ID


def test_a_leader_that_never_assigns_is_out_and_the_followers_rejoin():
    """Followers that wait for their share are told to start over."""
    p = Play()
    p.join(new_id="a", rebalance_timeout_ms=8_000)
    p.join(new_id="b", rebalance_timeout_ms=8_000)
    p.wait(6_000)
    waiting = p.sync("b")
    p.wait(8_000)
    assert p.synced(waiting).error is E.REBALANCE_IN_PROGRESS
    token = p.join("b")
    assert p.joined(token).leader == "b"


def test_a_member_that_joins_twice_is_answered_twice():
    """Kafka forgets the earlier request; here every request gets an answer."""
    p = Play()
    p.become_stable("a", "b")
    p.join(new_id="c")
    first = p.join("a")
    second = p.join("a")
    assert p.joined(first).error is E.REBALANCE_IN_PROGRESS and p.is_parked(second)
    p.join("b")
    assert p.joined(second).generation == 2


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_silence_for_a_session_timeout_ends_membership():
    """The others rebalance without it."""
    p = Play()
    a, b = p.become_stable("a", "b")
    p.wait(9_000)
    assert p.beat(a) is E.NONE
    p.wait(1_001)
    assert p.group.state is PREPARING
    assert p.beat(b) is E.UNKNOWN_MEMBER_ID
    assert p.beat(a) is E.REBALANCE_IN_PROGRESS


def test_the_last_member_going_silent_empties_the_group():
    """An empty generation is stored: after a restart nobody waits for the dead."""
    p = Play()
    p.become_stable("a")
    p.wait(10_001)
    assert (p.group.state, p.group.generation, p.group.protocol_name) == (EMPTY, 2, None)
    assert p.stored[-1].members == () and p.stored[-1].generation == 2
    assert p.group.is_idle and not p.timers


def test_a_parked_join_is_as_good_as_a_heartbeat_but_not_for_a_newcomer():
    """A newcomer's connection may be dead: its join ends after new_member_join_timeout_ms."""
    p = Play()
    a, b = p.become_stable("a", "b", rebalance_timeout_ms=1_000_000)
    new = p.join(new_id="c", rebalance_timeout_ms=1_000_000)
    token = p.join(a)
    for _ in range(60):
        p.wait(5_000)
        p.beat(b)
    assert p.is_parked(token), "a waits far beyond its session timeout"
    assert p.joined(new).error is E.UNKNOWN_MEMBER_ID, "five minutes"
    assert p.joined(p.join(b)).generation == 2


def test_a_commit_is_a_sign_of_life():
    """As in Kafka, while the group is stable or prepares."""
    p = Play()
    (a,) = p.become_stable("a")
    p.wait(9_000)
    assert p.admit(a, 1) is E.NONE
    assert p.session_ends_ms(a) == p.now_ms + 10_000


def test_sessions_start_anew_after_every_answer():
    """A member that waited beyond its session must not live without a timer."""
    p = Play(auto_store=False)
    p.join(new_id="a", rebalance_timeout_ms=100_000)
    p.wait(3_000)
    p.sync("a", given={"a": b"1"})
    p.wait(20_000)  # the session timer fires, excused by the parked sync
    assert p.session_ends_ms("a") is None
    p.store()
    assert p.session_ends_ms("a") == p.now_ms + 10_000


# ---- protocols -------------------------------------------------------------------------------------------------------


def test_the_protocol_most_members_prefer_among_those_all_speak():
    """Each votes for its first; the majority wins."""
    p = Play()
    x, y, z = Protocol("x", b""), Protocol("y", b""), Protocol("z", b"")
    tokens = [p.join(protocols=ps) for ps in ((z, x, y), (x, y), (y, x), (y, x, z))]
    p.wait(10_000)
    assert {p.joined(t).protocol_name for t in tokens} == {"x"}, "two votes each; a tie goes to the earlier vote"


def test_members_must_share_a_protocol_and_the_type():
    """INCONSISTENT_GROUP_PROTOCOL, and nothing changes."""
    p = Play()
    p.become_stable("a")
    assert p.joined(p.join(protocols=(Protocol("other", b""),))).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert p.joined(p.join(protocol_type="connect")).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert p.joined(p.join("a", protocols=(Protocol("other", b""),))).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert p.group.state is STABLE


@pytest.mark.parametrize("wrong", [{"protocols": ()}, {"protocol_type": ""}])
def test_a_first_member_without_protocols_is_refused(wrong):
    """And leaves no group behind."""
    p = Play()
    assert p.joined(p.join(**wrong)).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert p.group.is_idle


def test_a_sync_that_names_another_protocol_is_refused():
    """KIP-559."""
    p = Play()
    p.join(new_id="a")
    p.wait(3_000)
    assert p.synced(p.sync("a", protocol_name="other")).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert p.synced(p.sync("a", protocol_type="connect")).error is E.INCONSISTENT_GROUP_PROTOCOL
    assert p.synced(p.sync("a", protocol_name="range", protocol_type="consumer")).error is E.NONE


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, -1, 0])
def test_session_timeouts_have_bounds(timeout_ms):
    """group.{min,max}.session.timeout.ms."""
    p = Play()
    assert p.joined(p.join(session_timeout_ms=timeout_ms)).error is E.INVALID_SESSION_TIMEOUT
    assert p.group.is_idle


def test_group_max_size():
    """A full group takes nobody new, keeps those it has, and takes a static member back."""
    p = Play(GroupConfig(group_size_max=2))
    p.join(new_id="a")
    p.join(new_id="s", instance_id="static")
    assert p.joined(p.join(new_id="c")).error is E.GROUP_MAX_SIZE_REACHED
    p.wait(6_000)
    p.sync("s")
    p.sync("a", given={})
    assert p.joined(p.join(new_id="c")).error is E.GROUP_MAX_SIZE_REACHED
    assert p.joined(p.join(new_id="s2", instance_id="static")).error is E.NONE
    assert p.is_parked(p.join("a"))


def test_a_group_whose_record_would_be_too_large_takes_nobody_new():
    """Found by a penetration test: the leader of 500 members with 1 MiB of metadata each got 500 MiB in one response,
    although no SyncGroup of such a group succeeds. Who is a member joins again as before."""
    p = Play()
    large = (Protocol("range", bytes(1024 * 1024)),)
    joins = {name: p.join(new_id=name, protocols=large) for name in map(str, range(20))}
    refused = [name for name, token in joins.items() if not p.is_parked(token)]
    assert refused == list(map(str, range(7, 20)))
    assert {p.joined(joins[name]).error for name in refused} == {E.GROUP_MAX_SIZE_REACHED}
    p.wait(6_000)
    assert [len(p.joined(joins[name]).members) for name in map(str, range(7))] == [7, 0, 0, 0, 0, 0, 0]
    assert p.joined(p.join("0", protocols=large)).error is E.NONE


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocols": (Protocol("x" * 2_049, b""),)},
        {"protocols": (Protocol("x", bytes(1024 * 1024 + 1)),)},
        {"protocols": tuple(Protocol(str(i), b"") for i in range(101))},
        {"instance_id": "ü" * 2_000},
        {"protocol_type": "x" * 2_049},
    ],
)
def test_what_a_member_says_of_itself_has_bounds(wrong):
    """INVALID_REQUEST, and no group."""
    p = Play()
    assert p.joined(p.join(**wrong)).error is E.INVALID_REQUEST
    assert p.group.is_idle


def test_negative_rebalance_timeouts_count_as_none():
    """Each phase then ends at once instead of never: it joins, and is out before it can sync."""
    p = Play()
    token = p.join(new_id="a", rebalance_timeout_ms=-5)
    p.wait(3_000)
    assert p.joined(token).generation == 1
    assert (p.group.state, p.group.generation) == (EMPTY, 2) and not p.timers


# ---- identity --------------------------------------------------------------------------------------------------------


def test_generations_and_members_are_checked():
    """ILLEGAL_GENERATION for the old, UNKNOWN_MEMBER_ID for strangers."""
    p = Play()
    (a,) = p.become_stable("a")
    assert p.beat(a, 0) is E.ILLEGAL_GENERATION
    assert p.beat("x") is E.UNKNOWN_MEMBER_ID
    assert p.synced(p.sync(a, 2)).error is E.ILLEGAL_GENERATION
    assert p.synced(p.sync("x")).error is E.UNKNOWN_MEMBER_ID
    assert p.joined(p.join("x")).error is E.UNKNOWN_MEMBER_ID


def test_leaving_answers_what_was_parked():
    """A parked join or sync of one who leaves gets UNKNOWN_MEMBER_ID."""
    p = Play()
    a, b = p.become_stable("a", "b")
    p.join(new_id="c")
    token = p.join(b)
    assert p.leave(b) == [E.NONE]
    assert p.joined(token).error is E.UNKNOWN_MEMBER_ID
    p.join(a)
    waiting = p.sync("c")
    p.leave("c")
    assert p.synced(waiting).error is E.UNKNOWN_MEMBER_ID


def test_several_leave_in_one_request():
    """Each gets its own verdict; one rebalance follows."""
    p = Play()
    p.become_stable("a", "b", "c")
    assert p.leave("a", "x", "b", "a") == [E.NONE, E.UNKNOWN_MEMBER_ID, E.NONE, E.UNKNOWN_MEMBER_ID]
    assert p.group.state is PREPARING and p.group.members.leader == "c"


def test_the_last_to_leave_empties_the_group():
    """The protocol type stays, the protocol and leader go."""
    p = Play()
    p.become_stable("a")
    p.leave("a")
    assert (p.group.state, p.group.generation) == (EMPTY, 2)
    assert p.group.protocol_type == "consumer" and p.group.members.leader is None
    p.become_stable("b")
    assert p.group.generation == 3


# ---- commits ---------------------------------------------------------------------------------------------------------


def test_who_may_commit():
    """Members of this generation; outsiders only while nobody is here."""
    p = Play()
    assert p.admit() is E.NONE
    assert p.admit("x", 3) is E.UNKNOWN_MEMBER_ID
    p.join(new_id="a")
    p.wait(3_000)
    assert p.admit("a", 1) is E.REBALANCE_IN_PROGRESS, "it has no assignment yet"
    p.sync("a", given={})
    assert p.admit("a", 1) is E.NONE
    assert p.admit("a", 0) is E.ILLEGAL_GENERATION
    assert p.admit("a", -1) is E.ILLEGAL_GENERATION
    assert p.admit("b", 1) is E.UNKNOWN_MEMBER_ID
    assert p.admit() is E.UNKNOWN_MEMBER_ID
    p.join(new_id="b")
    assert p.admit("a", 1) is E.NONE, "the old generation may commit until the new one begins"
    p.join("a")
    assert p.admit("a", 1) is E.ILLEGAL_GENERATION


# ---- static members --------------------------------------------------------------------------------------------------


def stable_static(*, auto_store=True):
    p = Play(auto_store=True)
    p.join(new_id="s1", instance_id="s")
    p.join(new_id="d")
    p.wait(6_000)
    p.sync("d")
    p.sync("s1", given={"s1": b"S", "d": b"D"})
    p.auto_store = auto_store
    return p


def test_a_static_member_that_returns_takes_its_place_without_a_rebalance():
    """KIP-345: the new id is stored, the old one fenced, the assignment kept."""
    p = stable_static(auto_store=False)
    token = p.join(new_id="s2", instance_id="s", may_skip_assignment=True)
    assert p.is_parked(token) and p.group.state is STABLE
    p.store()
    reply = p.joined(token)
    assert (reply.error, reply.generation, reply.member_id, reply.leader) == (E.NONE, 1, "s2", "s2")
    assert reply.skip_assignment and [m.member_id for m in reply.members] == ["s2", "d"]
    assert p.beat("s1", instance_id="s") is E.FENCED_INSTANCE_ID
    assert p.beat("s1") is E.UNKNOWN_MEMBER_ID
    assert p.synced(p.sync("s2", instance_id="s")).assignment == b"S"
    assert p.session_ends_ms("s1") is None and p.session_ends_ms("s2") is not None


def test_before_v9_a_returning_static_leader_is_told_that_it_follows():
    """So that it does not assign: it cannot skip."""
    p = stable_static()
    reply = p.joined(p.join(new_id="s2", instance_id="s"))
    assert (reply.leader, reply.members, reply.skip_assignment) == ("s1", (), False)
    assert p.group.members.leader == "s2"


def test_a_replacement_that_cannot_be_stored_is_undone():
    """The log still names the old id: so does the group."""
    p = stable_static(auto_store=False)
    token = p.join(new_id="s2", instance_id="s", session_timeout_ms=20_000)
    p.store(E.NOT_COORDINATOR)
    assert p.joined(token).error is E.NOT_COORDINATOR
    assert p.beat("s1", instance_id="s") is E.NONE
    assert p.group.members.get("s1").session_timeout_ms == 10_000
    assert p.session_ends_ms("s2") is None


def test_a_slow_replacement_does_not_leave_a_member_without_a_session():
    """Its timer ran out while its record was on the way: the answer starts it anew."""
    p = stable_static(auto_store=False)
    p.join(new_id="s2", instance_id="s")
    p.wait(9_000)
    p.beat("d")
    p.wait(1_000)
    assert p.session_ends_ms("s2") is None
    p.store()
    assert p.session_ends_ms("s2") == p.now_ms + 10_000


def test_a_rebalance_during_the_replacement_takes_the_parked_join_over():
    """It is answered with the next generation, once."""
    p = stable_static(auto_store=False)
    token = p.join(new_id="s2", instance_id="s")
    p.join(new_id="n")
    assert p.group.state is PREPARING
    p.store()
    assert p.is_parked(token)
    p.join("d")
    assert p.joined(token).generation == 2


def test_two_replacements_in_a_row_fence_the_first():
    """The newest wins; the one before it hears FENCED_INSTANCE_ID."""
    p = stable_static(auto_store=False)
    first = p.join(new_id="s2", instance_id="s")
    second = p.join(new_id="s3", instance_id="s")
    assert p.joined(first).error is E.FENCED_INSTANCE_ID
    p.store()
    p.store()
    assert p.joined(second).member_id == "s3"
    assert p.session_ends_ms("s3") is not None and p.session_ends_ms("s2") is None


def test_a_static_member_returning_with_another_protocol_rebalances():
    """The next generation would choose differently."""
    p = Play()
    x, y = Protocol("x", b""), Protocol("y", b"")
    p.join(new_id="s1", instance_id="s", protocols=(x, y))
    p.wait(3_000)
    p.sync("s1", given={})
    token = p.join(new_id="s2", instance_id="s", protocols=(y, x))
    assert (p.joined(token).generation, p.joined(token).protocol_name) == (2, "y")


def test_a_static_member_returning_in_completing_rebalance_starts_over():
    """The leader may be assigning to its old id at this moment."""
    p = Play()
    p.join(new_id="a")
    p.join(new_id="s1", instance_id="s")
    p.wait(6_000)
    waiting = p.sync("s1", instance_id="s")
    p.join(new_id="s2", instance_id="s")
    assert p.synced(waiting).error is E.FENCED_INSTANCE_ID
    assert p.group.state is PREPARING


def test_static_members_that_do_not_rejoin_stay_until_their_session_ends():
    """That is what they are for: a restart must not move partitions."""
    p = Play()
    p.join(new_id="d", rebalance_timeout_ms=5_000)
    p.join(new_id="s", instance_id="s", rebalance_timeout_ms=5_000, session_timeout_ms=60_000)
    p.wait(6_000)
    p.sync("s")
    p.sync("d", given={})
    p.join(new_id="n", rebalance_timeout_ms=5_000)
    token = p.join("d")
    p.wait(5_000)
    assert "s" in [m.member_id for m in p.joined(token).members]


def test_only_static_members_and_all_silent_waits_for_their_sessions():
    """Nobody joined: no generation can be made; the sessions decide."""
    p = Play()
    p.join(new_id="s1", instance_id="1", rebalance_timeout_ms=5_000, session_timeout_ms=30_000)
    p.join(new_id="s2", instance_id="2", rebalance_timeout_ms=5_000, session_timeout_ms=30_000)
    p.wait(6_000)
    p.sync("s2")
    p.sync("s1", given={})
    p.leave(Leaver("", "1"))
    p.wait(20_000)
    assert (p.group.state, p.group.generation) == (PREPARING, 1)
    p.wait(10_001)
    assert (p.group.state, p.group.generation) == (EMPTY, 2)


def test_one_static_member_back_after_the_join_phase_ran_out_need_not_wait_for_the_others_sessions():
    """The phase is started again, not left open until everybody came or died."""
    p = Play()
    p.join(new_id="s1", instance_id="1", rebalance_timeout_ms=5_000, session_timeout_ms=600_000)
    p.join(new_id="s2", instance_id="2", rebalance_timeout_ms=5_000, session_timeout_ms=600_000)
    p.join(new_id="s3", instance_id="3", rebalance_timeout_ms=5_000, session_timeout_ms=600_000)
    p.wait(6_000)
    p.sync("s2")
    p.sync("s3")
    p.sync("s1", given={})
    p.leave(Leaver("", "3"))
    p.wait(6_000)
    token = p.join("s2", instance_id="2")
    p.wait(5_000)
    assert (p.joined(token).generation, p.joined(token).leader) == (2, "s2")


def test_an_administrator_removes_a_static_member_by_its_instance():
    """Without a member id; a fenced id with the instance removes nobody."""
    p = stable_static()
    assert p.leave(Leaver("s1", "x"), Leaver("old", "s"), Leaver("", "s"), Leaver("", "s")) == [
        E.UNKNOWN_MEMBER_ID,
        E.FENCED_INSTANCE_ID,
        E.NONE,
        E.UNKNOWN_MEMBER_ID,
    ]


def test_an_unknown_instance_joins_without_a_second_ask():
    """The instance id already tells its requests apart."""
    p = Play()
    assert p.is_parked(p.join(new_id="s", instance_id="s", member_id_required=True))


# ---- restart and end -------------------------------------------------------------------------------------------------


def test_a_group_comes_back_from_its_record():
    """Same generation, leader, assignments; everybody's session starts anew: a restart costs no rebalance."""
    p = stable_static()
    group, effects = ClassicGroup.restore(p.config, p.stored[-1])
    q = Play()
    q.group = group
    q.perform(effects)
    assert (group.state, group.generation, group.members.leader) == (STABLE, 1, "s1")
    assert q.beat("d") is E.NONE and q.beat("s1", instance_id="s") is E.NONE
    assert q.synced(q.sync("d")).assignment == b"D"
    assert q.session_ends_ms("d") == 10_000
    assert group.metadata() == p.stored[-1]


def test_an_empty_group_comes_back_with_its_generation():
    """So that the next one is still higher."""
    p = Play()
    p.become_stable("a")
    p.leave("a")
    group, effects = ClassicGroup.restore(p.config, p.stored[-1])
    assert (group.state, group.generation, effects) == (EMPTY, 2, ())


def test_a_group_above_a_lowered_size_limit_rebalances_when_it_comes_back():
    """Members get the chance to commit; the last to rejoin are kicked out."""
    p = Play()
    p.become_stable("a", "b", "c")
    group, effects = ClassicGroup.restore(GroupConfig(group_size_max=2), p.stored[-1])
    q = Play()
    q.group = group
    q.perform(effects)
    assert group.state is PREPARING
    tokens = [q.join(name) for name in "abc"]
    assert q.joined(tokens[2]).error is E.GROUP_MAX_SIZE_REACHED
    assert q.joined(tokens[0]).generation == q.joined(tokens[1]).generation == 2


def test_unloading_answers_everybody_and_stops_every_timer():
    """NOT_COORDINATOR: look for the new one."""
    p = Play(auto_store=False)
    p.become_stable("a", "b")
    p.store()
    p.join(new_id="c", member_id_required=True)
    joining = p.join(new_id="d")
    p.give(Unload())
    assert p.joined(joining).error is E.NOT_COORDINATOR
    assert p.group.state is DEAD and not p.timers
    assert p.joined(p.join(new_id="e")).error is E.COORDINATOR_NOT_AVAILABLE
    assert p.beat("a") is E.COORDINATOR_NOT_AVAILABLE
    assert p.admit("a", 1) is E.COORDINATOR_NOT_AVAILABLE
    assert p.synced(p.sync("a")).error is E.COORDINATOR_NOT_AVAILABLE


def test_unloading_answers_parked_syncs():
    """Those who wait for an assignment too."""
    p = Play(auto_store=False)
    p.join(new_id="a")
    p.wait(3_000)
    waiting = p.sync("a", given={})
    p.give(Unload(E.COORDINATOR_NOT_AVAILABLE))
    assert p.synced(waiting).error is E.COORDINATOR_NOT_AVAILABLE
    p.store()
    assert p.group.state is DEAD


def test_what_a_group_takes_is_counted():
    """Members, metadata, assignments and pending ids come in and go out of `size_bytes`."""
    p = Play()
    empty = p.group.size_bytes
    p.join(new_id="p", member_id_required=True)
    assert p.group.size_bytes > empty
    p.leave("p")
    p.join(new_id="a", protocols=(Protocol("range", bytes(5_000)),))
    p.wait(3_000)
    p.sync("a", given={"a": bytes(7_000)})
    assert p.group.size_bytes > empty + 12_000
    p.leave("a")
    assert p.group.size_bytes == empty


def test_timers_left_behind_do_nothing():
    """A timer that raced with its stop finds the state changed."""
    p = Play()
    p.become_stable("a")
    for kind in TimerKind:
        p.give(TimedOut(Timer(kind, "ghost" if kind is TimerKind.SESSION else "")))
    assert p.group.state is STABLE
    assert RANGE[0].name == p.group.protocol_name
