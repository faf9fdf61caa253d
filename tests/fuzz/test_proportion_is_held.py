"""The property sees what it was made for: each defect that was found by hand, planted again, breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from broker.context import Call, Context
from broker.dispatcher import HANDLERS
from broker.handlers.metadata.metadata import handle_metadata
from broker.wire.apis import ApiKey
from broker.wire.codec import decode_response
from broker.wire.message import Message
from broker.wire.messages import (
    ElectLeadersResponse,
    ElectLeadersResponsePartition,
    ElectLeadersResponseTopic,
    ListOffsetsResponse,
    MetadataResponse,
)
from seams.loop.turns import Turns
from tests.fuzz.targets import answers_in_proportion
from tests.support.wire.hostile_frames import Inner, Names, Recipe


@pytest.fixture(autouse=True)
def another_place() -> Iterator[None]:
    """A broker of its own, that nobody uses afterwards."""
    answers_in_proportion.close()
    yield
    answers_in_proportion.close()


def ask(key: ApiKey, version: int, path: int, names: Names, share: int = 255) -> None:
    answers_in_proportion.run(answers_in_proportion.packed(Recipe(int(key), version, path, names, Inner.ONE, share)))


def test_an_answer_to_every_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata as it was: the same 400 partitions, 600 times as objects."""

    async def every(context: Context, request: Any, call: Call) -> Message:
        body = memoryview((await handle_metadata(context, request, call)).body)
        shown: list[Any] = [decode_response(ApiKey.METADATA, call.version, body) for _ in range(600)]
        return MetadataResponse(topics=[topic for one in shown for topic in one.topics])

    monkeypatch.setitem(HANDLERS, ApiKey.METADATA, every)
    with pytest.raises(AssertionError, match="MetadataRequest v12 topics SAME"):
        ask(ApiKey.METADATA, 12, 0, Names.SAME, share=4)


def test_a_search_of_every_row_among_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """ListOffsets as it was: one call in C a row, each as long as the request."""

    async def searched(context: Context, request: Any, call: Call) -> Message:
        for topic in request.topics:
            indexes = [row.partition_index for row in topic.partitions]
            assert all(indexes.count(row.partition_index) for row in topic.partitions)
        return ListOffsetsResponse()

    monkeypatch.setitem(HANDLERS, ApiKey.LIST_OFFSETS, searched)
    with pytest.raises(AssertionError, match=r"ListOffsetsRequest v10 topics.partitions UNKNOWN ONE 255: \d"):
        ask(ApiKey.LIST_OFFSETS, 10, 1, Names.UNKNOWN)


def test_a_long_list_without_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """FindCoordinator over 40 000 groups that never lets others in."""
    monkeypatch.setattr(Turns, "over", lambda self, rows=1: False)
    with pytest.raises(AssertionError, match="calls in one step"):
        ask(ApiKey.FIND_COORDINATOR, 4, 0, Names.UNKNOWN)


def test_a_long_name_in_the_message_of_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """ElectLeaders as it was."""

    async def named(context: Context, request: Any, call: Call) -> Message:
        (topic,) = request.topic_partitions
        rows = [
            ElectLeadersResponsePartition(index, 3, f"No such topic as {topic.topic}")
            for index in topic.partitions[:3_000]
        ]
        return ElectLeadersResponse(replica_election_results=[ElectLeadersResponseTopic(topic.topic, rows)])

    monkeypatch.setitem(HANDLERS, ApiKey.ELECT_LEADERS, named)
    with pytest.raises(AssertionError, match=r"ElectLeadersRequest v2 topic_partitions.partitions LONG ONE 255: \d"):
        ask(ApiKey.ELECT_LEADERS, 2, 1, Names.LONG)
