"""A commit that is written in parts, of a topic that is deleted and made again between two of them."""

from __future__ import annotations

import asyncio
from uuid import UUID

from broker.error_codes import ErrorCode as E
from broker.groups.offset_requests import CommitRow
from broker.handlers.groups.members import ClientInfo
from broker.handlers.groups.offsets import handle_offset_commit
from broker.metadata.image import TopicFacts
from broker.wire.messages import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from tests.support.groups.group_world import GroupWorld, commit_rows

WHO = ClientInfo("c", "127.0.0.1")
ROWS, AT_ONCE = 2_000, 1_500


async def test_a_large_commit_by_name_is_of_the_topic_that_had_the_name_when_it_was_read() -> None:
    """The rows that came later were committed to the topic that is made again: a group began there at offsets of the
    one that was deleted, beyond its end or in the middle."""
    world = GroupWorld()
    world.topics = {"t": TopicFacts(UUID(int=1), ROWS)}
    await world.ready()
    rows = [OffsetCommitRequestPartition(partition_index=at, committed_offset=7) for at in range(ROWS)]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=rows)])
    committing = world.ask(handle_offset_commit(world.groups, request, 8, WHO))
    await asyncio.sleep(0)  # the first part is queued, and the second one comes in the next turn
    world.topics["t"] = TopicFacts(UUID(int=2), ROWS)
    answer = await committing
    codes = [row.error_code for topic in answer.topics for row in topic.partitions]
    assert codes == [E.NONE] * AT_ONCE + [E.UNKNOWN_TOPIC_OR_PARTITION] * (ROWS - AT_ONCE)
    assert [await world.fetch("g", partition=at) for at in (0, ROWS - 1)] == [-1, -1]
    await world.kill()


async def test_a_coordinator_that_knows_the_older_topic_takes_a_commit_by_name_for_it_and_refuses_one_by_id() -> None:
    """GUARANTEES says so: who asks by name may have read of the newer topic from another broker."""
    world, old, new = GroupWorld(), UUID(int=1), UUID(int=2)
    world.topics = {"t": TopicFacts(old, 1)}
    await world.ready()
    by_id = [CommitRow("t", 0, 8, -1, "", new)]
    assert await commit_rows(world.groups, "g", by_id) == [E.UNKNOWN_TOPIC_ID]
    assert await world.commit("g", 7) is E.NONE
    world.topics["t"] = TopicFacts(new, 1)
    assert await world.fetch("g") == -1
    await world.kill()
