"""When a deleted topic is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.metadata.image import Topic
from broker.metadata.rebuilt import UNKNOWN_REPLICA, unknown_replica
from broker.metadata.records import Row
from broker.partition.removing.topic_deletion import PURGING_MAX, RETRY_S_MAX, TopicDeletion
from coldstore.stores.operations import Operation
from logformat.values import TopicPartition
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Place
from tests.support.store.faulty_store import Fault

TOPIC_ID = UUID(int=77)


class Removed:
    """What was removed, by name."""

    def __init__(self) -> None:
        self.set_asides: list[TopicPartition] = []
        self.objects: list[UUID] = []
        self.directories = self
        self.has_turn = asyncio.Event()
        self.has_turn.set()

    async def closed(self, topic_id: str) -> None:
        pass

    async def set_aside(self, place: TopicPartition, topic_id: UUID, is_wanted: Callable[[], bool]) -> None:
        await self.has_turn.wait()
        if is_wanted():
            self.set_asides.append(place)

    async def delete_set_aside(self) -> None:
        pass

    async def purge_topic(self, topic_id: UUID, partitions: int, may_delete: Callable[[], bool]) -> bool:
        self.objects.append(topic_id)
        return may_delete()


async def test_a_topic_is_forgotten_a_session_after_it_was_removed_however_long_that_is() -> None:
    """A broker in session may not have heard of the deletion for that long: what it uploads until then is removed with
    the rest, and what it holds of the topic is no stray."""
    session_s = 30.0
    loop, removed = asyncio.get_running_loop(), Removed()
    nodes = {node: SimpleNamespace(node_id=node, active=True) for node in (1, 2)}
    metadata = SimpleNamespace(is_decided_by=lambda node: node == 1, image=SimpleNamespace(nodes=nodes))
    forgotten: asyncio.Future[float] = loop.create_future()

    async def forget(_: Topic) -> None:
        assert removed.objects == [TOPIC_ID, TOPIC_ID]
        forgotten.set_result(loop.time())

    tasks = Tasks()
    purging = TopicDeletion(
        1,
        cast(Any, metadata),
        cast(Any, removed),
        cast(Any, removed),
        removed.closed,
        forget,
        tasks,
        SeededRng(1),
        lambda *_: None,
        session_s,
    )
    began_s = loop.time()
    purging.purge(Topic(str(TOPIC_ID), "log", (Row((1, 2), 1, 0, 0, (1, 2), 0),), {}, True))
    assert await forgotten - began_s > session_s
    await tasks.close()


@pytest.mark.parametrize("waits", ["for others to hear", "for its turn at the bucket"])
@pytest.mark.parametrize("is_again", [False, True])
async def test_objects_are_deleted_by_a_broker_that_decides_when_its_turn_comes(waits: str, is_again: bool) -> None:
    """Another broker claimed meanwhile. `is_again`: this one decides again before the turn was over, and has a topic
    forgotten only after a deletion of its own."""
    removed, decides, forgotten = Removed(), [True], list[Topic]()
    nodes = {node: SimpleNamespace(node_id=node, active=True) for node in (1, 2)}
    metadata = SimpleNamespace(is_decided_by=lambda _: decides[0], image=SimpleNamespace(nodes=nodes))

    async def forget(topic: Topic) -> None:
        forgotten.append(topic)

    tasks, them = Tasks(), cast(Any, removed)
    purging = TopicDeletion(
        1, cast(Any, metadata), them, them, removed.closed, forget, tasks, SeededRng(1), lambda *_: None, 30.0
    )
    turns = PURGING_MAX if waits == "for its turn at the bucket" else 0
    for _ in range(turns):
        await purging._slots.acquire()
    purging.purge(Topic(str(TOPIC_ID), "log", (Row((1, 2), 1, 0, 0, (1, 2), 0),), {}, True))
    await asyncio.sleep(5.0)
    decides[0] = False
    for _ in range(turns):
        purging._slots.release()
    await asyncio.sleep(20.0 if is_again and not turns else 1.0)
    decides[0] = is_again
    await asyncio.sleep(100.0)
    assert len(removed.objects) == (0 if turns else 1 + is_again), "deleted by a broker that does not decide"
    assert len(forgotten) == (is_again and not turns), "forgotten, and not deleted by this broker"
    await tasks.close()


async def test_no_log_is_removed_once_the_cluster_is_rebuilt() -> None:
    """Regression: the removal asked before its turn, and the log of a topic that the rebuilt cluster may have again
    went when the turn came."""
    removed, image = Removed(), SimpleNamespace(nodes={})
    metadata = SimpleNamespace(is_decided_by=lambda _: False, image=image)
    tasks, them = Tasks(), cast(Any, removed)
    purging = TopicDeletion(
        1, cast(Any, metadata), them, them, removed.closed, cast(Any, None), tasks, SeededRng(1), lambda *_: None, 30.0
    )
    removed.has_turn.clear()
    purging.purge(Topic(str(TOPIC_ID), "log", (Row((1, 2), 1, 0, 0, (1, 2), 0),), {}, True))
    await asyncio.sleep(1.0)
    image.nodes[UNKNOWN_REPLICA] = unknown_replica(1)
    removed.has_turn.set()
    await asyncio.sleep(1.0)
    assert not removed.set_asides
    del image.nodes[UNKNOWN_REPLICA]
    await asyncio.sleep(RETRY_S_MAX)
    assert removed.set_asides == [TopicPartition("log", 0)], "an operator confirmed the rebuild"
    await tasks.close()


async def test_a_broker_that_decides_no_more_deletes_no_object_of_the_next_partition() -> None:
    """It asked once for all partitions. By then a rebuilt cluster may have the topic again (R29)."""
    place = Place()
    life = await place.start()
    topic_id = str(await life.create("log", 3, **SMALL_SEGMENTS))
    await asyncio.sleep(10.0)
    delete, deleted = place.memory.delete, list[str]()

    async def another_claims(keys: list[str]) -> None:
        metadata.is_decided_by = lambda _: False  # type: ignore[method-assign]
        deleted.extend(keys)
        await delete(keys)

    metadata, place.memory.delete = life.context.metadata, another_claims  # type: ignore[method-assign]
    await life.context.controller.delete_topic("log")
    await asyncio.sleep(60.0)
    assert {key.split(topic_id)[1].split("/")[1] for key in deleted if topic_id in key} == {"0"}, deleted
    await life.crash()


async def test_a_purge_stops_while_its_broker_does_not_know_whether_the_topic_is_still_deleted() -> None:
    """R23: an earlier `cluster.json` may have been put back by then. It deleted by an image of any age."""
    place = Place()
    life = await place.start()
    topic_id = str(await life.create("log", 5))
    await asyncio.sleep(10.0)
    delete, deleted = place.memory.delete, list[str]()

    async def slow(keys: list[str]) -> None:
        if not deleted:
            for operation in (Operation.GET, Operation.GET_IF_CHANGED):
                place.store.script(operation, Fault.BEFORE, match="cluster", times=10**6)
        deleted.extend(key for key in keys if topic_id in key)
        await asyncio.sleep(15.0)
        await delete(keys)

    place.memory.delete = slow  # type: ignore[method-assign]
    await life.context.controller.delete_topic("log")
    await asyncio.sleep(600.0)
    assert len(deleted) == 1, deleted
    place.store.calm()
    await asyncio.sleep(1200.0)
    assert len(deleted) == 5
    await life.crash()
