"""A log whose high watermark stands still: every request of a group is answered in time, and says so."""

from __future__ import annotations

import asyncio

import pytest

from broker.error_codes import ErrorCode as E
from broker.handlers.groups.admin import handle_delete_groups
from broker.handlers.groups.members import ClientInfo
from broker.handlers.groups.offsets import handle_offset_commit, handle_offset_fetch
from broker.wire.messages import (
    DeleteGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
)
from tests.support.groups.group_world import in_world

WHO = ClientInfo("c", "127.0.0.1")
LIMIT_S = 6.0  # offsets.commit.timeout.ms is 5 s


@pytest.mark.parametrize("rows", [1, 20_000])
def test_a_commit_is_refused_after_its_time_out_however_many_rows_it_has(rows: int) -> None:
    """Each 1 500 of them waited that long: 20 000 for 70 s, and with them all that came on the connection behind."""

    async def run(w):
        partitions = [OffsetCommitRequestPartition(partition_index=i, committed_offset=1) for i in range(rows)]
        request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])
        w.log.hold()
        async with asyncio.timeout(LIMIT_S):
            answer = await handle_offset_commit(w.groups, request, 8, WHO)
        codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
        assert codes == [E.COORDINATOR_NOT_AVAILABLE] * rows
        w.log.release()

    in_world(run)()


@in_world
async def test_a_fetch_of_many_groups_is_refused_after_one_time_out(w):
    """Each of them waited for its own commits, one after the other."""
    groups = [f"g{i}" for i in range(50)]
    w.log.hold()
    commits = [w.ask(w.commit(group, 1)) for group in groups]
    await asyncio.sleep(0.1)
    topics = [OffsetFetchRequestGroupTopic(name="t", partition_indexes=[0])]
    asked = [OffsetFetchRequestGroup(group_id=group, topics=topics) for group in groups]
    async with asyncio.timeout(LIMIT_S):
        answer = await handle_offset_fetch(w.groups, OffsetFetchRequest(groups=asked), 8, WHO)
    assert {group.error_code for group in answer.groups} == {E.NOT_COORDINATOR}
    assert {await commit for commit in commits} == {E.COORDINATOR_NOT_AVAILABLE}
    w.log.release()


@in_world
async def test_a_deletion_of_many_groups_is_refused_after_one_time_out(w):
    """The same, twice a group; those it did not come to are left as they are."""
    groups = [f"g{i}" for i in range(50)]
    for group in groups:
        assert await w.commit(group, 1) is E.NONE
    w.log.hold()
    async with asyncio.timeout(LIMIT_S):
        answer = await handle_delete_groups(w.groups, DeleteGroupsRequest(groups_names=groups), 2, WHO)
    assert {row.error_code for row in answer.results} == {E.COORDINATOR_NOT_AVAILABLE}
    w.log.release()
    await asyncio.sleep(0.1)
    assert [await w.fetch(group) for group in groups] == [-1] + [1] * 49


@in_world
async def test_a_sync_is_refused_when_the_assignments_are_not_stored_in_time(w):
    """As Kafka, which gives any write of a group offsets.commit.timeout.ms; it waited for as long as the append did."""
    joined = await w.join("g")
    w.log.hold()
    async with asyncio.timeout(LIMIT_S):
        reply = await w.sync("g", joined.member_id, joined.generation, {joined.member_id: b"all"})
    assert reply.error is E.COORDINATOR_NOT_AVAILABLE
    w.log.release()
    again = await w.join("g", joined.member_id)
    synced = await w.sync("g", joined.member_id, again.generation, {joined.member_id: b"all"})
    assert (synced.error, synced.assignment) == (E.NONE, b"all")
    await w.restart()
    assert await w.beat("g", joined.member_id, again.generation) is E.NONE, "the later one counts"


def test_the_last_rows_of_a_commit_are_not_written_after_a_later_commit():
    """A commit of 2 000 rows wrote its last rows only when its first rows were durable. Meanwhile its client had
    connected again, and its next commit of such a row was answered: the old offset replaced the new one."""

    @in_world
    async def run(w):
        partitions = [OffsetCommitRequestPartition(partition_index=i, committed_offset=100) for i in range(2_000)]
        request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])
        w.log.hold()
        old = w.ask(handle_offset_commit(w.groups, request, 8, WHO))  # its connection is closed, and it goes on
        await asyncio.sleep(0.1)
        new = w.ask(w.commit("g", 200, partition=1_999))
        await asyncio.sleep(0.1)
        w.log.release()
        assert await new is E.NONE
        await old
        assert await w.fetch("g", partition=1_999) == 200
        await w.restart()
        assert await w.fetch("g", partition=1_999) == 200

    run()
