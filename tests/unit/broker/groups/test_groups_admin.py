"""What administrators ask of groups: durable before it is answered, bounded, and never beside a member's back."""

from __future__ import annotations

import asyncio

import pytest

from broker.error_codes import ErrorCode as E
from broker.groups import admin
from broker.groups.machine.classic import ClassicGroup
from broker.groups.machine.events import GroupState, Protocol
from broker.groups.offset_requests import CommitRow
from broker.handlers.groups.admin import (
    handle_delete_groups,
    handle_describe_groups,
    handle_list_groups,
    handle_offset_delete,
)
from broker.handlers.groups.members import ClientInfo
from broker.internal_topics.shard_life import ShardState
from broker.wire.generated.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from logformat.errors import Corrupt, Retryable, StorageFailed
from tests.support.conversations.group_conversation import subscription
from tests.support.groups.group_world import GroupWorld, commit_rows, in_world, longest_hold
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog

CLIENT = ClientInfo("client", "127.0.0.1")


async def names(w: GroupWorld, *states: str) -> list[str]:
    error, found = await w.groups.admin.listed(states, ())
    assert error is E.NONE
    return [row.group_id for row in found]


# ---- deleting --------------------------------------------------------------------------------------------------------


@in_world
async def test_a_deletion_is_not_answered_before_it_is_durable(w):
    """And after it nothing of the group is left, also after a kill: its generation begins at 1 again."""
    me, generation = await w.member("g")
    await w.commit("g", 7, me, generation)
    await w.leave("g", me)
    w.log.hold()
    deletion = w.ask(w.groups.admin.delete("g"))
    await asyncio.sleep(1)
    assert not deletion.done()
    w.log.release()
    assert await deletion is E.NONE
    assert await names(w) == [] and w.groups.group_count == 0 and w.groups.held_bytes == 0
    await w.restart()
    assert (await w.fetch("g"), await names(w)) == (-1, [])
    assert (await w.join("g")).generation == 1


@in_world
async def test_while_a_group_is_deleted_nobody_joins_it_or_commits(w):
    """They are told to come again; what they then do counts."""
    await w.commit("g", 7)
    w.log.hold()
    deletion = w.ask(w.groups.admin.delete("g"))
    await asyncio.sleep(0.1)
    assert await w.commit("g", 8) is E.COORDINATOR_NOT_AVAILABLE
    assert (await w.join("g")).error is E.COORDINATOR_NOT_AVAILABLE
    assert await w.groups.admin.delete("g") is E.COORDINATOR_NOT_AVAILABLE
    assert (await w.groups.admin.forget("g", [("t", 0)]))[0] is E.COORDINATOR_NOT_AVAILABLE
    assert await names(w) == []
    w.log.release()
    assert await deletion is E.NONE
    assert await w.commit("g", 9) is E.NONE
    await w.restart()
    assert await w.fetch("g") == 9


@pytest.mark.parametrize(
    ("failure", "code"),
    [(Retryable("away"), E.COORDINATOR_NOT_AVAILABLE), (StorageFailed("failed"), E.NOT_COORDINATOR)],
)
def test_a_deletion_that_was_not_stored_did_not_happen(failure, code):
    """The group is there again, with its generation, and takes commits."""

    @in_world
    async def scenario(w):
        me, generation = await w.member("g")
        await w.commit("g", 7, me, generation)
        await w.leave("g", me)
        w.log.fail = [failure]
        assert await w.groups.admin.delete("g") is code
        assert await names(w) == ["g"] and await w.fetch("g") == 7
        assert await w.commit("g", 8) is E.NONE
        assert (await w.join("g")).generation == 3
        await w.restart()
        assert await w.fetch("g") == 8

    scenario()


@in_world
async def test_a_commit_under_way_goes_before_the_deletion(w):
    """It was accepted; then the group goes, with it."""
    await w.commit("g", 1)
    w.log.hold()
    commit = w.ask(w.commit("g", 2))
    await asyncio.sleep(0.1)
    deletion = w.ask(w.groups.admin.delete("g"))
    await asyncio.sleep(0.1)
    w.log.release()
    assert (await commit, await deletion) == (E.NONE, E.NONE)
    await w.restart()
    assert await w.fetch("g") == -1


@in_world
async def test_a_group_of_many_positions_goes_whole(w):
    """More than one batch of tombstones; commits of others pass in between."""
    for partition in range(2_500):
        w.ask(w.commit("g", 1, partition=partition))
    await asyncio.sleep(1)
    await w.commit("g", 1)
    deletion = w.ask(w.groups.admin.delete("g"))
    assert await w.commit("h", 1) is E.NONE
    assert await deletion is E.NONE
    await w.restart()
    assert (await names(w), await w.fetch("g", partition=2_400)) == (["h"], -1)


@in_world
async def test_members_keep_a_group_from_being_deleted(w):
    """In every state that has members."""
    joined = await w.join("g")
    assert await w.groups.admin.delete("g") is E.NON_EMPTY_GROUP
    await w.sync("g", joined.member_id, joined.generation, {joined.member_id: b""})
    assert await w.groups.admin.delete("g") is E.NON_EMPTY_GROUP
    assert await w.beat("g", joined.member_id, joined.generation) is E.NONE
    assert await w.groups.admin.delete("nobody") is E.GROUP_ID_NOT_FOUND
    assert await w.groups.admin.delete("n" * 3_000) is E.INVALID_GROUP_ID


# ---- single positions ------------------------------------------------------------------------------------------------


@in_world
async def test_forgotten_positions_stay_forgotten(w):
    """Those that were asked for, and no others; nothing is written for what is not there."""
    await w.commit("g", 1)
    await w.commit("g", 1, partition=1)
    appends = w.log.appends
    assert await w.groups.admin.forget("g", [("t", 2)]) == (E.NONE, [E.NONE])
    assert w.log.appends == appends
    assert await w.groups.admin.forget("g", [("t", 0), ("t", 0), ("t", 2)]) == (E.NONE, [E.NONE] * 3)
    await w.restart()
    assert (await w.fetch("g"), await w.fetch("g", partition=1)) == (-1, 1)


@in_world
async def test_a_position_on_its_way_is_forgotten_too(w):
    """The tombstone follows the commit that was accepted before it."""
    w.log.hold()
    commit = w.ask(w.commit("g", 1))
    await asyncio.sleep(0.1)
    forgetting = w.ask(w.groups.admin.forget("g", [("t", 0)]))
    await asyncio.sleep(0.1)
    w.log.release()
    assert (await commit, await forgetting) == (E.NONE, (E.NONE, [E.NONE]))
    assert await w.fetch("g") == -1


@in_world
async def test_a_deletion_of_positions_ends_with_its_group(w):
    """Regression: the group went when its last position did, and the deletion went on in its name. The tombstone of the
    next rows followed a commit to the group that was made since: it was there until the next load, and then gone."""
    first = [("t", index) for index in range(admin._TOMBSTONES_PER_TURN)]
    rows = [CommitRow(topic, index, 7, -1, "") for topic, index in first]
    assert set(await commit_rows(w.groups, "g", rows)) == {E.NONE}
    w.log.hold()
    w.log.fail = [Retryable("away")]
    refused = w.ask(w.commit("g", 7, partition=len(first)))
    await asyncio.sleep(0.1)
    deletion = w.ask(w.groups.admin.forget("g", [*first, ("t", len(first))]))
    await asyncio.sleep(0.1)
    w.log.release()
    while w.groups.group_count:
        await asyncio.sleep(0)
    assert await w.commit("g", 9, partition=len(first)) is E.NONE
    assert await refused is E.COORDINATOR_NOT_AVAILABLE
    assert await deletion == (E.NONE, [E.NONE] * (len(first) + 1))
    assert await w.fetch("g", partition=len(first)) == 9
    await w.restart()
    assert await w.fetch("g", partition=len(first)) == 9


@in_world
async def test_the_last_positions_of_a_deletion_are_not_deleted_after_a_later_commit(w):
    """Regression: OffsetDelete wrote the tombstones of its last positions only when those of its first ones were
    durable. They deleted a commit that had come and had been answered meanwhile."""
    count = 2 * admin._TOMBSTONES_PER_TURN + 1
    rows = [CommitRow("t", index, 7, -1, "") for index in range(count)]
    assert set(await commit_rows(w.groups, "g", rows)) == {E.NONE}
    named = [OffsetDeleteRequestPartition(partition_index=index) for index in range(count)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=named)])
    w.log.hold()
    deletion = w.ask(handle_offset_delete(w.groups, request, 0, CLIENT))
    await asyncio.sleep(0.1)
    later = w.ask(w.commit("g", 9, partition=count - 1))
    await asyncio.sleep(0.1)
    w.log.release()
    assert await later is E.NONE
    assert {row.error_code for row in (await deletion).topics[0].partitions} == {E.NONE}
    assert await w.fetch("g", partition=count - 1) == 9
    await w.restart()
    assert [await w.fetch("g", partition=index) for index in (0, count - 2, count - 1)] == [-1, -1, 9]


@in_world
async def test_what_members_read_is_not_forgotten(w):
    """Only topics outside their subscriptions; all are refused when a subscription cannot be read."""
    await w.commit("g", 1)
    await w.commit("g", 1, topic="u")
    protocols = (Protocol("range", subscription("t")),)
    await w.member("g", protocols=protocols)
    assert await w.groups.admin.forget("g", [("t", 0), ("u", 0)]) == (
        E.NONE,
        [E.GROUP_SUBSCRIBED_TO_TOPIC, E.NONE],
    )
    assert (await w.fetch("g"), await w.fetch("g", "u")) == (1, -1)
    w.log.fail = [Retryable("away")]
    await w.commit("h", 1)
    await w.commit("h", 1)
    w.log.fail = [Retryable("away")]
    assert await w.groups.admin.forget("h", [("t", 0)]) == (E.COORDINATOR_NOT_AVAILABLE, [])
    assert await w.fetch("h") == 1


# ---- what cannot be asked now ----------------------------------------------------------------------------------------


async def test_groups_that_are_loaded_are_not_told_yet():
    """Each request names the reason; a partition that cannot be read keeps its groups only."""
    w = GroupWorld(MemoryOffsetsLog(2))
    w.start()
    here, there = "a", "b"
    assert (await w.groups.admin.listed((), ())) == (E.COORDINATOR_LOAD_IN_PROGRESS, [])
    assert [row.error for row in await w.groups.admin.described(["a"])] == [E.COORDINATOR_LOAD_IN_PROGRESS]
    assert await w.groups.admin.delete("a") is E.COORDINATOR_LOAD_IN_PROGRESS
    assert await w.groups.admin.forget("a", [("t", 0)]) == (E.COORDINATOR_LOAD_IN_PROGRESS, [])
    await w.groups.log.wait_loaded()
    assert [await w.commit(group, 1) for group in (here, there)] == [E.NONE, E.NONE]
    w.log.fail_replay = [Corrupt("bit rot")]
    await w.restart()
    (failed,) = [i for i in range(2) if w.groups.log.state_of(i) is ShardState.FAILED]
    (left,) = await names(w)
    (lost,) = {here, there} - {left}
    assert w.groups.shard_of(lost) == (None, E.COORDINATOR_NOT_AVAILABLE) and failed == 0
    assert await w.groups.admin.delete(lost) is E.COORDINATOR_NOT_AVAILABLE
    assert await w.groups.admin.delete(left) is E.NONE
    await w.kill()


# ---- bounds ----------------------------------------------------------------------------------------------------------


def _fill(w: GroupWorld, count: int) -> None:
    shard, _ = w.groups.shard_of("g")
    assert shard is not None
    for i in range(count):
        shard.create(f"group-{i:06}")


@pytest.mark.not_fast
@in_world
async def test_as_many_groups_as_there_may_be_are_listed_and_described_in_turns(w):
    """100 000 groups; their answer is encoded beside the loop, which would take 0.2 s of it."""
    _fill(w, 100_000)
    longest, answer = await longest_hold(handle_list_groups(w.groups, ListGroupsRequest(), 5, CLIENT))
    assert len(answer.groups) == 100_000
    assert longest < 0.3
    wanted = DescribeGroupsRequest(groups=[f"group-{i:06}" for i in range(100_000)])
    longest, answer = await longest_hold(handle_describe_groups(w.groups, wanted, 6, CLIENT))
    assert {row.group_state for row in answer.groups} == {"Empty"}
    assert longest < 0.3


@pytest.mark.parametrize("is_led_again", [True, False])
def test_groups_of_a_shard_that_is_dropped_while_they_are_listed_are_listed_whole_or_not_at_all(is_led_again):
    """The list ended at the drop, without an error: tools took half the groups for all of them."""

    async def run(w: GroupWorld) -> None:
        _fill(w, 2_500)
        listing = asyncio.create_task(w.groups.admin.listed((), ()))
        await asyncio.sleep(0)
        assert not listing.done()
        if is_led_again:
            w.move_leadership()
            assert await listing == (E.COORDINATOR_LOAD_IN_PROGRESS, [])
        else:
            w.groups.log.resign(0)
            assert await listing == (E.NONE, []), "its next coordinator lists them"

    in_world(run)()


@in_world
async def test_a_group_is_described_once_a_request(w):
    """Else a frame of names grows into gigabytes of members' metadata."""
    await w.member("g", protocols=(Protocol("range", bytes(1_000_000)),))
    first, second = await w.groups.admin.described(["g", "h", *["g"] * 1_000])
    assert first.state is GroupState.STABLE and len(first.members[0].subscription) == 1_000_000
    assert second.error is E.GROUP_ID_NOT_FOUND


@in_world
async def test_an_answer_that_is_full_asks_clients_to_come_again(w):
    """One group at least is described; the others are retriable, and told when asked for by themselves."""
    for i in range(5):
        await w.member(f"g{i}", protocols=(Protocol("range", bytes(900_000)),))
    whole, admin.ANSWER_BYTES_MAX = admin.ANSWER_BYTES_MAX, 2_000_000
    try:
        rows = await w.groups.admin.described([f"g{i}" for i in range(5)])
        assert [row.error for row in rows] == [E.NONE] * 2 + [E.COORDINATOR_NOT_AVAILABLE] * 3
        admin.ANSWER_BYTES_MAX = 1_000
        assert [row.error for row in await w.groups.admin.described(["g4", "g3"])] == [
            E.NONE,
            E.COORDINATOR_NOT_AVAILABLE,
        ]
        for i in range(200):
            assert await w.commit(f"long-{i}", 1) is E.NONE
        assert await w.groups.admin.listed((), ()) == (E.POLICY_VIOLATION, [])
        assert [row.group_id for row in (await w.groups.admin.listed(("STABLE",), ()))[1]] == [
            f"g{i}" for i in range(5)
        ]
    finally:
        admin.ANSWER_BYTES_MAX = whole
    assert isinstance(w.groups.shard_of("g0")[0].groups["g0"].machine, ClassicGroup)


@in_world
async def test_members_count_in_the_turns_of_a_description(w):
    """Three groups of 400 members are more than a turn, though they are three rows."""
    groups = [f"g{at}" for at in range(3)]
    for group in groups:
        await asyncio.gather(*(w.join(group, client_id=f"c{at}") for at in range(400)))
    describing = handle_describe_groups(w.groups, DescribeGroupsRequest(groups=groups), 5, CLIENT)
    assert describing.send(None) is None, "the loop is given back before the answer is there"
    answer = await w.ask(_rest_of(describing))
    assert [len(row.members) for row in answer.groups] == [400, 400, 400]


async def _rest_of(begun):
    try:
        while True:
            begun.send(None)
            await asyncio.sleep(0)
    except StopIteration as done:
        return done.value


async def test_a_generation_stored_after_its_groups_deletion_failed_keeps_nobody_else_waiting() -> None:
    """Of two groups that one request deletes the first took its time; the other's last member left meanwhile. Its
    machine, made anew when the deletion failed, knew no such store: the error escaped, the other writes of the batch
    were never told of, and their groups were NOT_COORDINATOR for ever."""
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))
    world = GroupWorld()
    await world.ready()
    member, _ = await world.member("g")
    await world.commit("a", 1)
    await world.commit("y", 1)
    world.log.hold()
    request = DeleteGroupsRequest(groups_names=["a", "g"])
    deletion = world.ask(handle_delete_groups(world.groups, request, 2, CLIENT))
    await asyncio.sleep(2)
    world.log.release()
    await asyncio.sleep(0)
    world.log.hold()
    under_way = world.ask(world.commit("x", 5))
    left = world.ask(world.leave("g", member))
    queued = world.ask(world.commit("y", 7))
    answer = await deletion
    assert [found.error_code for found in answer.results] == [E.NONE, E.COORDINATOR_NOT_AVAILABLE]
    await left
    await asyncio.sleep(0.5)
    world.log.release()
    await asyncio.sleep(10)
    assert not world.failures and not unheard
    assert (await under_way, await queued) == (E.NONE, E.NONE)
    assert await world.fetch("y") == 7
    await world.kill()
