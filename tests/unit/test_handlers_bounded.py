"""What a request names is looked at once: work and waiting grow with the request, never faster."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

from broker.context import Call
from broker.handlers.offsets import handle_list_offsets
from broker.wire.apis import ApiKey
from broker.wire.errors import ErrorCode
from broker.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from tests.support.broker_kit import Place, batch_of, play, produce_request

PARTITIONS = 12


class CountedIndex(int):
    """A partition index that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedIndex.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def list_offsets(*indexes: int, topic: str = "log", timestamp: int = -1) -> ListOffsetsRequest:
    wanted = [ListOffsetsRequestPartition(partition_index=index, timestamp=timestamp) for index in indexes]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequestTopic(name=topic, partitions=wanted)])


def test_list_offsets_compares_each_index_a_few_times() -> None:
    """Each row was searched among all rows: 240 KB of them stalled every client for 7.6 s."""

    async def scenario() -> None:
        life = await Place().start()
        count = 2000
        CountedIndex.compared = 0
        request = list_offsets(*map(CountedIndex, range(count)))
        answer = await handle_list_offsets(life.context, request, Call(10, life.peer, "kit"))
        assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * count
        assert CountedIndex.compared < 10 * count
        await life.stop()

    play(scenario())


def test_list_offsets_knows_a_partition_named_twice_across_topic_entries() -> None:
    """As Kafka 4.3.1: both rows are INVALID_REQUEST wherever they stand, the third partition is answered."""

    async def scenario() -> None:
        life = await Place().start()
        await life.create("log", 3)
        request = list_offsets(0, 0, 1)
        request.topics += list_offsets(1, 2).topics
        answer = await life.call(ApiKey.LIST_OFFSETS, request)
        codes = {(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions}
        bad = int(ErrorCode.INVALID_REQUEST)
        assert codes == {("log", 0, bad), ("log", 1, bad), ("log", 2, 0)}
        await life.stop()

    play(scenario())


def test_list_offsets_of_failed_logs_does_not_wait_for_each() -> None:
    """What a failed sync left behind never becomes visible: asking for a dozen ends took a dozen seconds."""

    async def scenario() -> None:
        place = Place("thermocline.flush=sync")
        life = await place.start()
        await life.create("log", PARTITIONS)
        place.disk.inject("sync", errno.EIO, ".log", times=-1)
        for index in range(PARTITIONS):
            await life.call(ApiKey.PRODUCE, produce_request("log", batch_of(b"x"), acks=1, index=index))
        await asyncio.sleep(5)
        place.disk.heal()
        partitions: list[Any] = [life.partition("log", index) for index in range(PARTITIONS)]
        assert all(p.log.log_end_offset == 1 and p.high_watermark == 0 for p in partitions)
        began = asyncio.get_running_loop().time()
        answer = await life.call(ApiKey.LIST_OFFSETS, list_offsets(*range(PARTITIONS)))
        assert [(p.error_code, p.offset) for p in answer.topics[0].partitions] == [(0, 0)] * PARTITIONS
        assert asyncio.get_running_loop().time() - began < 0.5
        await life.crash()

    play(scenario())
