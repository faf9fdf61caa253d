"""DeleteTopics by id (KIP-516): the topic of that id goes, never a later one that took its name."""

from __future__ import annotations

import asyncio
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    ZERO_UUID,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
)
from tests.support.brokers.broker_kit import Life, Place
from tests.support.store.faulty_store import FaultPlan


async def _delete(life: Life, peer: int, *, name: str | None = None, topic_id: UUID | None = None) -> int:
    wanted = DeleteTopicsRequestTopic(name=name) if topic_id is None else DeleteTopicsRequestTopic(None, topic_id)
    request = DeleteTopicsRequest(topics=[wanted], timeout_ms=60_000)
    answer = await life.call(ApiKey.DELETE_TOPICS, request, peer=Peer(peer, f"127.0.0.1:{peer}", "PLAINTEXT"))
    return int(answer.responses[0].error_code)


async def _create(life: Life, peer: int, name: str) -> int:
    topic = CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    answer = await life.call(ApiKey.CREATE_TOPICS, request, peer=Peer(peer, f"127.0.0.1:{peer}", "PLAINTEXT"))
    return int(answer.topics[0].error_code)


async def test_a_topic_made_again_while_the_deletion_waits_for_its_turn_stays() -> None:
    """The id was looked up before the deletion waited for earlier changes, and its name deleted after them."""
    place = Place()
    life = await place.start()
    old = await life.create("log")
    place.store.plan = FaultPlan(latency_s=(1.0, 1.0))  # the first change holds up those behind it
    outcomes = await asyncio.gather(
        _delete(life, 1, name="log"), _create(life, 2, "log"), _delete(life, 3, topic_id=old)
    )
    assert outcomes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]
    made_again = life.context.metadata.image.topic_named("log")
    assert made_again is not None and UUID(made_again.topic_id) != old
    assert (await life.produce("log", b"x")).error_code == ErrorCode.NONE
    assert await _delete(life, 4, topic_id=UUID(made_again.topic_id)) == ErrorCode.NONE
    assert life.context.metadata.image.topic_named("log") is None
    await life.stop()


async def test_what_is_named_by_name_and_by_id_is_not_deleted() -> None:
    """Codes and words of Apache Kafka 4.3.1. A topic with both a name and an id was deleted by its name."""
    life = await Place().start()
    ids = {name: await life.create(name) for name in ("a", "b", "c")}

    async def ask(*named: tuple[str | None, UUID]) -> list[tuple[str | None, UUID, int, str | None]]:
        topics = [DeleteTopicsRequestTopic(name=name, topic_id=topic_id) for name, topic_id in named]
        answer = await life.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=topics, timeout_ms=5000))
        return [(row.name, row.topic_id, row.error_code, row.error_message) for row in answer.responses]

    refused = int(ErrorCode.INVALID_REQUEST)
    both = "You may not specify both topic name and topic id."
    assert await ask(("a", ids["a"])) == [("a", ids["a"], refused, both)]
    assert await ask(("a", UUID(int=7))) == [("a", UUID(int=7), refused, both)]
    neither = "Neither topic name nor id were specified."
    assert await ask((None, ZERO_UUID)) == [(None, ZERO_UUID, refused, neither)]
    supplied = "The provided topic name maps to an ID that was already supplied."
    for twice in ([("b", ZERO_UUID), (None, ids["b"])], [(None, ids["b"]), ("b", ZERO_UUID)]):
        assert await ask(*twice) == [("b", ids["b"], refused, supplied)]
    assert await ask((None, ids["c"]), (None, ids["c"])) == [(None, ids["c"], refused, "Duplicate topic id.")]
    assert await ask(("c", ZERO_UUID), ("c", ZERO_UUID)) == [("c", ZERO_UUID, refused, "Duplicate topic name.")]
    assert sorted(life.context.registry.topics) == ["a", "b", "c"]
    await life.stop()
