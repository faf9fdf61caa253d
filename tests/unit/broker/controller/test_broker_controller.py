"""Topics, partitions and producer ids as committed facts: over lost answers, impatient clients, restarts, crashes."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.records import TopicCreated, TopicDeleted
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    InitProducerIdRequest,
)
from coldstore.stores.operations import Operation
from logformat.errors import Retryable
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place, batch_of, produce_request
from tests.support.brokers.cluster_kit import cluster_root, row
from tests.support.store.faulty_store import Fault, FaultPlan


async def new_producer_id(life: Life) -> int:
    answer = await life.call(
        ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    )
    assert answer.error_code == 0
    return int(answer.producer_id)


def names(life: Life) -> list[str]:
    return sorted(topic.name for topic in life.context.metadata.image.topics.values())


async def test_a_topic_created_again_under_its_name_is_another_one() -> None:
    """Another id, an empty log, offsets from 0, and the old topic's objects go, only those."""
    place = Place()
    life = await place.start()
    first = await life.create("log", **SMALL_SEGMENTS)
    for at in range(40):
        await life.produce("log", b"old %d" % at * 20)
    await asyncio.sleep(30)
    assert any(str(first) in key and key.endswith(".log") for key in place.memory.objects)
    await life.context.controller.delete_topic("log")
    assert "log" not in life.context.registry.topics
    second = await life.create("log")
    assert second != first
    assert (await life.produce("log", b"new")).base_offset == 0
    assert await life.read_all("log") == [(0, b"new")]
    await asyncio.sleep(120)
    assert not any(str(first) in key for key in place.memory.objects)
    assert any(str(second) in key for key in place.memory.objects)
    assert not life.context.metadata.image.deleted
    await life.stop()
    life = await place.start()
    assert await life.read_all("log") == [(0, b"new")]
    await life.stop()


async def test_design_c09_recreated_while_the_old_directory_is_still_there() -> None:
    """A crash between the new topic's commit and the old one's removal: the next start serves the new one, empty."""
    place = Place()
    life = await place.start()
    first = await life.create("log")
    await life.produce("log", b"old")
    await life.crash()
    second = UUID(int=99)
    # What a controller committed before it died, without any of its local effects.
    cluster = cluster_root(place.store, 5)
    assert await cluster.load() is not None
    assert cluster.known is not None
    cluster.epoch = cluster.known.epoch
    await cluster.commit([TopicDeleted(str(first)), TopicCreated(str(second), "log", (row(),), {})])
    async with asyncio.timeout(120):
        life = await place.start()
    assert life.partition("log").topic_id == second
    assert await life.read_all("log") == []
    assert (await life.produce("log", b"new")).base_offset == 0
    await asyncio.sleep(60)
    assert not life.context.metadata.image.deleted
    await life.stop()


async def test_names_are_checked_against_what_exists() -> None:
    """No second topic of a name, none whose name differs in '.' and '_' only, none outside Kafka's rules."""
    life = await Place().start()
    await life.create("a.b")
    for name, code in (("a.b", ErrorCode.TOPIC_ALREADY_EXISTS), ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION)):
        with pytest.raises(ApiError) as refused:
            await life.create(name)
        assert refused.value.code is code
    for count, code in ((0, ErrorCode.INVALID_PARTITIONS), (10_001, ErrorCode.INVALID_PARTITIONS)):
        with pytest.raises(ApiError) as refused:
            await life.create("c", count)
        assert refused.value.code is code
    assert names(life) == ["a.b"]
    await life.stop()


async def test_partitions_are_added_and_keep_their_number() -> None:
    """A topic grows, never shrinks; the old partitions keep their records, over a restart too."""
    place = Place()
    life = await place.start()
    await life.create("log", 1)
    await life.produce("log", b"a")
    await life.context.controller.add_partitions("log", 3)
    assert (await life.produce("log", b"b", index=2)).error_code == 0
    for count in (3, 2, 10_001):
        with pytest.raises(ApiError) as refused:
            await life.context.controller.add_partitions("log", count)
        assert refused.value.code is ErrorCode.INVALID_PARTITIONS
    await life.stop()
    life = await place.start()
    assert sorted(life.context.registry.partitions) == [("log", 0), ("log", 1), ("log", 2)]
    assert await life.read_all("log", 0) == [(0, b"a")]
    assert await life.read_all("log", 2) == [(0, b"b")]
    await life.stop()


async def test_configs_go_from_a_to_b_and_back() -> None:
    """A commit that says what an earlier one said is not taken for its repetition."""
    place = Place()
    life = await place.start()
    await life.create("log", retention_ms="1000")
    controller = life.context.controller
    for value in ("2000", "1000", "2000"):
        await controller.set_configs("log", lambda topic, value=value: {"retention.ms": value})
        assert life.partition("log").config.retention_ms == int(value)
    await life.stop()
    life = await place.start()
    assert life.partition("log").config.retention_ms == 2000
    await life.stop()


@pytest.mark.parametrize("lose_disk", [False, True], ids=["same disk", "lost disk"])
async def test_design_c07_producer_ids_are_never_given_twice(lose_disk: bool) -> None:
    """R10: they hold the session's epoch: over stops, crashes, lost answers and a lost disk no id repeats."""
    place = Place()
    seen: list[int] = []
    for life_number in range(4):
        life = await place.start()
        place.store.script(Operation.PUT_ROOT, Fault.LOST, match="cluster.json")
        seen += [await new_producer_id(life) for _ in range(3)]
        if life_number == 1:
            seen += [life.context.producer_ids.give() for _ in range(1500)]
        await (life.crash() if life_number % 2 else life.stop())
        if lose_disk:
            place.lose_disk()
    assert len(set(seen)) == len(seen)


async def test_design_c07_a_new_producer_matches_no_old_snapshot_after_a_lost_disk() -> None:
    """(id 0, sequence 0) of a new producer after the disk was lost is appended, not taken for a resend."""
    place = Place()
    life = await place.start()
    await life.create("log", **SMALL_SEGMENTS)
    first = await new_producer_id(life)
    for at in range(30):
        batch = batch_of(b"x" * 200, producer_id=first, producer_epoch=0, base_sequence=at)
        response = await life.call(ApiKey.PRODUCE, produce_request("log", batch))
        assert response.responses[0].partition_responses[0].error_code == 0
    await asyncio.sleep(30)
    await life.crash()
    place.lose_disk()
    life = await place.start()
    second = await new_producer_id(life)
    assert second != first
    end = life.partition("log").log.log_end_offset
    batch = batch_of(b"new", producer_id=second, producer_epoch=0, base_sequence=0)
    answer = (await life.call(ApiKey.PRODUCE, produce_request("log", batch))).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (0, end)
    assert life.partition("log").log.log_end_offset == end + 1
    await life.stop()


# --- commits whose outcome the controller does not learn ------------------------------------------------------------


async def create_with_lost_outcome(place: Place, life: Life) -> None:
    """The PUT lands, its answer is lost, and the store is away until the commit gave up."""
    place.store.script(Operation.PUT_ROOT, Fault.LOST, match="cluster.json")
    place.store.plan = FaultPlan({(Operation.GET, Fault.BEFORE): 1.0})
    with pytest.raises(Retryable):
        await life.create("log")
    place.store.calm()


async def serves(life: Life, topic: str) -> None:
    """Soon: polls saw it while nothing could be opened, and tries to open are up to ten seconds apart."""
    async with asyncio.timeout(15):
        while (topic, 0) not in life.context.registry.partitions:
            await asyncio.sleep(0.5)


async def test_a_create_whose_outcome_stayed_unknown_makes_no_second_topic_of_the_name() -> None:
    """It landed: asking again finds it, it serves, and the image never holds two topics of one name."""
    place = Place()
    life = await place.start()
    await create_with_lost_outcome(place, life)
    with pytest.raises(ApiError) as refused:
        await life.create("log")
    assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert names(life) == ["log"]
    await serves(life, "log")
    assert (await life.produce("log", b"a")).base_offset == 0
    await life.stop()
    life = await place.start()
    assert names(life) == ["log"]
    assert await life.read_all("log") == [(0, b"a")]
    await life.stop()


async def test_a_create_whose_outcome_stayed_unknown_serves_once_it_is_learned() -> None:
    """Another change shows that it landed: from then on clients can use the topic."""
    place = Place()
    life = await place.start()
    await create_with_lost_outcome(place, life)
    await life.create("other")
    await serves(life, "log")
    assert names(life) == ["log", "other"]
    assert (await life.produce("log", b"a")).base_offset == 0
    await life.stop()


async def test_a_delete_whose_outcome_stayed_unknown_is_carried_out() -> None:
    """It landed: the topic stops being served and its name can be used again."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"old")
    place.store.script(Operation.PUT_ROOT, Fault.LOST, match="cluster.json")
    place.store.plan = FaultPlan({(Operation.GET, Fault.BEFORE): 1.0})
    with pytest.raises(Retryable):
        await life.context.controller.delete_topic("log")
    place.store.calm()
    await life.create("other")
    await asyncio.sleep(5)
    assert "log" not in life.context.registry.topics
    await life.create("log")
    assert await life.read_all("log") == []
    await asyncio.sleep(60)
    assert not life.context.metadata.image.deleted
    await life.stop()


async def test_a_clients_patience_ends_and_the_change_goes_on() -> None:
    """timeout_ms=1 on a slow store: REQUEST_TIMED_OUT, and the topic exists and serves a moment later, once."""
    place = Place()
    life = await place.start()
    place.store.plan = FaultPlan(latency_s=(0.5, 1.0))
    wanted = CreateTopicsRequestTopic(name="log", num_partitions=1, replication_factor=1)
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=1)
    answer = await life.call(ApiKey.CREATE_TOPICS, request)
    assert answer.topics[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    answer = await life.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[wanted], timeout_ms=30_000))
    assert answer.topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    await asyncio.sleep(10)
    assert names(life) == ["log"]
    assert (await life.produce("log", b"a")).base_offset == 0
    gone = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="log")], timeout_ms=1)
    assert (await life.call(ApiKey.DELETE_TOPICS, gone)).responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    await asyncio.sleep(10)
    assert names(life) == []
    assert "log" not in life.context.registry.topics
    await life.stop()
