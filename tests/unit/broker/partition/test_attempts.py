"""A topic's partitions on their way to be led: each is published when it is open, whatever its neighbours wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.metadata.image import Topic
from broker.metadata.records import Row
from broker.partition.attempts import Attempts
from broker.partition.replica import Partition
from hotstore.errors import DamagedLog
from logformat.errors import Retryable
from logformat.values import TopicPartition
from seams.rng import SeededRng
from seams.tasks import Tasks
from tests.support.fast_loop import run_fast

TOPIC = Topic("id", "orders", (Row((1,), 1, 0, 1, (1,), 1),) * 3, {}, False)


@asynccontextmanager
async def turn(_: str) -> AsyncIterator[None]:
    yield


async def refused() -> None:
    raise Retryable("the bucket is away")


async def unanswered() -> None:
    await asyncio.Event().wait()


class Scene:
    """Partition 0 waits for `first`, 1 and 2 are open at once."""

    def __init__(self, first: Callable[[], Awaitable[None]], indexes: Sequence[int] = (0, 1, 2)) -> None:
        self.first = first
        self.opened: list[int] = []
        self.published: list[list[int]] = []
        self.attempts = Attempts(self.open, self.publish, turn, Tasks(), SeededRng(1), lambda *_: None)
        self.attempts.begin(TOPIC, indexes, new=False)

    async def open(self, topic: Topic, index: int, new: bool) -> Partition:
        if index == 0:
            await self.first()
        self.opened.append(index)
        return cast(Partition, SimpleNamespace(index=index, tier=SimpleNamespace(lost=None)))

    def publish(self, _: str, partitions: list[Any]) -> None:
        self.published.append([found.index for found in partitions])


@pytest.mark.parametrize("first", [refused, unanswered])
def test_who_needs_an_absent_bucket_keeps_no_neighbour_from_serving(first: Callable[[], Awaitable[None]]) -> None:
    """All of a topic that were elected together waited for the one. Each once, all that opened together at once; who is
    to have another role then does not wait for the one either."""

    async def scenario() -> None:
        scene = Scene(first)
        await asyncio.sleep(1.0)
        assert scene.published == [[1, 2]] and scene.attempts.opened_count == 0
        async with asyncio.timeout(1.0):
            await scene.attempts.over(TOPIC.topic_id, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await scene.attempts.over(TOPIC.topic_id, 0)
        assert scene.published == [[1, 2]] and scene.opened == [1, 2]
        assert await scene.attempts.give_up(TOPIC)() == []

    run_fast(scenario())


def test_the_one_is_published_when_it_opens() -> None:
    """And whoever waits for the topic, or for that partition, hears of it then."""

    async def scenario() -> None:
        answers = asyncio.Event()

        async def answered() -> None:
            await answers.wait()

        scene = Scene(answered)
        everything = asyncio.ensure_future(scene.attempts.opened(TOPIC.topic_id))
        one = asyncio.ensure_future(scene.attempts.over(TOPIC.topic_id, 0))
        await asyncio.sleep(30.0)
        assert not everything.done() and not one.done()
        answers.set()
        async with asyncio.timeout(1.0):
            assert await everything
            await one
        assert scene.published == [[1, 2], [0]]

    run_fast(scenario())


def test_who_is_given_up_before_it_is_published_is_handed_back() -> None:
    """Its log has to be closed by who asked."""

    async def scenario() -> None:
        scene = Scene(unanswered)
        await asyncio.sleep(0.1)
        assert scene.attempts.opened_count == 2
        given_up = await scene.attempts.give_up(TOPIC)()
        assert [found.index for found in given_up] == [1, 2] and scene.published == []

    run_fast(scenario())


def test_a_topic_is_published_where_none_of_its_partitions_opens() -> None:
    """Clients are to hear that it is there, and who looks after its partitions that they are offline."""

    async def damaged() -> None:
        raise DamagedLog("orders-0", 0, 0, "a batch", "restore it")

    async def scenario() -> None:
        scene = Scene(damaged, [0])
        assert await scene.attempts.opened(TOPIC.topic_id)
        assert scene.published == [[]] and list(scene.attempts.damaged) == [TopicPartition("orders", 0)]

    run_fast(scenario())
