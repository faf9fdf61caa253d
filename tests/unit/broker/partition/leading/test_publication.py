"""A topic's partitions on their way to be led: each is published when it is open, whatever its neighbours wait for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from broker.partition.leading.publication import TOGETHER_S, Publication


def opened(index: int) -> Any:
    return SimpleNamespace(index=index, lost=None)


class Scene:
    """Three partitions of which some open."""

    def __init__(self, *indexes: int) -> None:
        self.published: list[list[int]] = []
        self.it = Publication("orders", list(indexes), self.publish)

    def publish(self, ready: list[Any]) -> None:
        self.published.append([role.index for role in ready])


async def test_a_partition_that_waits_keeps_no_neighbour_from_serving() -> None:
    """Those that opened together are published at once, in their order, half a second later at most."""
    scene = Scene(0, 1, 2)
    scene.it.ready(opened(2))
    scene.it.ready(opened(1))
    assert scene.published == [] and scene.it.ready_count == 2
    await asyncio.sleep(TOGETHER_S + 0.1)
    assert scene.published == [[1, 2]] and scene.it.ready_count == 0 and not scene.it.over.is_set()
    scene.it.ready(opened(0))
    assert scene.published == [[1, 2], [0]] and scene.it.over.is_set()


async def test_the_last_one_is_published_at_once() -> None:
    scene = Scene(0, 1)
    scene.it.ready(opened(0))
    scene.it.ready(opened(1))
    assert scene.published == [[0, 1]] and scene.it.over.is_set()
    await asyncio.sleep(2 * TOGETHER_S)
    assert scene.published == [[0, 1]], "its timer is over"


async def test_a_role_that_ends_before_it_is_published_is_not() -> None:
    """Whoever waits for the topic hears of the others."""
    scene = Scene(0, 1, 2)
    scene.it.ready(opened(0))
    scene.it.drop(0)
    scene.it.ready(opened(1))
    scene.it.drop(2)
    assert scene.published == [[1]] and scene.it.over.is_set()
    scene.it.drop(1)
    assert scene.published == [[1]]


async def test_a_topic_is_published_where_none_of_its_partitions_opens() -> None:
    """Clients are to hear that it is there."""
    scene = Scene(0)
    scene.it.drop(0)
    assert scene.published == [[]] and scene.it.over.is_set() and not scene.it.was_given_up
