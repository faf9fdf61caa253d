"""Producers of partitions whose reservation `tier seal` gave back wait a moment, all of them, and lose nothing."""

from __future__ import annotations

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic
from tests.support.brokers.broker_kit import Place, batch_of


@pytest.mark.parametrize("acks", [-1, 0, 1])
async def test_a_produce_to_several_sealed_partitions_waits_for_offsets_of_each(acks: int) -> None:
    """Only the first one's were waited for: the others got KAFKA_STORAGE_ERROR, and with acks=0 their records were
    lost with the connection."""
    life = await Place().start()
    await life.create("log", 3, remote_storage_enable="true")
    for index in range(3):
        await life.produce("log", b"before", index=index)
    tiers = life.tiers
    await tiers.seal_all(None)
    assert [life.partition("log", index).log.reserved_end for index in range(3)] == [1, 1, 1]
    rows = [ProduceRequestPartition(index=index, records=memoryview(batch_of(b"after"))) for index in range(3)]
    topic = ProduceRequestTopic(name="log", partition_data=rows)
    answer = await life.call(ApiKey.PRODUCE, ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[topic]), 9)
    if acks:
        codes = [row.error_code for row in answer.responses[0].partition_responses]
        assert codes == [ErrorCode.NONE] * 3
    for index in range(3):
        assert [value for _, value in await life.read_all("log", index)] == [b"before", b"after"]
    await life.stop()
