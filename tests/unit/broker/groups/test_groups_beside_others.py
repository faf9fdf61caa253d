"""Groups of a broker that is not alone: topics exist whoever leads their partitions."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.error_codes import ErrorCode
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    SyncGroupRequest,
)
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.neighbours import create, join, move, row

CHECKS = "offsets.retention.check.interval.ms=1000"


async def _commit(life: Life, topic: str, offset: int) -> int:
    wanted = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id="g",
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[wanted])],
        generation_id_or_member_epoch=-1,
    )
    return int((await life.call(ApiKey.OFFSET_COMMIT, request, 8)).topics[0].partitions[0].error_code)


async def _position(life: Life, topic: str) -> int:
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])])
    async with asyncio.timeout(60):
        while (answer := await life.call(ApiKey.OFFSET_FETCH, request, 5)).error_code != ErrorCode.NONE:
            await asyncio.sleep(0.1)
    return int(answer.topics[0].partitions[0].committed_offset)


async def test_positions_in_topics_that_others_lead_stay() -> None:
    """Over a start and the look after it, over regular looks, another topic's deletion, and the next load. What
    existed was what was served here: such a topic was taken for a deleted one, commits were refused, and the positions
    got tombstones at the first look."""
    place = Place(CHECKS)
    life = await place.start()
    await life.create("log")
    await life.create("gone")
    assert await life.context.groups.find("g") is ErrorCode.NONE
    await join(life, 2)
    assert await _position(life, "log") == -1
    assert await _commit(life, "log", 5) == await _commit(life, "gone", 6) == ErrorCode.NONE
    await move(life, "log", 0, 2)
    await life.stop()

    life = await place.start()
    assert await _position(life, "log") == 5
    await create(life, "far", row(2))
    assert await _commit(life, "far", 7) == ErrorCode.NONE
    await life.context.controller.delete_topic("gone")
    await asyncio.sleep(30)
    assert not life.context.metadata.image.deleted
    assert [await _position(life, topic) for topic in ("log", "far", "gone")] == [5, 7, -1]

    for index in range(life.context.metadata.topic(OFFSETS_TOPIC).partitions):
        await move(life, OFFSETS_TOPIC, index, life.context.config.node_id)
    await asyncio.sleep(30)
    assert [await _position(life, topic) for topic in ("log", "far", "gone")] == [5, 7, -1]
    await life.stop()


async def _join(life: Life, version: int = 9) -> int:
    """The error of a new member's JoinGroup; it waits as long as the coordinator lets it."""
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=memoryview(b"?"))],
    )
    return int(
        (await life.call(ApiKey.JOIN_GROUP, request, version, Peer(2, "127.0.0.1:50001", "PLAINTEXT"))).error_code
    )


async def test_groups_leave_with_their_partition_and_come_back_with_it() -> None:
    """A leads, B leads, A leads again (D45): while another broker coordinates a group every request for it gets
    NOT_COORDINATOR, who waits hears it at once, and no list has it; what was committed before is there afterwards, what
    was not answered was not committed."""
    place = Place("offsets.topic.num.partitions=1", "group.initial.rebalance.delay.ms=20000")
    life = await place.start()
    me = life.context.config.node_id
    await life.create("log")
    assert await life.context.groups.find("g") is ErrorCode.NONE
    await join(life, 2)
    assert await _position(life, "log") == -1
    assert await _commit(life, "log", 5) == ErrorCode.NONE
    first_epoch = life.partition(OFFSETS_TOPIC).leader_epoch

    joining = asyncio.ensure_future(_join(life, 3))
    await asyncio.sleep(1)
    began_s = life.clock.monotonic_s()
    await move(life, OFFSETS_TOPIC, 0, 2, beside=(me,))
    assert await joining == ErrorCode.NOT_COORDINATOR
    assert life.clock.monotonic_s() - began_s < 5
    assert await _commit(life, "log", 6) == ErrorCode.NOT_COORDINATOR
    wanted = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="log", partition_indexes=[0])])
    asked: list[tuple[ApiKey, Any]] = [
        (ApiKey.HEARTBEAT, HeartbeatRequest(group_id="g", generation_id=1, member_id="m")),
        (ApiKey.SYNC_GROUP, SyncGroupRequest("g", 1, "m", protocol_type="consumer", protocol_name="range")),
        (ApiKey.LEAVE_GROUP, LeaveGroupRequest("g", members=[LeaveGroupRequestMember("m")])),
        (ApiKey.OFFSET_DELETE, OffsetDeleteRequest("g")),
    ]
    for key, request in asked:
        assert (await life.call(key, request)).error_code == ErrorCode.NOT_COORDINATOR, key
    assert (await life.call(ApiKey.OFFSET_FETCH, wanted, 5)).error_code == ErrorCode.NOT_COORDINATOR
    assert await _join(life) == ErrorCode.NOT_COORDINATOR
    described = await life.call(ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=["g"]))
    deleted = await life.call(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=["g"]))
    assert described.groups[0].error_code == deleted.results[0].error_code == ErrorCode.NOT_COORDINATOR
    listed = await life.call(ApiKey.LIST_GROUPS, ListGroupsRequest())
    assert (listed.error_code, listed.groups) == (ErrorCode.NONE, [])

    await move(life, OFFSETS_TOPIC, 0, me)
    assert await _position(life, "log") == 5
    assert life.partition(OFFSETS_TOPIC).leader_epoch == first_epoch + 2
    assert await _commit(life, "log", 7) == ErrorCode.NONE
    listed = await life.call(ApiKey.LIST_GROUPS, ListGroupsRequest())
    assert [group.group_id for group in listed.groups] == ["g"]

    await life.stop()
