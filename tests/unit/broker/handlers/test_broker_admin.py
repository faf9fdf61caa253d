"""What administrators' tools ask: AlterConfigs, ListConfigResources, DescribeTopicPartitions, DescribeProducers.

Codes and texts are those Apache Kafka 4.3.1 answered to the same requests.
"""

from __future__ import annotations

from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.handlers.admin import producers as producers_handler
from broker.metadata.rebuilt import UNKNOWN_REPLICA, unknown_replica
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    CreateAclsRequest,
    CreateAclsRequestCreation,
    DeleteAclsRequest,
    DeleteAclsRequestFilter,
    DescribeAclsRequest,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    ListConfigResourcesRequest,
    ListPartitionReassignmentsRequest,
)
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import Life, Place, batch_of, produce_request

TOPIC, BROKER = 2, 4
Pairs = list[tuple[str, str | None]]


async def replaced(life: Life, *resources: tuple[int, str, Pairs], version: int = 2, dry: bool = False) -> list[Any]:
    """AlterConfigs; (code, text) of each resource."""
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsRequestResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterConfigsRequestConfig(name=key, value=value) for key, value in pairs],
            )
            for kind, name, pairs in resources
        ],
        validate_only=dry,
    )
    answer = await life.call(ApiKey.ALTER_CONFIGS, request, version)
    return [(found.error_code, found.error_message) for found in answer.responses]


async def altered(life: Life, *resources: tuple[int, str, list[tuple[str, int, str | None]]]) -> list[Any]:
    """IncrementalAlterConfigs; (code, text) of each resource."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequestConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in changes
                ],
            )
            for kind, name, changes in resources
        ]
    )
    answer = await life.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
    return [(found.error_code, found.error_message) for found in answer.responses]


# --- AlterConfigs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_alter_configs_replaces_all_that_was_set(version: int) -> None:
    """What is not named goes back to its default, and partitions follow at once; validate_only changes nothing."""
    life = await Place().start()
    await life.create("a", retention_ms="60000", max_message_bytes="5000")
    partition = life.partition("a")
    dry = (TOPIC, "a", [("max.message.bytes", "900")])
    assert await replaced(life, dry, version=version, dry=True) == [(0, None)]
    assert (partition.config.retention_ms, partition.config.max_message_bytes) == (60_000, 5_000)
    assert await replaced(life, (TOPIC, "a", [("max.message.bytes", "1000")]), version=version) == [(0, None)]
    assert (partition.config.retention_ms, partition.config.max_message_bytes) == (-1, 1_000)
    assert partition.config.remote_storage_enable  # a default that a topic is kept with
    assert await replaced(life, (TOPIC, "a", [])) == [(0, None)]
    assert partition.config.max_message_bytes == 1_048_588
    await life.stop()


UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'zz' does not exist.")
NULL = (ErrorCode.INVALID_REQUEST, "Null value not supported for : segment.bytes")
TWICE = (ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
NUMBER = (ErrorCode.INVALID_CONFIG, "Invalid value x for configuration segment.bytes: Not a number of type INT")
REFUSED = [
    (TOPIC, "zz", [("segment.bytes", "2000000")], UNKNOWN),
    (TOPIC, "a", [("nonsense", "2")], (ErrorCode.INVALID_CONFIG, "Unknown topic config name: nonsense")),
    (TOPIC, "a", [("segment.bytes", "x")], NUMBER),
    (TOPIC, "a", [("segment.bytes", None)], NULL),
    (TOPIC, "a", [("segment.bytes", "2000000"), ("segment.bytes", "2000001")], TWICE),
    (TOPIC, "", [], (ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")),
    (7, "a", [], (ErrorCode.INVALID_REQUEST, "Unknown resource type 7")),
    (0, "a", [], (ErrorCode.INVALID_REQUEST, "Unknown resource type 0")),
]


@pytest.mark.parametrize(("kind", "name", "pairs", "expected"), REFUSED)
async def test_configs_are_refused_in_kafkas_words(
    kind: int, name: str, pairs: Pairs, expected: tuple[int, str]
) -> None:
    """AlterConfigs and IncrementalAlterConfigs say the same, and nothing is changed."""
    life = await Place().start()
    await life.create("a", retention_ms="60000")
    assert await replaced(life, (kind, name, pairs)) == [expected]
    assert await altered(life, (kind, name, [(key, 0, value) for key, value in pairs])) == [expected]
    assert life.partition("a").config.retention_ms == 60_000
    await life.stop()


async def test_a_resource_named_twice_is_not_changed() -> None:
    """Kafka says so to both; its AlterConfigs then never answers, ours does."""
    life = await Place().start()
    await life.create("a")
    await life.create("b")
    twice = (ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    once = (TOPIC, "a", [("retention.ms", "1")])
    assert await replaced(life, once, once, (TOPIC, "b", [])) == [twice, twice, (0, None)]
    step = (TOPIC, "a", [("retention.ms", 0, "1")])
    assert await altered(life, step, step, (TOPIC, "b", [])) == [twice, twice, (0, None)]
    assert life.partition("a").config.retention_ms == -1
    await life.stop()


async def test_a_flood_of_resources_is_refused_in_one_answer() -> None:
    """Regression: each of 100 000 resources got an answer of its own, 1.2 s of the loop for a frame of 0.8 MB."""
    life = await Place().start()
    await life.create("a")
    flood = [(TOPIC, f"{at}", []) for at in range(1_001)]
    ((code, text),) = await replaced(life, (TOPIC, "a", [("retention.ms", "1")]), *flood)  # type: ignore[arg-type]
    assert code == ErrorCode.POLICY_VIOLATION
    assert "the request makes 1002 changes" in text
    assert len(await altered(life, (TOPIC, "a", [("retention.ms", 0, "1")]), *flood)) == 1
    assert life.partition("a").config.retention_ms == -1
    await life.stop()


async def test_deleting_a_config_nobody_knows_is_no_error() -> None:
    """As in Kafka: what is not set is not set afterwards either."""
    life = await Place().start()
    await life.create("a")
    assert await altered(life, (TOPIC, "a", [("nonsense", 1, None)])) == [(0, None)]
    await life.stop()


# --- ListConfigResources, DescribeConfigs ----------------------------------------------------------------------------


async def test_config_resources_are_topics_and_this_broker() -> None:
    """By kind; kinds without configs here are empty, unknown ones refused; version 0 asks for metrics only."""
    life = await Place().start()
    await life.create("b")
    await life.create("a")

    async def listed(*kinds: int, version: int = 1) -> Any:
        request = ListConfigResourcesRequest(resource_types=list(kinds))
        answer = await life.call(ApiKey.LIST_CONFIG_RESOURCES, request, version)
        return answer.error_code, [(found.resource_type, found.resource_name) for found in answer.config_resources]

    assert await listed() == (0, [(BROKER, "1"), (TOPIC, "a"), (TOPIC, "b")])
    assert await listed(TOPIC) == (0, [(TOPIC, "a"), (TOPIC, "b")])
    life.context.metadata.image.nodes[UNKNOWN_REPLICA] = unknown_replica(2)  # of a rebuilt cluster: no broker
    assert await listed(BROKER) == (0, [(BROKER, "1")])
    assert await listed(8, 16, 32) == (0, [])
    assert await listed(2, 7) == (ErrorCode.UNSUPPORTED_VERSION, [])
    assert await listed(version=0) == (0, [])
    await life.stop()


async def test_describe_configs_refuses_in_kafkas_words() -> None:
    """Another broker, a name that is no number, a name no topic can have."""
    life = await Place().start()

    async def described(kind: int, name: str) -> Any:
        resource = DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=None)
        answer = await life.call(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest(resources=[resource]))
        return answer.results[0].error_code, answer.results[0].error_message

    other = "Unexpected broker id, expected 1 or empty string, but received 2"
    assert await described(BROKER, "2") == (ErrorCode.INVALID_REQUEST, other)
    no_number = "Broker id must be an integer, but it is: x"
    assert await described(BROKER, "x") == (ErrorCode.INVALID_REQUEST, no_number)
    assert (await described(BROKER, "01"))[0] == 0
    assert (await described(TOPIC, "a/b"))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION
    await life.stop()


# --- DescribeTopicPartitions ----------------------------------------------------------------------------------------


async def paged(life: Life, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None) -> Any:
    """((name, code, partitions) of each topic, cursor) of one page."""
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequestTopic(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else DescribeTopicPartitionsRequestCursor(*cursor),
    )
    answer = await life.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, request)
    found = [(topic.name, topic.error_code, [p.partition_index for p in topic.partitions]) for topic in answer.topics]
    following = answer.next_cursor
    return found, None if following is None else (following.topic_name, following.partition_index)


MISSING, BAD = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION
PAGES: list[tuple[tuple[str, ...], int, tuple[str, int] | None, Any]] = [
    (("a",), 2000, None, ([("a", 0, [0, 1, 2])], None)),
    (("a", "a"), 2000, None, ([("a", 0, [0, 1, 2])], None)),
    (("b", "a"), 2000, None, ([("a", 0, [0, 1, 2]), ("b", 0, [0, 1, 2, 3, 4])], None)),
    (("zz", "bad/x", "a"), 2000, None, ([("a", 0, [0, 1, 2]), ("bad/x", BAD, []), ("zz", MISSING, [])], None)),
    (("a", "b"), 3, None, ([("a", 0, [0, 1, 2])], ("b", 0))),
    (("a", "zz"), 3, None, ([("a", 0, [0, 1, 2])], ("zz", 0))),
    (("a", "b"), 3, ("a", 2), ([("a", 0, [2]), ("b", 0, [0, 1])], ("b", 2))),
    (("a", "b"), 100, ("a", 3), ([("a", 0, []), ("b", 0, [0, 1, 2, 3, 4])], None)),
    (("a", "b"), 3, ("b", 9), ([("b", 0, [])], None)),
    (("a", "b"), 0, None, ([("a", 0, [0])], ("a", 1))),
    (("a", "b"), -1, None, ([("a", 0, [0])], ("a", 1))),
    ((), 4, None, ([("a", 0, [0, 1, 2]), ("b", 0, [0])], ("b", 1))),
    ((), 100, ("b", 2), ([("b", 0, [2, 3, 4])], None)),
    ((), 100, ("zz", 0), ([], None)),
    (("a", "b"), 3, ("aa", 2), ([("a", 42, []), ("b", 42, [])], None)),
    (("a", "b"), 100, ("a", -1), ([("a", 42, []), ("b", 42, [])], None)),
]


@pytest.mark.parametrize(("names", "limit", "cursor", "expected"), PAGES)
async def test_topic_partitions_come_in_pages(
    names: tuple[str, ...], limit: int, cursor: tuple[str, int] | None, expected: Any
) -> None:
    """Each case as Apache Kafka 4.3.1 answered it."""
    life = await Place().start()
    await life.create("a", 3)
    await life.create("b", 5)
    assert await paged(life, *names, limit=limit, cursor=cursor) == expected
    await life.stop()


async def test_pages_end_and_cover_everything_once() -> None:
    """Following the cursor gives every partition once, whatever the limit; unknown names take room too."""
    life = await Place().start()
    for at, count in enumerate((1, 4, 2, 3)):
        await life.create(f"t{at}", count)
    names = ("t3", "t0", "nope", "t2", "t1", "zz")
    whole, _ = await paged(life, *names)
    for limit in range(1, 13):
        met: dict[str, list[int]] = {}
        cursor, pages = None, 0
        while True:
            page, cursor = await paged(life, *names, limit=limit, cursor=cursor)
            assert sum(max(1, len(indexes)) for _, _, indexes in page) <= limit
            for name, _, indexes in page:
                met.setdefault(name, []).extend(indexes)
            pages += 1
            if cursor is None:
                break
        assert met == {name: indexes for name, _, indexes in whole}
        assert pages <= 12
    await life.stop()


async def test_a_flood_of_names_gets_one_page() -> None:
    """20 000 unknown names, the most a request may hold: the answer stays a page, with a cursor to the rest."""
    life = await Place().start()
    page, cursor = await paged(life, *(f"{at:06}" for at in range(20_000)))
    assert len(page) == 2_000
    assert cursor == ("002000", 0)
    await life.stop()


# --- DescribeProducers ----------------------------------------------------------------------------------------------


async def producers_of(life: Life, *wanted: tuple[str, list[int]]) -> Any:
    request = DescribeProducersRequest(
        topics=[DescribeProducersRequestTopic(name=name, partition_indexes=indexes) for name, indexes in wanted]
    )
    answer = await life.call(ApiKey.DESCRIBE_PRODUCERS, request)
    return [
        (topic.name, part.partition_index, part.error_code, part.error_message, part.active_producers)
        for topic in answer.topics
        for part in topic.partitions
    ]


async def test_producers_are_described() -> None:
    """Id, epoch, last sequence and when; unknown partitions and topics in Kafka's words; an idle partition is empty."""
    life = await Place().start()
    await life.create("a", 2)
    for sequence in (0, 2):
        batch = batch_of(b"x", b"y", producer_id=77, producer_epoch=3, base_sequence=sequence)
        await life.call(ApiKey.PRODUCE, produce_request("a", batch, index=1))
    found = await producers_of(life, ("a", [0, 1, 9]), ("zz", [0]), ("bad/x", [0]))
    assert [row[:4] for row in found] == [
        ("a", 0, 0, None),
        ("a", 1, 0, None),
        ("a", 9, MISSING, None),
        ("zz", 0, MISSING, "This server does not host this topic-partition."),
        ("bad/x", 0, BAD, found[4][3]),
    ]
    assert found[0][4] == []
    (known,) = found[1][4]
    assert (known.producer_id, known.producer_epoch, known.last_sequence) == (77, 3, 3)
    assert (known.coordinator_epoch, known.current_txn_start_offset) == (-1, -1)
    assert EPOCH_MS <= known.last_timestamp < EPOCH_MS + 60_000
    await life.stop()


async def test_more_producers_than_an_answer_carries_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a part of them as if it were all; the next partition still fits. A flood of partitions is refused whole."""
    monkeypatch.setattr(producers_handler, "PRODUCERS_MAX", 3)
    life = await Place().start()
    await life.create("a", 2)
    for producer_id in range(4):
        batch = batch_of(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=0)
        await life.call(ApiKey.PRODUCE, produce_request("a", batch, index=0))
    await life.call(
        ApiKey.PRODUCE,
        produce_request("a", batch_of(b"x", producer_id=9, producer_epoch=0, base_sequence=0), index=1),
    )
    many, few = await producers_of(life, ("a", [0, 1]))
    assert (many[2], many[4]) == (ErrorCode.POLICY_VIOLATION, [])
    assert "a-0 remembers 4 producers" in many[3]
    assert (few[2], [found.producer_id for found in few[4]]) == (0, [9])
    (flood,) = await producers_of(life, ("a", list(range(10_001))))
    assert flood[2] == ErrorCode.POLICY_VIOLATION
    await life.stop()


# --- elections, reassignments, ACLs -----------------------------------------------------------------------------------


async def test_nothing_needs_an_election_or_moves() -> None:
    """Codes and texts for partitions with one replica; all (null) names topics only; offline partitions say so."""
    life = await Place().start()
    await life.create("b")
    await life.create("a", 2)

    async def elect(wanted: dict[str, list[int]] | None, kind: int = 0, version: int = 2) -> Any:
        topics = None
        if wanted is not None:
            topics = [ElectLeadersRequestTopic(topic=name, partitions=indexes) for name, indexes in wanted.items()]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=topics)
        answer = await life.call(ApiKey.ELECT_LEADERS, request, version)
        return answer.error_code, [
            (topic.topic, [(p.partition_id, p.error_code, p.error_message) for p in topic.partition_result])
            for topic in answer.replica_election_results
        ]

    not_needed = "Leader election not needed for topic partition."
    assert await elect(None) == await elect(None, version=0) == (0, [("a", []), ("b", [])])
    assert await elect(None, 2) == (ErrorCode.INVALID_REQUEST, [])
    assert await elect({"a": [0, 9], "zz": [0]}, 1) == (
        0,
        [
            ("a", [(0, ErrorCode.ELECTION_NOT_NEEDED, not_needed), (9, MISSING, "No such partition as a-9")]),
            ("zz", [(0, MISSING, "No such topic as zz")]),
        ],
    )
    unknown = (ErrorCode.INVALID_REQUEST, "Unknown election type 2")
    assert await elect({"a": [0]}, 2) == (ErrorCode.INVALID_REQUEST, [("a", [(0, *unknown)])])
    assert await elect({"a": list(range(10_001))}) == (ErrorCode.POLICY_VIOLATION, [])
    del life.context.registry.partitions["a", 1]
    for kind, code in enumerate((ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)):
        ((_, ((_, found, _),)),) = (await elect({"a": [1]}, kind))[1]
        assert found == code
    moving = await life.call(ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest())
    assert (moving.error_code, moving.topics) == (0, [])
    await life.stop()


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_there_is_no_authorizer_and_it_is_said(version: int) -> None:
    """SECURITY_DISABLED, as Kafka without one; to each of very many, none left out."""
    life = await Place().start()
    answer = await life.call(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(), version)
    disabled = ErrorCode.SECURITY_DISABLED
    assert (answer.error_code, answer.error_message) == (disabled, "No Authorizer is configured on the broker")
    request: Any = CreateAclsRequest(creations=[CreateAclsRequestCreation()] * 2)
    made = (await life.call(ApiKey.CREATE_ACLS, request, version)).results
    assert [(found.error_code, found.error_message) for found in made] == [
        (disabled, "No Authorizer is configured.")
    ] * 2
    request = DeleteAclsRequest(filters=[DeleteAclsRequestFilter()] * 12_000)
    gone = (await life.call(ApiKey.DELETE_ACLS, request, version)).filter_results
    assert [found.error_code for found in gone] == [disabled] * 12_000
    await life.stop()
