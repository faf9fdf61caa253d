"""A start opens every topic at once: what that costs beside the opening itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from broker.partition.leading.publication import Publication
from broker.partition.replica_manager import ReplicaManager
from tests.support.collector import without_collector


def cpu_s_of_waiting(count: int) -> float:
    """For `count` topics that are being opened, each waited for by somebody."""

    async def scenario() -> float:
        replicas: Any = ReplicaManager.__new__(ReplicaManager)
        replicas._topics = {}
        replicas._publications = {str(at): [Publication(str(at), [0], lambda _: None)] for at in range(count)}
        began_s = time.process_time()
        waiting = [asyncio.ensure_future(replicas.opened(str(at))) for at in range(count)]
        await asyncio.sleep(0)
        taken_s = time.process_time() - began_s
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return taken_s

    with without_collector():  # how often it walks so many tasks is not what is asked: it made 8 into 18 to 25
        return asyncio.run(scenario())


def test_waiting_for_many_topics_costs_each_the_same() -> None:
    """Each wait looked at all openings: 10 000 topics took 5 s of the loop before the first was served."""
    few, many = (min(cpu_s_of_waiting(count) for _ in range(3)) for count in (1_000, 8_000))
    assert many < 16 * few, f"{few * 1000:.0f} ms for 1 000, {many * 1000:.0f} ms for 8 000"
