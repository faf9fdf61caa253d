"""Metadata, topics, offsets and configs as clients ask for them: each answer's codes and numbers."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode
from broker.net.dispatch import Peer
from broker.wire.apis import APIS, ApiKey
from broker.wire.messages import (
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeLogDirsRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from logformat.records import Record, encode_batch
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place, decoded, parts_of, produce_request

VALUE = b"v" * 150


def metadata_of(*names: str | None, auto: bool = True, topic_id: UUID | None = None) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    if topic_id is not None:
        topics = [MetadataRequestTopic(name=None, topic_id=topic_id)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=auto)


# --- Metadata -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(13))
async def test_metadata_in_every_version(version: int) -> None:
    """All topics, then one by name: this broker leads, is the controller and the only replica."""
    life = await Place().start()
    await life.create("a", 2)
    everything = MetadataRequest(topics=[] if version == 0 else None)
    for request in (everything, metadata_of("a")):
        answer = await life.call(ApiKey.METADATA, request, version)
        assert [broker.node_id for broker in answer.brokers] == [1]
        (topic,) = answer.topics
        assert (topic.name, topic.error_code, len(topic.partitions)) == ("a", 0, 2)
        for partition in topic.partitions:
            assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
    if version >= 1:
        assert answer.controller_id == 1
        assert (await life.call(ApiKey.METADATA, MetadataRequest(topics=[]), version)).topics == []
    await life.stop()


async def test_a_missing_topic_is_created_where_both_sides_allow_it() -> None:
    """Auto-creation: the broker's config and the client's word, each can forbid it."""
    place = Place("num.partitions=3")
    life = await place.start()
    (topic,) = (await life.call(ApiKey.METADATA, metadata_of("no", auto=False))).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (topic,) = (await life.call(ApiKey.METADATA, metadata_of("yes"))).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 3)
    assert (await life.produce("yes", b"a", index=2)).error_code == 0
    await life.stop()
    life = await place.start("auto.create.topics.enable=false")
    (topic,) = (await life.call(ApiKey.METADATA, metadata_of("never"))).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await life.stop()


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize("name", ["", "a b", "..", "x" * 250, "né"])
async def test_a_name_no_topic_can_have_is_invalid_not_unavailable(name: str, auto: bool) -> None:
    """INVALID_TOPIC_EXCEPTION is final: LEADER_NOT_AVAILABLE would make clients ask for ever."""
    life = await Place().start()
    (topic,) = (await life.call(ApiKey.METADATA, metadata_of(name, auto=auto))).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    await life.stop()


async def test_a_topic_deleted_in_the_moment_it_was_made_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client's deletion comes between the opening and the answer: no closed connection."""
    life = await Place().start()
    controller = life.context.controller
    create = controller.create_topic

    async def create_and_lose(_: object, name: str, *rest: Any, **more: Any) -> Any:
        made = await create(name, *rest, **more)
        await controller.delete_topic(name)
        return made

    monkeypatch.setattr(type(controller), "create_topic", create_and_lose)
    (topic,) = (await life.call(ApiKey.METADATA, metadata_of("brief"))).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await life.stop()


async def test_two_clients_that_create_one_topic_at_once_both_get_it() -> None:
    """The second one's request finds it made."""
    life = await Place().start()
    answers = [life.dispatch(ApiKey.METADATA, metadata_of("both"), peer=Peer(n, "", "PLAINTEXT")) for n in (1, 2)]
    for answer in answers:
        (topic,) = decoded(ApiKey.METADATA, 12, await parts_of(answer)).topics
        assert (topic.error_code, len(topic.partitions)) == (0, 1)
    await life.stop()


@pytest.mark.parametrize("version", [10, 11, 12])
async def test_topics_can_be_asked_for_by_id(version: int) -> None:
    """KIP-516: a known id gives its topic, an unknown one UNKNOWN_TOPIC_ID, in every version that has the field."""
    life = await Place().start()
    known = await life.create("a")
    (topic,) = (await life.call(ApiKey.METADATA, metadata_of(topic_id=known), version)).topics
    assert (topic.name, topic.topic_id, topic.error_code) == ("a", known, 0)
    (topic,) = (await life.call(ApiKey.METADATA, metadata_of(topic_id=UUID(int=7)), version)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert topic.topic_id == UUID(int=7)
    await life.stop()


async def test_the_cluster_describes_itself() -> None:
    """DescribeCluster and DescribeLogDirs: one broker; local bytes by partition, and the disk's room."""
    life = await Place().start()
    await life.create("a")
    await life.produce("a", b"x")
    answer = await life.call(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert [broker.broker_id for broker in answer.brokers] == [answer.controller_id] == [1]
    refused = await life.call(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(endpoint_type=2))
    assert refused.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    (found,) = (await life.call(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics=None))).results
    assert found.total_bytes >= found.usable_bytes > 0
    assert [(t.name, t.partitions[0].partition_size) for t in found.topics] == [
        ("a", life.partition("a").log.local_bytes)
    ]
    await life.stop()


# --- topics ---------------------------------------------------------------------------------------------------------


def wanted_topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> CreateTopicsRequestTopic:
    return CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=replicas, **more)


def config(name: str, value: str | None) -> CreateTopicsRequestConfig:
    return CreateTopicsRequestConfig(name=name, value=value)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (wanted_topic("ok"), ErrorCode.NONE),
        (wanted_topic("ok", -1, -1), ErrorCode.NONE),
        (wanted_topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (wanted_topic("ok", 0), ErrorCode.INVALID_PARTITIONS),
        (wanted_topic("ok", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted_topic("ok", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (wanted_topic("ok", configs=[config("nonsense", "1")]), ErrorCode.INVALID_CONFIG),
        (wanted_topic("ok", configs=[config("retention.ms", "soon")]), ErrorCode.INVALID_CONFIG),
        (wanted_topic("ok", configs=[config("cleanup.policy", "compact")]), ErrorCode.NONE),
        (wanted_topic("ok", configs=[config("cleanup.policy", "compact,")]), ErrorCode.INVALID_CONFIG),
        (wanted_topic("ok", configs=[config("retention.ms", "60000")]), ErrorCode.NONE),
        (
            wanted_topic("ok", -1, -1, assignments=[CreateTopicsRequestAssignment(0, [1])]),
            ErrorCode.NONE,
        ),
        (
            wanted_topic("ok", -1, -1, assignments=[CreateTopicsRequestAssignment(0, [9])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        (
            wanted_topic("ok", 2, 1, assignments=[CreateTopicsRequestAssignment(0, [1])]),
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_create_topics(wanted: CreateTopicsRequestTopic, code: ErrorCode, validate_only: bool) -> None:
    """Each rule has its code and a message; validate_only says the same and makes nothing."""
    life = await Place().start()
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=5000, validate_only=validate_only)
    (answer,) = (await life.call(ApiKey.CREATE_TOPICS, request)).topics
    assert answer.error_code == code, answer.error_message
    assert bool(answer.error_message) is bool(code)
    assert (wanted.name in life.context.registry.topics) is (not code and not validate_only)
    await life.stop()


async def test_names_given_twice_and_floods_are_refused_before_work_begins() -> None:
    """A request that contradicts itself, or asks for a thousand and one topics, makes none."""
    life = await Place().start()
    twice = CreateTopicsRequest(topics=[wanted_topic("a"), wanted_topic("a")], timeout_ms=5000)
    assert {a.error_code for a in (await life.call(ApiKey.CREATE_TOPICS, twice)).topics} == {ErrorCode.INVALID_REQUEST}
    flood = CreateTopicsRequest(topics=[wanted_topic(f"t{n}") for n in range(1001)], timeout_ms=5000)
    assert {a.error_code for a in (await life.call(ApiKey.CREATE_TOPICS, flood)).topics} == {ErrorCode.POLICY_VIOLATION}
    assert not life.context.registry.topics
    await life.stop()


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_topics_by_name(version: int) -> None:
    """Both shapes of the request; a missing one is named."""
    life = await Place().start()
    await life.create("a")
    if version < 6:
        request = DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=5000)
    else:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequestTopic(name="a"), DeleteTopicsRequestTopic(name="b")], timeout_ms=5000
        )
    found = (await life.call(ApiKey.DELETE_TOPICS, request, version)).responses
    assert [answer.error_code for answer in found] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not life.context.registry.topics
    await life.stop()


async def test_delete_topics_by_id_and_internal_ones_stay() -> None:
    """KIP-516 again, and `__consumer_offsets` is not for clients to delete."""
    life = await Place().start()
    known = await life.create("a")
    wanted = [
        DeleteTopicsRequestTopic(name=None, topic_id=known),
        DeleteTopicsRequestTopic(name=None, topic_id=UUID(int=5)),
    ]
    found = (await life.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=wanted, timeout_ms=5000))).responses
    assert [answer.error_code for answer in found] == [0, ErrorCode.UNKNOWN_TOPIC_ID]
    assert found[0].name == "a"
    assert await life.context.groups.find("g") is ErrorCode.NONE
    assert await life.context.groups.find("h") is ErrorCode.NONE
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="__consumer_offsets")], timeout_ms=5000)
    assert (await life.call(ApiKey.DELETE_TOPICS, request)).responses[0].error_code != 0
    (topic,) = (await life.call(ApiKey.METADATA, metadata_of("__consumer_offsets"))).topics
    assert topic.is_internal
    await life.stop()


async def test_delete_topics_can_be_switched_off() -> None:
    """delete.topic.enable=false is honoured: TOPIC_DELETION_DISABLED, nothing is gone."""
    life = await Place("delete.topic.enable=false").start()
    await life.create("a")
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="a")], timeout_ms=5000)
    answer = (await life.call(ApiKey.DELETE_TOPICS, request)).responses[0]
    assert answer.error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert "a" in life.context.registry.topics
    await life.stop()


async def test_create_partitions() -> None:
    """Growing works and is validated; shrinking, the same count and a missing topic are refused."""
    life = await Place().start()
    await life.create("a", 2)

    async def grow(name: str, count: int, *, validate_only: bool = False) -> int:
        wanted = CreatePartitionsRequestTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=5000, validate_only=validate_only)
        return int((await life.call(ApiKey.CREATE_PARTITIONS, request)).results[0].error_code)

    assert await grow("a", 3, validate_only=True) == 0
    assert len(life.context.registry.partitions) == 2
    assert await grow("a", 3) == 0
    assert len(life.context.registry.partitions) == 3
    assert await grow("a", 3) == await grow("a", 1) == ErrorCode.INVALID_PARTITIONS
    assert await grow("b", 3) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await life.stop()


async def test_delete_records_moves_the_start_and_never_back() -> None:
    """−1 is the high watermark; beyond it is out of range; a lower offset than the start changes nothing."""
    place = Place()
    life = await place.start()
    await life.create("a")
    for _ in range(5):
        await life.produce("a", b"x")

    async def cut(offset: int, topic: str = "a") -> tuple[int, int]:
        wanted = DeleteRecordsRequestPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsRequestTopic(name=topic, partitions=[wanted])], timeout_ms=5000
        )
        answer = (await life.call(ApiKey.DELETE_RECORDS, request)).topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    assert await cut(2) == (0, 2)
    assert await cut(1) == (0, 2)
    assert await cut(6) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await cut(-2) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await cut(0, "b") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert (await life.fetch("a", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    await life.crash()
    life = await place.start()
    assert life.partition("a").log_start_offset == 2
    assert await cut(-1) == (0, 5)
    await life.stop()


# --- offsets --------------------------------------------------------------------------------------------------------


async def list_offset(life: Life, timestamp: int, version: int = 11, **more: Any) -> Any:
    wanted = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp, **more)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequestTopic(name="log", partitions=[wanted])], timeout_ms=5000
    )
    return (await life.call(ApiKey.LIST_OFFSETS, request, version)).topics[0].partitions[0]


SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}


@pytest.mark.parametrize("version", range(1, 12))
async def test_sentinels_are_known_from_their_version_on(version: int) -> None:
    """−3 since 7 (KIP-734), −4 since 8 (KIP-405), −5 since 9 (KIP-1005), −6 since 11 (KIP-1023); −7 never."""
    life = await Place().start()
    await life.create("log")
    await life.produce("log", b"a", b"b")
    expected = {-1: 2, -2: 0, -3: 0, -4: 0, -5: -1, -6: 0}
    for sentinel, since in SINCE.items():
        answer = await list_offset(life, sentinel, version)
        if version < since:
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        else:
            assert (answer.error_code, answer.offset) == (0, expected[sentinel]), sentinel
    assert (await list_offset(life, -7, version)).error_code == ErrorCode.UNSUPPORTED_VERSION
    await life.stop()


async def test_sentinels_over_both_tiers() -> None:
    """−2 in the bucket, −4 on the disk, −5 the last record of the bucket, −1 the high watermark; by time in either."""
    life = await Place().start()
    await life.create("log", **SMALL_SEGMENTS)
    for at in range(40):
        batch = encode_batch([Record(0, EPOCH_MS + at * 10, None, VALUE)])
        await life.call(ApiKey.PRODUCE, produce_request("log", batch))
    await asyncio.sleep(60)
    partition = life.partition("log")
    local = partition.log.local_log_start_offset
    assert local > 10
    assert (await list_offset(life, -2)).offset == 0
    assert (await list_offset(life, -4)).offset == local
    assert (await list_offset(life, -5)).offset == partition.tier.remote_end_offset - 1
    assert (await list_offset(life, -6)).offset == partition.tier.remote_end_offset
    assert (await list_offset(life, -1)).offset == 40
    newest = await list_offset(life, -3)
    assert (newest.offset, newest.timestamp) == (39, EPOCH_MS + 390)
    for asked, offset in ((0, 0), (25, 3), (30, 3), (local * 10 - 5, local), (390, 39)):
        found = await list_offset(life, EPOCH_MS + asked)
        assert (found.offset, found.timestamp) == (offset, EPOCH_MS + offset * 10), asked
    assert (await list_offset(life, EPOCH_MS + 391)).offset == -1
    await life.stop()


async def test_the_newest_timestamp_may_lie_in_the_bucket() -> None:
    """−3 over both tiers.

    Record 3 carries the greatest timestamp and left the disk long ago (Kafka would not find it).
    """
    life = await Place().start()
    await life.create("log", **SMALL_SEGMENTS)
    for at in range(40):
        timestamp = EPOCH_MS + (100_000 if at == 3 else at)
        await life.call(ApiKey.PRODUCE, produce_request("log", encode_batch([Record(0, timestamp, None, VALUE)])))
    await asyncio.sleep(60)
    assert life.partition("log").log.local_log_start_offset > 3
    newest = await list_offset(life, -3)
    assert (newest.offset, newest.timestamp) == (3, EPOCH_MS + 100_000)
    await life.stop()


async def test_the_newest_timestamp_of_an_empty_batch_in_the_bucket_hides_no_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """−3: the bucket's greatest timestamp may be that of a batch that compaction left empty."""
    life = await Place().start()
    await life.create("log", **SMALL_SEGMENTS)
    for at in range(40):
        await life.call(ApiKey.PRODUCE, produce_request("log", encode_batch([Record(0, EPOCH_MS + at, None, VALUE)])))
    await asyncio.sleep(60)
    monkeypatch.setattr(type(life.partition("log").tier), "max_timestamp_ms", EPOCH_MS + 1_000)
    newest = await list_offset(life, -3)
    assert (newest.offset, newest.timestamp) == (39, EPOCH_MS + 39)
    await life.stop()


async def test_list_offsets_refuses_what_it_should() -> None:
    """A partition named twice, an unknown one, a wrong leader epoch."""
    life = await Place().start()
    await life.create("log")
    twice = [ListOffsetsRequestPartition(partition_index=0, timestamp=-1)] * 2
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsRequestTopic(name="log", partitions=twice)], timeout_ms=5000
    )
    answer = await life.call(ApiKey.LIST_OFFSETS, request)
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2
    assert (await list_offset(life, -1, current_leader_epoch=7)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    await life.context.controller.delete_topic("log")
    assert (await list_offset(life, -1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await life.stop()


async def test_the_end_of_an_epoch() -> None:
    """OffsetForLeaderEpoch: an old epoch ends where the next began, the current one at the end."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"a", b"b")
    await life.stop()
    life = await place.start()
    await life.produce("log", b"c")

    async def end_of(epoch: int) -> tuple[int, int, int]:
        wanted = OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderEpochRequestTopic(topic="log", partitions=[wanted])]
        )
        answer = (await life.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, request)).topics[0].partitions[0]
        return answer.error_code, answer.leader_epoch, answer.end_offset

    assert await end_of(0) == (0, 0, 2)
    assert await end_of(1) == (0, 1, 3)
    assert await end_of(9) == (0, -1, -1)
    await life.stop()


# --- producer ids and configs ---------------------------------------------------------------------------------------


async def test_a_producer_id_is_given_for_what_makes_sense() -> None:
    """A transactional id is sent to its coordinator; halves of an id and epoch are an invalid request."""
    life = await Place().start()
    for transactional_id, producer_id, epoch, code in (
        ("tx", -1, -1, ErrorCode.NOT_COORDINATOR),  # nobody looked for it: its topic does not exist
        ("", -1, -1, ErrorCode.INVALID_REQUEST),
        (None, 5, -1, ErrorCode.INVALID_REQUEST),
        (None, 5, 3, ErrorCode.NONE),
    ):
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=1000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        answer = await life.call(ApiKey.INIT_PRODUCER_ID, request)
        assert answer.error_code == code
        assert (answer.producer_id >= 0) is (code is ErrorCode.NONE)
    await life.stop()


async def described(life: Life, kind: int, name: str, keys: list[str] | None = None, **more: Any) -> Any:
    resource = DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return (await life.call(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource], **more))).results[0]


async def test_configs_are_described_with_their_source() -> None:
    """Topic overrides, defaults, broker configs that only the running process knows; unknown resources are refused."""
    life = await Place().start()
    await life.create("a", retention_ms="60000")
    found = {entry.name: entry for entry in (await described(life, 2, "a", include_synonyms=True)).configs}
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("60000", 1)
    assert found["segment.bytes"].config_source != 1
    assert found["retention.ms"].synonyms[0].value == "60000"
    only = await described(life, 2, "a", ["segment.bytes"], include_documentation=True)
    assert [entry.name for entry in only.configs] == ["segment.bytes"]
    assert only.configs[0].documentation
    broker = {entry.name: entry for entry in (await described(life, 4, "1")).configs}
    assert broker["listeners"].value.startswith("PLAINTEXT://127.0.0.1:")
    assert broker["listeners"].read_only
    assert (await described(life, 2, "b")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await described(life, 4, "9")).error_code == ErrorCode.INVALID_REQUEST
    assert (await described(life, 99, "x")).error_code == ErrorCode.INVALID_REQUEST
    await life.stop()


Change = tuple[str, int, str | None]  # name, operation (0 SET, 1 DELETE), value


async def altered(life: Life, name: str, *changes: Change, kind: int = 2, dry: bool = False) -> Any:
    resource = IncrementalAlterConfigsRequestResource(
        resource_type=kind,
        resource_name=name,
        configs=[IncrementalAlterConfigsRequestConfig(name=n, config_operation=o, value=v) for n, o, v in changes],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=dry)
    return (await life.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)).responses[0]


async def test_configs_are_altered_all_or_none_and_followed_at_once() -> None:
    """SET, DELETE, one bad change among good ones, validate_only, a fixed broker config: refused with a reason."""
    life = await Place().start()
    await life.create("a", retention_ms="60000")
    partition = life.partition("a")
    assert (await altered(life, "a", ("max.message.bytes", 0, "1000"))).error_code == 0
    assert partition.config.max_message_bytes == 1000
    assert (await life.produce("a", b"x" * 2000)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    refused = await altered(life, "a", ("retention.ms", 0, "5"), ("nonsense", 0, "1"))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert partition.config.retention_ms == 60000
    assert (await altered(life, "a", ("retention.ms", 0, "5"), dry=True)).error_code == 0
    assert partition.config.retention_ms == 60000
    assert (await altered(life, "a", ("retention.ms", 1, None))).error_code == 0
    assert partition.config.retention_ms == -1
    assert (await altered(life, "a", ("retention.ms", 9, "1"))).error_code == ErrorCode.INVALID_REQUEST
    assert (await altered(life, "b", ("retention.ms", 0, "1"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refused = await altered(life, "1", ("num.partitions", 0, "1"), kind=4)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert refused.error_message
    await life.stop()


async def test_admin_requests_in_every_version() -> None:
    """Each served version of each admin API decodes, is handled and encodes."""
    life = await Place().start()
    requests: dict[ApiKey, Any] = {
        ApiKey.DESCRIBE_CONFIGS: DescribeConfigsRequest(
            resources=[DescribeConfigsRequestResource(resource_type=4, resource_name="1", configuration_keys=None)]
        ),
        ApiKey.DESCRIBE_CLUSTER: DescribeClusterRequest(),
        ApiKey.DESCRIBE_LOG_DIRS: DescribeLogDirsRequest(topics=None),
        ApiKey.ALTER_REPLICA_LOG_DIRS: AlterReplicaLogDirsRequest(dirs=[]),
        ApiKey.INIT_PRODUCER_ID: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: OffsetForLeaderEpochRequest(topics=[]),
        ApiKey.DELETE_RECORDS: DeleteRecordsRequest(topics=[], timeout_ms=1),
        ApiKey.CREATE_PARTITIONS: CreatePartitionsRequest(topics=[], timeout_ms=1),
    }
    for key, request in requests.items():
        for version in range(APIS[key].version_min, APIS[key].version_max + 1):
            assert await life.call(key, request, version) is not None
    for version in range(APIS[ApiKey.CREATE_TOPICS].version_min, APIS[ApiKey.CREATE_TOPICS].version_max + 1):
        request = CreateTopicsRequest(topics=[wanted_topic(f"t{version}")], timeout_ms=5000)
        assert (await life.call(ApiKey.CREATE_TOPICS, request, version)).topics[0].error_code == 0
    await life.stop()


async def test_the_topics_of_a_request_are_one_commit() -> None:
    """Twenty topics were twenty commits, one after the other: 20 s where a bucket takes one write a second."""
    place = Place()
    life = await place.start()
    version = cluster_version(place)
    wanted = [wanted_topic(f"t{at}") for at in range(20)]
    made = await life.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=wanted, timeout_ms=30_000))
    assert [(topic.name, topic.error_code) for topic in made.topics] == [(f"t{at}", 0) for at in range(20)]
    assert cluster_version(place) == version + 1
    names = [topic.name for topic in wanted]
    gone = await life.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topic_names=names, timeout_ms=30_000), 5)
    assert [(topic.name, topic.error_code) for topic in gone.responses] == [(name, 0) for name in names]
    assert not life.context.registry.topics
    await life.stop()


def cluster_version(place: Place) -> int:
    """How often `cluster.json` was replaced."""
    return int(json.loads(place.memory.objects["cluster.json"].data)["version"])
