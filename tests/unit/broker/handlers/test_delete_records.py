"""DeleteRecords, and what clients may do to the topic where groups keep their offsets; time-outs of admin requests."""

from __future__ import annotations

import asyncio

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from tests.support.brokers.broker_kit import Life, Place, batch_of, produce_request
from tests.support.store.faulty_store import FaultPlan
from tests.unit.broker.handlers.test_handlers_bounded import with_positions

OFFSETS = "__consumer_offsets"
TIMED_OUT = int(ErrorCode.REQUEST_TIMED_OUT)


def cut(*offsets: tuple[int, int], topic: str = "log", timeout_ms: int = 5000) -> DeleteRecordsRequest:
    """`offsets`: (partition, offset) each."""
    rows = [DeleteRecordsRequestPartition(partition_index=index, offset=offset) for index, offset in offsets]
    return DeleteRecordsRequest(topics=[DeleteRecordsRequestTopic(name=topic, partitions=rows)], timeout_ms=timeout_ms)


async def outcome(life: Life, request: DeleteRecordsRequest) -> list[tuple[int, int, int]]:
    """(partition, error, low watermark) of each row."""
    answer = await life.call(ApiKey.DELETE_RECORDS, request)
    return [(p.partition_index, p.error_code, p.low_watermark) for topic in answer.topics for p in topic.partitions]


async def filled(partitions: int = 1, **configs: str) -> tuple[Place, Life]:
    """Five records in each partition of "log"."""
    place = Place()
    life = await place.start()
    await life.create("log", partitions, **configs)
    for index in range(partitions):
        for _ in range(5):
            await life.produce("log", b"x", index=index)
    return place, life


@pytest.mark.parametrize("tiered", ["true", "false"])
async def test_a_client_that_does_not_wait_is_told_what_happened(tiered: str) -> None:
    """timeout_ms=0, as Kafka 4.3.1 answers it: what is wrong is named, and what is deleted is told. It answered
    REQUEST_TIMED_OUT to everything, and deleted."""
    _, life = await filled(2, remote_storage_enable=tiered)
    rows = await outcome(life, cut((0, 2), (1, 99), (1, -2), (9, 0), timeout_ms=0))
    unknown, beyond = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), int(ErrorCode.OFFSET_OUT_OF_RANGE)
    assert rows == [(0, 0, 2), (1, beyond, -1), (9, unknown, -1)]
    await life.stop()


async def test_a_request_has_one_time_out_for_all_its_partitions() -> None:
    """A slow bucket: six partitions took six time-outs. What is answered too late comes true all the same."""
    place, life = await filled(6, remote_storage_enable="true")
    place.store.plan = FaultPlan(latency_s=(3.0, 4.0))
    began = asyncio.get_running_loop().time()
    rows = await outcome(life, cut(*((index, 3) for index in range(6)), (7, 0), timeout_ms=2000))
    assert asyncio.get_running_loop().time() - began < 3
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert rows == [(index, TIMED_OUT, -1) for index in range(6)] + [(7, unknown, -1)]
    place.store.calm()
    await asyncio.sleep(120)
    assert [life.partition("log", index).log_start_offset for index in range(6)] == [3] * 6
    await life.stop()


async def test_records_acknowledged_by_the_leader_alone_can_be_deleted_at_once() -> None:
    """acks=1, then DeleteRecords: the offset was out of range, and −1 left the newest records."""
    _, life = await filled(2)
    for index in range(2):
        request = produce_request("log", batch_of(b"y", b"z"), acks=1, index=index)
        assert (await life.call(ApiKey.PRODUCE, request)).responses[0].partition_responses[0].base_offset == 5
    assert life.partition("log").high_watermark == 5
    assert await outcome(life, cut((0, 7), (1, -1))) == [(0, 0, 7), (1, 0, 7)]
    await life.stop()


async def test_of_a_partition_named_twice_the_last_offset_counts() -> None:
    """As Kafka: one row, and the lower offset alone is deleted when it stands last."""
    _, life = await filled()
    request = cut((0, 2), (0, 4))
    request.topics += cut((0, 1)).topics
    assert await outcome(life, request) == [(0, 0, 1)]
    await life.stop()


# --- the topic of the groups


async def with_offsets(life: Life) -> int:
    """A group with positions; the partition of the offsets topic that holds them."""
    await life.create("log", 4)
    await life.context.groups.find("g")
    await with_positions(life, "g")
    (held,) = [i for i in range(2) if life.partition(OFFSETS, i).high_watermark]
    return held


async def committed(life: Life) -> list[int]:
    wanted = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    (group,) = (await life.call(ApiKey.OFFSET_FETCH, wanted)).groups
    assert group.error_code == 0
    return [row.committed_offset for topic in group.topics for row in topic.partitions]


async def test_clients_cannot_take_the_offsets_of_groups_away() -> None:
    """DeleteRecords (INVALID_TOPIC_EXCEPTION, as Kafka), CreatePartitions (Kafka allows it, and every group's partition
    is another one from then on), DeleteTopics, Produce: refused, and the group's offsets stay, over a restart too."""
    place = Place()
    life = await place.start()
    held = await with_offsets(life)
    internal = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
    unknown = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    rows = await outcome(life, cut((held, -1), (1 - held, 0), (77, 0), topic=OFFSETS))
    assert rows == [(held, internal, -1), (1 - held, internal, -1), (77, unknown, -1)]
    for validate_only in (True, False):
        wanted = [CreatePartitionsRequestTopic(name=OFFSETS, count=3, assignments=None)]
        request = CreatePartitionsRequest(topics=wanted, timeout_ms=5000, validate_only=validate_only)
        assert (await life.call(ApiKey.CREATE_PARTITIONS, request)).results[0].error_code == internal
    gone = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name=OFFSETS)], timeout_ms=5000)
    assert (await life.call(ApiKey.DELETE_TOPICS, gone)).responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert (await life.produce(OFFSETS, b"x", index=held)).error_code == internal
    assert await committed(life) == [5] * 4
    await life.stop()
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    assert await committed(life) == [5] * 4
    await life.stop()


async def test_configs_of_the_offsets_topic_take_no_offsets_away() -> None:
    """As in Kafka a client may alter them; neither retention nor a small limit loses a position."""
    place = Place()
    life = await place.start()
    await with_offsets(life)
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": "1",
        "retention.bytes": "1",
        "segment.ms": "1",
        "remote.storage.enable": "true",
        "max.message.bytes": "1",
        "min.insync.replicas": "2",
        "message.timestamp.before.max.ms": "0",
    }
    for name, value in configs.items():
        change = IncrementalAlterConfigsRequestConfig(name=name, config_operation=0, value=value)
        resource = IncrementalAlterConfigsRequestResource(resource_type=2, resource_name=OFFSETS, configs=[change])
        await life.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources=[resource]))
    await with_positions(life, "another")
    await asyncio.sleep(600)
    await with_positions(life, "another")
    assert await committed(life) == [5] * 4
    await life.crash()
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    assert await committed(life) == [5] * 4
    await life.stop()
    place.lose_disk()
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    assert await committed(life) == [5] * 4
    await life.stop()


# --- time-outs of topic changes


async def test_a_change_whose_time_is_over_before_it_begins_is_not_made() -> None:
    """timeout_ms=0 in CreateTopics, CreatePartitions, DeleteTopics: REQUEST_TIMED_OUT and nothing done, as Kafka 4.3.1;
    each was made all the same."""
    life = await Place().start()
    await life.create("old")
    new = CreateTopicsRequestTopic(name="new", num_partitions=1, replication_factor=1)
    made = await life.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[new], timeout_ms=0))
    wider = [CreatePartitionsRequestTopic(name="old", count=3, assignments=None)]
    grown = await life.call(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics=wider, timeout_ms=0))
    old = [DeleteTopicsRequestTopic(name="old")]
    gone = await life.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=old, timeout_ms=0))
    codes = [made.topics[0].error_code, grown.results[0].error_code, gone.responses[0].error_code]
    assert codes == [TIMED_OUT] * 3
    await asyncio.sleep(60)
    assert {name: topic.partitions for name, topic in life.context.registry.topics.items()} == {"old": 1}
    await life.stop()


def long_list(size: int) -> str:
    """Replicas, about `size` bytes."""
    return ",".join(f"{at}:1" for at in range(10_000, 10_000 + size // 8))


async def test_topic_changes_of_a_request_share_its_time_out() -> None:
    """A slow bucket: five topics took five time-outs; those whose turn did not come are not made. Two of these fill a
    commit."""
    place = Place()
    life = await place.start()
    place.store.plan = FaultPlan(latency_s=(20.0, 21.0))
    configs = [CreateTopicsRequestConfig(name="leader.replication.throttled.replicas", value=long_list(3500))]
    new = [
        CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1, configs=configs) for name in "abcde"
    ]
    began = asyncio.get_running_loop().time()
    answer = await life.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=new, timeout_ms=3000))
    assert asyncio.get_running_loop().time() - began < 4
    assert [topic.error_code for topic in answer.topics] == [TIMED_OUT] * 5
    place.store.calm()
    await asyncio.sleep(120)
    assert life.context.registry.topics.keys() == {"a", "b"}
    await life.stop()
