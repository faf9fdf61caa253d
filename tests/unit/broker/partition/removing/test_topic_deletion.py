"""When a deleted topic is forgotten."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from broker.metadata.image import Topic
from broker.metadata.records import Row
from broker.partition.removing.topic_deletion import PURGING_MAX, TopicDeletion
from logformat.values import TopicPartition
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import play

TOPIC_ID = UUID(int=77)


class Removed:
    """What was removed, by name."""

    def __init__(self) -> None:
        self.set_asides: list[TopicPartition] = []
        self.objects: list[UUID] = []
        self.directories = self

    async def closed(self, topic_id: str) -> None:
        pass

    async def set_aside(self, place: TopicPartition, topic_id: UUID) -> None:
        self.set_asides.append(place)

    async def delete_set_aside(self) -> None:
        pass

    async def purge_topic(self, topic_id: UUID, partitions: int) -> None:
        self.objects.append(topic_id)


def test_a_topic_is_forgotten_a_session_after_it_was_removed_however_long_that_is() -> None:
    """A broker in session may not have heard of the deletion for that long: what it uploads until then is removed with
    the rest, and what it holds of the topic is no stray."""
    session_s = 30.0

    async def scenario() -> None:
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

    play(scenario())


@pytest.mark.parametrize("waits", ["for others to hear", "for its turn at the bucket"])
@pytest.mark.parametrize("is_again", [False, True])
def test_objects_are_deleted_by_a_broker_that_decides_when_its_turn_comes(waits: str, is_again: bool) -> None:
    """Another broker claimed meanwhile. `is_again`: this one decides again before the turn was over, and has a topic
    forgotten only after a deletion of its own."""

    async def scenario() -> None:
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

    play(scenario())
