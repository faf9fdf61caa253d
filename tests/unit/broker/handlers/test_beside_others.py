"""What clients are told by a broker that leads some partitions, while others lead the rest: on an image of three."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.metadata.records import NO_LEADER, Endpoint
from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DescribeClusterRequest,
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopic,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    ListConfigResourcesRequest,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.neighbours import commit, create, join, move, neighbour, row

NONE = ErrorCode.NONE
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
NO_LEADER_NOW = ErrorCode.LEADER_NOT_AVAILABLE
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _three(place: Place) -> Life:
    """Node 1 is asked; 2 and 3 have sessions, 4 had one. `far` has five partitions."""
    life = await place.start()
    await join(life, 2, 3, 4)
    four = life.context.metadata.image.nodes[4]
    rows = (
        row(1),
        row(2, epoch=5),
        row(2, 3, 4, in_sync=(2, 4), epoch=6),
        row(3, 2, leader=NO_LEADER, in_sync=(3,), epoch=7),
        row(3, 1, 2, in_sync=(1, 3, 2)),
    )
    await create(life, "far", *rows)
    await commit(life, replace(four, active=False))
    await life.context.controller.opened(life.context.metadata.topic("far"))
    return life


async def _metadata(life: Life, *names: str, version: int = 12, peer: Peer | None = None) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names] or None
    return await life.call(ApiKey.METADATA, MetadataRequest(topics=topics), version, peer)


async def test_metadata_names_every_broker_in_session_and_every_leader() -> None:
    """With the replicas that are in sync and in session as the set, and the others' as offline."""
    life = await _three(Place())
    answer = await _metadata(life, "far")
    here = ("127.0.0.1", life.context.metadata.image.nodes[1].listeners[0].port)
    brokers = [(each.node_id, each.host, each.port) for each in answer.brokers]
    assert brokers == [(1, *here), (2, "b2", 9092), (3, "b3", 9092)]
    shown = [
        (p.error_code, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes, p.offline_replicas)
        for p in answer.topics[0].partitions
    ]
    own_epoch = life.partition("far").leader_epoch
    assert shown == [
        (NONE, 1, own_epoch, [1], [1], []),
        (NONE, 2, 5, [2], [2], []),
        (NONE, 2, 6, [2, 3, 4], [2], [4]),
        (NO_LEADER_NOW, -1, 7, [3, 2], [3], []),
        (NONE, 3, 0, [3, 1, 2], [1, 3, 2], []),
    ]
    assert [topic.name for topic in (await _metadata(life)).topics] == ["far"]

    asked = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequestTopic(name="far")])
    described = (await life.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, asked)).topics[0].partitions
    # There is no leader: Kafka says so by its absence, and names who may become it, not as an error (KIP-966).
    shown[3] = (NONE, *shown[3][1:])
    assert shown == [
        (p.error_code, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes, p.offline_replicas) for p in described
    ]
    assert [p.eligible_leader_replicas for p in described] == [[], [], [4], [], []]
    listed = await life.call(ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest(resource_types=[2, 4]))
    assert [each.resource_name for each in listed.config_resources] == ["1", "2", "3", "4", "far"]
    await life.stop()


async def test_a_leader_without_the_clients_listener_cannot_be_reached() -> None:
    """LISTENER_NOT_FOUND to those who know it, else as if there were no leader; the broker is not named."""
    place = Place(
        "listeners=PLAINTEXT://127.0.0.1:9001,OTHER://127.0.0.1:9002",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
        "inter.broker.listener.name=PLAINTEXT",
    )
    life = await place.start()
    await join(life, 2)
    await create(life, "far", row(2))
    peer = Peer(2, "127.0.0.1:50001", "OTHER")
    answer = await _metadata(life, "far", peer=peer)
    assert [(each.node_id, each.port) for each in answer.brokers] == [(1, 9002)]
    assert answer.topics[0].partitions[0].error_code == ErrorCode.LISTENER_NOT_FOUND
    answer = await _metadata(life, "far", version=5, peer=peer)
    assert answer.topics[0].partitions[0].error_code == NO_LEADER_NOW
    two = neighbour(life, 2)
    await commit(life, replace(two, listeners=(*two.listeners, Endpoint("OTHER", "x2", 7))))
    answer = await _metadata(life, "far", peer=peer)
    assert [(each.node_id, each.host, each.port) for each in answer.brokers][1] == (2, "x2", 7)
    assert answer.topics[0].partitions[0].leader_id == 2
    await life.stop()


async def test_the_cluster_is_described_with_ended_sessions_when_asked() -> None:
    life = await _three(Place())
    for fenced, expected in ((False, [1, 2, 3]), (True, [1, 2, 3, 4])):
        request = DescribeClusterRequest(include_fenced_brokers=fenced)
        answer = await life.call(ApiKey.DESCRIBE_CLUSTER, request)
        assert [each.broker_id for each in answer.brokers] == expected
        assert [each.broker_id for each in answer.brokers if each.is_fenced] == [4][:fenced]
    await life.stop()


async def test_the_coordinator_is_who_leads_the_groups_partition() -> None:
    """Nobody while nobody leads it."""
    life = await Place("offsets.topic.num.partitions=1").start()
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])

    async def found() -> tuple[int, int, str]:
        (answer,) = (await life.call(ApiKey.FIND_COORDINATOR, request)).coordinators
        return answer.error_code, answer.node_id, answer.host

    assert await found() == (NONE, 1, "127.0.0.1")
    await join(life, 2)
    await move(life, OFFSETS_TOPIC, 0, 2)
    assert await found() == (NONE, 2, "b2")
    await move(life, OFFSETS_TOPIC, 0, NO_LEADER)
    assert await found() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "")
    await move(life, OFFSETS_TOPIC, 0, 1)
    assert await found() == (NONE, 1, "127.0.0.1")
    await life.stop()


@pytest.mark.parametrize(
    ("topic", "index", "code"),
    [("far", 1, NOT_LEADER), ("far", 3, NOT_LEADER), ("far", 5, UNKNOWN), ("far", -1, UNKNOWN), ("none", 0, UNKNOWN)],
)
async def test_who_asks_for_what_others_lead_is_sent_away(topic: str, index: int, code: ErrorCode) -> None:
    """By every API that only a leader answers; what does not exist is unknown."""
    life = await _three(Place())
    assert (await life.produce(topic, b"a", index=index)).error_code == code
    fetched = FetchRequestPartition(partition=index, partition_max_bytes=1 << 20)
    request = FetchRequest(topics=[FetchRequestTopic(topic=topic, partitions=[fetched])])
    assert (await life.call(ApiKey.FETCH, request)).responses[0].partitions[0].error_code == code
    asked: list[tuple[ApiKey, Any]] = [
        (
            ApiKey.LIST_OFFSETS,
            ListOffsetsRequest(
                replica_id=-1,
                topics=[ListOffsetsRequestTopic(topic, [ListOffsetsRequestPartition(index, timestamp=-1)])],
            ),
        ),
        (
            ApiKey.DELETE_RECORDS,
            DeleteRecordsRequest(
                topics=[DeleteRecordsRequestTopic(topic, [DeleteRecordsRequestPartition(index, 0)])],
                timeout_ms=1000,
            ),
        ),
        (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            OffsetForLeaderEpochRequest(
                topics=[OffsetForLeaderEpochRequestTopic(topic, [OffsetForLeaderEpochRequestPartition(index)])]
            ),
        ),
        (ApiKey.DESCRIBE_PRODUCERS, DescribeProducersRequest([DescribeProducersRequestTopic(topic, [index])])),
    ]
    for key, question in asked:
        answer = (await life.call(key, question)).topics[0].partitions[0]
        assert answer.error_code == code, key
    await life.stop()


async def test_the_preferred_replica_leads_again_when_it_is_asked_for() -> None:
    """Where it is in sync and has a session, in the next leader epoch; the answers are those that Apache Kafka 4.3.1
    gave for the same partitions."""
    life = await _three(Place())
    rows = (row(3, 2, leader=2, epoch=4), row(4, 2, leader=2, in_sync=(2,), epoch=4), row(2, 3))
    await create(life, "more", *rows, number=78)

    async def elect(kind: int, *wanted: tuple[str, list[int]], everything: bool = False) -> Any:
        topics = None if everything else [ElectLeadersRequestTopic(*each) for each in wanted]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=5000)
        found = (await life.call(ApiKey.ELECT_LEADERS, request)).replica_election_results
        return {
            (topic.topic, each.partition_id): (each.error_code, each.error_message)
            for topic in found
            for each in topic.partition_result
        }

    not_needed = (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    no_preferred = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    nobody = (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
    assert await elect(1, ("more", [0, 9]), ("far", [0, 3])) == {
        ("more", 0): not_needed,
        ("more", 9): (UNKNOWN, "No such partition as more-9"),
        ("far", 0): not_needed,
        ("far", 3): nobody,
    }
    assert await elect(0, ("more", [0, 1, 2])) == {
        ("more", 0): (NONE, None),
        ("more", 1): no_preferred,
        ("more", 2): not_needed,
    }
    now = life.context.metadata.topic("more").rows[0]
    assert (now.leader, now.leader_epoch) == (3, 5)
    assert await elect(0, everything=True) == {("more", 1): no_preferred, ("far", 3): (NONE, None)}
    assert life.context.metadata.topic("far").rows[3].leader == 3
    await life.stop()


async def test_another_brokers_configs_are_set_by_whoever_decides() -> None:
    """It passes on what its client asked; nobody of an id is refused as ever."""
    life = await _three(Place())

    async def altered(node_id: int) -> Any:
        config = IncrementalAlterConfigsRequestConfig("log.roll.ms", 0, "60000")
        resource = IncrementalAlterConfigsRequestResource(4, str(node_id), [config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (answer,) = (await life.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)).responses
        return answer.error_code, answer.error_message

    assert await altered(2) == (NONE, None)
    assert life.context.metadata.image.node_configs == {2: {"log.roll.ms": "60000"}}
    assert await altered(9) == (
        ErrorCode.INVALID_REQUEST,
        "Unexpected broker id, expected 1, but received 9",
    )
    await life.stop()


async def test_a_fetch_tells_who_leads_what_is_led_elsewhere() -> None:
    """KIP-951; a topic id that the image has is never unknown; the answer does not wait. In a session too."""
    life = await _three(Place())
    topic_id = UUID(life.context.metadata.topic("far").topic_id)

    def fetch(*indexes: int, **more: Any) -> FetchRequest:
        wanted = [FetchRequestPartition(partition=index, partition_max_bytes=1 << 20) for index in indexes]
        topics = [FetchRequestTopic(topic_id=topic_id, partitions=wanted)] if wanted else []
        return FetchRequest(topics=topics, max_wait_ms=10_000, min_bytes=1, **more)

    begun = life.clock.monotonic_s()
    first = await life.call(ApiKey.FETCH, fetch(0, 1, 2, 3, 4, session_epoch=0), 17)
    again = await life.call(ApiKey.FETCH, fetch(session_id=first.session_id, session_epoch=1), 17)
    assert life.clock.monotonic_s() - begun < 1.0
    for answer in (first, again):
        told = {p.partition_index: (p.error_code, p.current_leader) for p in answer.responses[0].partitions}
        if answer is first:
            assert told.pop(0) == (NONE, None)
        assert told == {
            1: (NOT_LEADER, FetchResponseLeaderIdAndEpoch(2, 5)),
            2: (NOT_LEADER, FetchResponseLeaderIdAndEpoch(2, 6)),
            3: (NOT_LEADER, FetchResponseLeaderIdAndEpoch(-1, 7)),
            4: (NOT_LEADER, FetchResponseLeaderIdAndEpoch(3, 0)),
        }
        assert answer.node_endpoints == [
            FetchResponseNodeEndpoint(2, "b2", 9092),
            FetchResponseNodeEndpoint(3, "b3", 9092),
        ]
    await life.stop()
