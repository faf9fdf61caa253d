"""What a client may not see has no name, and nothing is done in part where Kafka does all or nothing."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.following.metadata_cache import TopicNames
from broker.metadata.records import Acl
from broker.net.dispatch import Peer
from broker.security.authorizer.kinds import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from broker.wire import messages as wire
from broker.wire.apis import ApiKey
from tests.support.brokers.broker_kit import Life, Place

STANDARD = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def alice() -> Peer:
    """Of one broker: a peer remembers what it may do there."""
    return Peer(1, "10.0.0.1:1", "PLAINTEXT", principal="User:alice")


def acl(operation: Operation, name: str, kind: ResourceType = ResourceType.TOPIC) -> Acl:
    return Acl(kind, name, PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW)


async def guarded(*acls: Acl) -> tuple[Life, dict[str, UUID]]:
    life = await Place().start(STANDARD)
    ids = {topic: await life.create(topic) for topic in ("a", "b")}
    await life.context.controller.create_acls(acls)
    return life, ids


async def test_metadata_by_id_names_no_topic_that_is_hidden() -> None:
    """As Kafka: the id is no secret, the name is."""
    life, ids = await guarded(acl(Operation.DESCRIBE, "a"))
    wanted = [wire.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in ids.values()]
    answer = await life.call(ApiKey.METADATA, wire.MetadataRequest(topics=wanted), 12, alice())
    assert {topic.topic_id: (topic.name, topic.error_code) for topic in answer.topics} == {
        ids["a"]: ("a", 0),
        ids["b"]: (None, DENIED),
    }
    await life.stop()


@pytest.mark.parametrize(
    ("rights", "name", "code"),
    [((), None, DENIED), ((Operation.DESCRIBE,), "a", DENIED), ((Operation.DELETE,), "a", ErrorCode.NONE)],
)
async def test_a_deletion_by_id_names_only_what_may_be_described(
    rights: tuple[Operation, ...], name: str | None, code: ErrorCode
) -> None:
    life, ids = await guarded(*(acl(operation, "a") for operation in rights))
    wanted = [wire.DeleteTopicsRequestTopic(topic_id=topic_id) for topic_id in (ids["a"], UUID(int=7))]
    answer = await life.call(ApiKey.DELETE_TOPICS, wire.DeleteTopicsRequest(topics=wanted, timeout_ms=5000), 6, alice())
    assert {row.topic_id: (row.name, row.error_code) for row in answer.responses} == {
        ids["a"]: (name, code),
        UUID(int=7): (None, ErrorCode.UNKNOWN_TOPIC_ID),
    }
    await life.stop()


class _Late(TopicNames):
    """The image takes in one topic right after its id was looked up for the first time."""

    def __init__(self, life: Life, late: UUID) -> None:
        super().__init__(life.context.metadata.image.topics)
        self._late: UUID | None = late

    def get(self, topic_id: UUID) -> str | None:
        if topic_id == self._late:
            self._late = None
            return None
        return super().get(topic_id)


async def test_a_topic_that_becomes_known_after_the_rule_is_not_deleted_without_right() -> None:
    """The rule finds no topic of the id; the handler reads a later image, in which the topic is."""
    life, ids = await guarded(acl(Operation.DELETE, "a"))
    life.context.metadata.names = _Late(life, ids["b"])
    wanted = [wire.DeleteTopicsRequestTopic(topic_id=topic_id) for topic_id in (ids["a"], ids["b"])]
    answer = await life.call(ApiKey.DELETE_TOPICS, wire.DeleteTopicsRequest(topics=wanted, timeout_ms=5000), 6, alice())
    assert {row.topic_id: (row.name, row.error_code) for row in answer.responses} == {
        ids["a"]: ("a", ErrorCode.NONE),
        ids["b"]: (None, ErrorCode.UNKNOWN_TOPIC_ID),
    }
    assert life.context.metadata.image.topic_named("b") is not None
    await life.stop()


async def test_a_topic_that_becomes_known_after_the_check_is_not_shown_without_right() -> None:
    life, ids = await guarded(acl(Operation.DESCRIBE, "a"))
    life.context.metadata.names = _Late(life, ids["b"])
    wanted = [wire.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in ids.values()]
    answer = await life.call(ApiKey.METADATA, wire.MetadataRequest(topics=wanted), 12, alice())
    assert {topic.topic_id: (topic.name, topic.error_code) for topic in answer.topics} == {
        ids["a"]: ("a", 0),
        ids["b"]: (None, ErrorCode.UNKNOWN_TOPIC_ID),
    }
    await life.stop()


async def test_offsets_of_a_topic_that_becomes_known_after_the_rule_stay_closed() -> None:
    """OffsetCommit and OffsetFetch by id: neither writes nor shows an offset without a right to the topic."""
    life, ids = await guarded(acl(Operation.READ, "g", ResourceType.GROUP), acl(Operation.READ, "a"))
    found = await life.call(ApiKey.FIND_COORDINATOR, wire.FindCoordinatorRequest(key="g"), 1, alice())
    assert found.error_code == 0
    commit = wire.OffsetCommitRequest(
        group_id="g",
        topics=[
            wire.OffsetCommitRequestTopic(topic_id=one, partitions=[wire.OffsetCommitRequestPartition(0, 6, -1, "")])
            for one in ids.values()
        ],
    )
    expected = {ids["a"]: ErrorCode.NONE, ids["b"]: ErrorCode.UNKNOWN_TOPIC_ID}
    life.context.metadata.names = _Late(life, ids["b"])
    told = (await life.call(ApiKey.OFFSET_COMMIT, commit, 10, alice())).topics
    assert {row.topic_id: row.partitions[0].error_code for row in told} == expected
    asked = [wire.OffsetFetchRequestGroupTopic(topic_id=one, partition_indexes=[0]) for one in ids.values()]
    fetch = wire.OffsetFetchRequest(groups=[wire.OffsetFetchRequestGroup("g", topics=asked)])
    life.context.metadata.names = _Late(life, ids["b"])
    rows = (await life.call(ApiKey.OFFSET_FETCH, fetch, 10, alice())).groups[0].topics
    assert {row.topic_id: row.partitions[0].error_code for row in rows} == expected
    await life.stop()


async def test_an_invalid_second_row_does_not_spare_a_deletion_its_acl() -> None:
    """The handler refuses the row with name and id, so the other row is the only one for its topic."""
    life, _ = await guarded(acl(Operation.DESCRIBE, "b"))
    rows = [
        wire.DeleteTopicsRequestTopic(name=name, topic_id=topic_id)
        for name in ("a", "b")
        for topic_id in (wire.ZERO_UUID, UUID(int=7))
    ]
    answer = await life.call(ApiKey.DELETE_TOPICS, wire.DeleteTopicsRequest(topics=rows, timeout_ms=5000), 6, alice())
    assert {(row.name, row.topic_id): row.error_code for row in answer.responses} == {
        (name, topic_id): DENIED if topic_id == wire.ZERO_UUID else ErrorCode.INVALID_REQUEST
        for name in ("a", "b")
        for topic_id in (wire.ZERO_UUID, UUID(int=7))
    }
    assert {topic.name for topic in life.context.metadata.image.topics.values()} >= {"a", "b"}
    await life.stop()


async def test_a_client_on_the_brokers_listener_makes_no_internal_topic() -> None:
    """There, too, a client may create topics, and is no broker without ClusterAction."""
    life, _ = await guarded(acl(Operation.CREATE, CLUSTER_NAME, ResourceType.CLUSTER))
    peer = Peer(1, "10.0.0.1:1", life.context.config.brokers_listener, principal="User:alice")
    name = "__consumer_offsets"
    wanted = [wire.CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1)]
    answer = await life.call(ApiKey.CREATE_TOPICS, wire.CreateTopicsRequest(topics=wanted, timeout_ms=5000), 5, peer)
    assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert life.context.metadata.topic_named(name) is None
    await life.stop()


async def test_a_group_shows_the_offsets_of_visible_topics_only() -> None:
    """Of all topics, by name and by id."""
    life, ids = await guarded(
        acl(Operation.READ, "g", ResourceType.GROUP), acl(Operation.READ, "a"), acl(Operation.READ, "b")
    )
    commit = wire.OffsetCommitRequest(
        group_id="g",
        topics=[
            wire.OffsetCommitRequestTopic(name=topic, partitions=[wire.OffsetCommitRequestPartition(0, 5, -1, "")])
            for topic in ids
        ],
    )
    found = await life.call(ApiKey.FIND_COORDINATOR, wire.FindCoordinatorRequest(key="g"), 1, alice())
    assert found.error_code == 0
    assert {row.name: row.partitions[0].error_code for row in (await life.call(8, commit, 9, alice())).topics} == {
        "a": 0,
        "b": 0,
    }
    from broker.security.authorizer.acl_filter import AclFilter

    await life.context.controller.delete_acls([AclFilter(2, "b", PatternType.LITERAL)])
    every = wire.OffsetFetchRequest(groups=[wire.OffsetFetchRequestGroup("g", topics=None)])
    by_name = await life.call(ApiKey.OFFSET_FETCH, every, 9, alice())
    assert [topic.name for topic in by_name.groups[0].topics] == ["a"]
    by_id = await life.call(ApiKey.OFFSET_FETCH, every, 10, alice())
    assert [topic.topic_id for topic in by_id.groups[0].topics] == [ids["a"]]
    named = wire.OffsetFetchRequest(
        groups=[
            wire.OffsetFetchRequestGroup(
                "g",
                topics=[wire.OffsetFetchRequestGroupTopic(topic_id=one, partition_indexes=[0]) for one in ids.values()],
            )
        ]
    )
    rows = (await life.call(ApiKey.OFFSET_FETCH, named, 10, alice())).groups[0].topics
    assert {row.topic_id: row.partitions[0].error_code for row in rows} == {ids["a"]: 0, ids["b"]: DENIED}
    commit.topics = [
        wire.OffsetCommitRequestTopic(topic_id=one, partitions=[wire.OffsetCommitRequestPartition(0, 6, -1, "")])
        for one in (*ids.values(), UUID(int=9))
    ]
    told = (await life.call(ApiKey.OFFSET_COMMIT, commit, 10, alice())).topics
    assert {row.topic_id: row.partitions[0].error_code for row in told} == {
        ids["a"]: 0,
        ids["b"]: DENIED,
        UUID(int=9): ErrorCode.UNKNOWN_TOPIC_ID,
    }
    await life.stop()


async def test_one_refused_topic_adds_none_to_a_transaction() -> None:
    life, _ = await guarded(acl(Operation.WRITE, "t", ResourceType.TRANSACTIONAL_ID), acl(Operation.WRITE, "a"))
    found = await life.call(ApiKey.FIND_COORDINATOR, wire.FindCoordinatorRequest(key="t", key_type=1), 1, alice())
    assert found.error_code == 0
    started = await life.call(
        ApiKey.INIT_PRODUCER_ID,
        wire.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000),
        4,
        alice(),
    )
    assert started.error_code == 0
    request = wire.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=started.producer_id,
        v3_and_below_producer_epoch=started.producer_epoch,
        v3_and_below_topics=[wire.AddPartitionsToTxnRequestTopic(name, [0, 9]) for name in ("a", "b")],
    )
    answer = await life.call(ApiKey.ADD_PARTITIONS_TO_TXN, request, 3, alice())
    assert {
        (topic.name, row.partition_index): row.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    } == {
        ("a", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        ("a", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("b", 0): DENIED,
        ("b", 9): DENIED,
    }
    shown = await life.call(
        ApiKey.DESCRIBE_TRANSACTIONS, wire.DescribeTransactionsRequest(transactional_ids=["t"]), 0, alice()
    )
    assert shown.transaction_states[0].transaction_state == "Empty" and not shown.transaction_states[0].topics
    await life.stop()


async def test_authorized_operations_are_the_clients_own() -> None:
    """KIP-430, in DescribeCluster and DescribeGroups; without DESCRIBE on the cluster none is shown."""
    life, _ = await guarded(acl(Operation.READ, "g", ResourceType.GROUP))
    asked = wire.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (await life.call(ApiKey.DESCRIBE_CLUSTER, asked, 1, alice())).cluster_authorized_operations == 0
    await life.context.controller.create_acls([acl(Operation.ALTER, CLUSTER_NAME, ResourceType.CLUSTER)])
    shown = await life.call(ApiKey.DESCRIBE_CLUSTER, asked, 1, alice())
    assert shown.cluster_authorized_operations == 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    await life.call(ApiKey.FIND_COORDINATOR, wire.FindCoordinatorRequest(key="g"), 1, alice())
    request = wire.DescribeGroupsRequest(groups=["g", "h"], include_authorized_operations=True)
    groups = (await life.call(ApiKey.DESCRIBE_GROUPS, request, 5, alice())).groups
    assert {group.group_id: group.error_code for group in groups} == {
        "g": 0,
        "h": ErrorCode.GROUP_AUTHORIZATION_FAILED,
    }
    (own,) = (group for group in groups if group.group_id == "g")
    assert own.authorized_operations == 1 << Operation.READ | 1 << Operation.DESCRIBE
    await life.stop()


async def test_a_topic_that_is_being_created_is_not_deleted_by_a_reader() -> None:
    """The image has no topic of the name when the rule runs. The controller has one when it decides the deletion."""
    life, _ = await guarded(acl(Operation.DESCRIBE, "new"))
    creation = asyncio.ensure_future(life.context.controller.create_topic("new", 1, {}, replication_factor=1))
    await asyncio.sleep(0)
    assert life.context.metadata.topic_named("new") is None
    deletion = wire.DeleteTopicsRequest(topic_names=["new"], timeout_ms=5000)
    answer = await life.call(ApiKey.DELETE_TOPICS, deletion, 5, alice())
    await creation
    assert [row.error_code for row in answer.responses] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert life.context.metadata.topic_named("new") is not None
    await life.stop()


async def test_a_deletion_with_duplicates_does_not_tell_whose_id_it_names() -> None:
    """The rule leaves duplicates to the handler, so the handler's rows must not depend on hidden topics."""
    life, ids = await guarded()
    answered = []
    for topic_id in (ids["a"], UUID(int=7)):
        named = [wire.DeleteTopicsRequestTopic(name="a")] * 2
        rows = [*named, *[wire.DeleteTopicsRequestTopic(topic_id=topic_id)] * 2]
        request = wire.DeleteTopicsRequest(topics=rows, timeout_ms=5000)
        answer = await life.call(ApiKey.DELETE_TOPICS, request, 6, alice())
        answered.append([(row.name, row.error_code, row.error_message) for row in answer.responses])
    assert answered[0] == answered[1]
    await life.stop()


async def test_a_client_does_not_ask_whether_a_transaction_has_a_partition_of_a_topic() -> None:
    """A broker asks by the topic's id. To a client, DescribeTransactions shows only topics that it may describe."""
    txn, bob = ResourceType.TRANSACTIONAL_ID, Peer(2, "10.0.0.2:1", "PLAINTEXT", principal="User:bob")
    life, ids = await guarded(
        acl(Operation.DESCRIBE, "t", txn),
        replace(acl(Operation.WRITE, "t", txn), principal="User:bob"),
        replace(acl(Operation.WRITE, "b"), principal="User:bob"),
    )
    found = await life.call(ApiKey.FIND_COORDINATOR, wire.FindCoordinatorRequest(key="t", key_type=1), 1, bob)
    assert found.error_code == 0
    init = wire.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
    begun = await life.call(ApiKey.INIT_PRODUCER_ID, init, 4, bob)
    adding = wire.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=begun.producer_id,
        v3_and_below_producer_epoch=begun.producer_epoch,
        v3_and_below_topics=[wire.AddPartitionsToTxnRequestTopic(name="b", partitions=[0])],
    )
    added = await life.call(ApiKey.ADD_PARTITIONS_TO_TXN, adding, 3, bob)
    assert added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    request = wire.ListTransactionsRequest(partition_topic_id=ids["b"], partition_index=0)
    answer = await life.call(ApiKey.LIST_TRANSACTIONS, request, 2, alice())
    assert [(row.transactional_id, row.has_partition) for row in answer.transaction_states] == [("t", False)]
    await life.stop()
