"""What CreateTopics and CreatePartitions refuse, in the words Apache Kafka 4.3.1 answered to the same requests."""

from __future__ import annotations

from typing import Any

import pytest

from broker.error_codes import ErrorCode
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestTopic,
)
from tests.support.brokers.broker_kit import Place

EMPTY = "The manual partition assignment includes an empty replica list."
TWICE = "The manual partition assignment includes the broker 1 more than once."
STRANGER = "The manual partition assignment includes broker 7, but no such broker is registered."
SEQUENCE = "partitions should be a consecutive 0-based integer sequence"
GIVEN = "A manual partition assignment was specified, but replication factor was not set to -1."
POSITIVE = "Number of partitions was set to an invalid non-positive value."
FACTOR = "Replication factor must be larger than 0, or -1 to use the default value."
BROKERS = (
    "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because only 1 "
    "broker(s) are registered or some brokers have all their log directories cordoned."
)
ASSIGNMENT, REQUEST = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REQUEST
PARTITIONS, REPLICATION = ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_REPLICATION_FACTOR
Assigned = list[tuple[int, list[int]]]

NEW: list[tuple[str, int, int, Assigned, ErrorCode, str]] = [
    ("a", 1, -1, [], ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists."),
    ("b_c", 1, -1, [], ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic 'b_c' collides with existing topic: b.c"),
    ("x", 0, -1, [], PARTITIONS, POSITIVE),
    ("x", -2, -1, [], PARTITIONS, POSITIVE),
    ("x", 1, 0, [], REPLICATION, FACTOR),
    ("x", 1, -2, [], REPLICATION, FACTOR),
    ("x", 0, 0, [], REPLICATION, FACTOR),
    ("x", 0, 3, [], PARTITIONS, POSITIVE),
    ("a", 0, 0, [], ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists."),
    ("x", 1, 3, [], REPLICATION, BROKERS),
    ("a", 1, 3, [], ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists."),
    ("x", 1, 1, [(0, [1])], REQUEST, GIVEN),
    ("x", -1, -1, [(1, [1])], ASSIGNMENT, SEQUENCE),
    ("x", -1, -1, [(0, [1]), (2, [1])], ASSIGNMENT, SEQUENCE),
    ("x", -1, -1, [(0, [])], ASSIGNMENT, EMPTY),
    ("x", -1, -1, [(0, [1, 1])], ASSIGNMENT, TWICE),
    ("x", -1, -1, [(0, [7])], ASSIGNMENT, STRANGER),
    ("x", -1, -1, [(0, [1]), (1, [7, 1])], ASSIGNMENT, STRANGER),
    ("x", -1, -1, [(0, [1])] * 2, ASSIGNMENT, "Found multiple manual partition assignments for partition 0"),
]


@pytest.mark.parametrize(("name", "partitions", "replicas", "assigned", "code", "text"), NEW)
async def test_new_topics(
    name: str, partitions: int, replicas: int, assigned: Assigned, code: ErrorCode, text: str
) -> None:
    """Each rule of Kafka's, and nothing is made."""
    life = await Place().start()
    await life.create("a")
    await life.create("b.c")
    assignments = [CreateTopicsRequestAssignment(index, brokers) for index, brokers in assigned]
    wanted = CreateTopicsRequestTopic(name, partitions, replicas, assignments)
    answer: Any = await life.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[wanted], timeout_ms=5000))
    assert (answer.topics[0].error_code, answer.topics[0].error_message) == (code, text)
    assert {topic.name for topic in life.context.metadata.image.topics.values()} == {"a", "b.c"}
    await life.stop()


def attempted(added: int, given: int) -> str:
    return f"Attempted to add {added} additional partition(s), but only {given} assignment(s) were specified."


GROWN: list[tuple[int, list[list[int]] | None, ErrorCode, str | None]] = [
    (5, None, PARTITIONS, "Topic already has 5 partition(s)."),
    (2, None, PARTITIONS, "The topic a currently has 5 partition(s); 2 would not be an increase."),
    (-1, None, PARTITIONS, "The topic a currently has 5 partition(s); -1 would not be an increase."),
    (6, [[1], [1]], ASSIGNMENT, attempted(1, 2)),
    (6, [], ASSIGNMENT, attempted(1, 0)),
    (6, [[7]], ASSIGNMENT, STRANGER),
    (6, [[1, 1]], ASSIGNMENT, TWICE),
    (6, [[]], ASSIGNMENT, EMPTY),
    (7, [[1], [7]], ASSIGNMENT, STRANGER),
    (6, [[1]], ErrorCode.NONE, None),
]


@pytest.mark.parametrize(("count", "assigned", "code", "text"), GROWN)
async def test_more_partitions(count: int, assigned: list[list[int]] | None, code: ErrorCode, text: str | None) -> None:
    """As above, of a topic with five."""
    life = await Place().start()
    await life.create("a", 5)
    added = None if assigned is None else [CreatePartitionsRequestAssignment(brokers) for brokers in assigned]
    wanted = CreatePartitionsRequestTopic("a", count, added)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=5000)
    (answer,) = (await life.call(ApiKey.CREATE_PARTITIONS, request)).results
    assert (answer.error_code, answer.error_message) == (code, text)
    await life.stop()
