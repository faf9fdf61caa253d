"""A start opens every topic at once: what that costs beside the opening itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.partition.attempts import Attempts

from broker.metadata.image import Topic
from broker.metadata.records import Row
from broker.partition.replica import Partition
from seams.rng import SeededRng
from seams.tasks import Tasks
from tests.support.collector import without_collector


def cpu_s_of_waiting(count: int) -> float:
    """For `count` topics that are being opened, each waited for by somebody."""

    async def never(topic: Topic, index: int, new: bool) -> Partition:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    @asynccontextmanager
    async def turn(name: str) -> AsyncIterator[None]:
        yield

    async def scenario() -> float:
        tasks = Tasks()
        attempts = Attempts(never, lambda *_: None, turn, tasks, SeededRng(1), lambda *_: None)
        row = Row((1,), 1, 0, 0, (1,), 0)
        topics = [Topic(str(at), str(at), (row,), {}, False) for at in range(count)]
        for topic in topics:
            attempts.begin(topic, [0], new=False)
        await asyncio.sleep(0)
        began_s = time.process_time()
        waiting = [asyncio.ensure_future(attempts.opened(topic.topic_id)) for topic in topics]
        await asyncio.sleep(0)
        taken_s = time.process_time() - began_s
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await tasks.close()
        return taken_s

    with without_collector():  # how often it walks so many tasks is not what is asked: it made 8 into 18 to 25
        return asyncio.run(scenario())


def test_waiting_for_many_topics_costs_each_the_same() -> None:
    """Each wait looked at all openings: 10 000 topics took 5 s of the loop before the first was served."""
    few, many = (min(cpu_s_of_waiting(count) for _ in range(3)) for count in (1_000, 8_000))
    assert many < 16 * few, f"{few * 1000:.0f} ms for 1 000, {many * 1000:.0f} ms for 8 000"
