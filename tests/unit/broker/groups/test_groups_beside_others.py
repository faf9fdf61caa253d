"""Groups of a broker that is not alone: topics exist whoever leads their partitions."""

from __future__ import annotations

import asyncio

from broker.error_codes import ErrorCode
from broker.groups.topic import OFFSETS_TOPIC
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from tests.support.broker_kit import Life, Place, play
from tests.support.neighbours import create, join, move, row

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


def test_positions_in_topics_that_others_lead_stay() -> None:
    """Over a start and the look after it, over regular looks, another topic's deletion, and the next load. What
    existed was what was served here: such a topic was taken for a deleted one, commits were refused, and the positions
    got tombstones at the first look."""

    async def scenario() -> None:
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

    play(scenario())
