"""A response does not repeat a request's name for each of its partitions.

Found by a penetration test: a produce request of 150 KB with one topic name of 32 KB and 20 000 partitions had a
response of 650 MB, because each partition's error message named the topic. The same in ElectLeaders,
AlterPartitionReassignments, and by escaped characters in DescribeProducers.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.brokers.broker_kit import NEWEST, Place
from tests.support.wire.proportion import cost_of

COUNT = 300
PARTITION_BYTES_MAX = 500
LONG = "n" * 30_000
ESCAPED = "\U000e0001" * 249  # ten characters each when escaped

REQUESTS: list[tuple[ApiKey, Any]] = [
    (
        ApiKey.PRODUCE,
        wire.ProduceRequest(
            acks=1,
            topic_data=[
                wire.ProduceRequestTopic(
                    name=LONG, partition_data=[wire.ProduceRequestPartition(index=index) for index in range(COUNT)]
                )
            ],
        ),
    ),
    (
        ApiKey.ELECT_LEADERS,
        wire.ElectLeadersRequest(
            topic_partitions=[wire.ElectLeadersRequestTopic(topic=LONG, partitions=list(range(COUNT)))],
            timeout_ms=1000,
        ),
    ),
    (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        wire.AlterPartitionReassignmentsRequest(
            timeout_ms=1000,
            topics=[
                wire.AlterPartitionReassignmentsRequestTopic(
                    name=LONG,
                    partitions=[
                        wire.AlterPartitionReassignmentsRequestPartition(partition_index=index, replicas=[1])
                        for index in range(COUNT)
                    ],
                )
            ],
        ),
    ),
    (
        ApiKey.DESCRIBE_PRODUCERS,
        wire.DescribeProducersRequest(
            topics=[wire.DescribeProducersRequestTopic(name=ESCAPED, partition_indexes=list(range(COUNT)))]
        ),
    ),
]


@pytest.mark.parametrize(("key", "request_"), REQUESTS, ids=[key.name for key, _ in REQUESTS])
async def test_a_long_name_is_not_repeated_for_each_partition(key: ApiKey, request_: Any) -> None:
    life = await Place("auto.create.topics.enable=false").start()
    frame = life.frame(key, NEWEST[key], request_)
    cost = await cost_of(life, frame, count_calls=False, memory=False)
    assert 0 < cost.answer_bytes < len(LONG) + COUNT * PARTITION_BYTES_MAX
    await life.stop()
