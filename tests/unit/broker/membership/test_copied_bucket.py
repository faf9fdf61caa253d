"""Two clusters, one on a copy of the other's bucket: `cluster.json` of the copy names the other's controller."""

from __future__ import annotations

import asyncio
import copy
from contextlib import suppress

import pytest

from seams.rng import SeededRng
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import Three
from tests.support.store.faulty_store import FaultyStore
from tests.support.store.memory_store import MemoryStore


def on_a_copy(three: Three, node_id: int) -> Place:
    """A machine of another team, in reach of the first cluster's brokers: a copy of its bucket, an empty disk."""
    first = three.places[1]
    place = Place(f"node.id={node_id}", seed=f"copy/{node_id}")
    memory = MemoryStore("memory://copy")
    memory.objects = copy.deepcopy(first.memory.objects)
    place.memory, place.store, place.net = memory, FaultyStore(memory, SeededRng("copy")), first.net
    return place


def nodes_of(life: Life) -> dict[int, tuple[bool, str]]:
    return {n.node_id: (n.active, n.directory_id) for n in life.context.metadata.image.nodes.values()}


async def test_a_broker_on_a_copy_of_the_bucket_does_not_join_the_cluster_that_was_copied() -> None:
    """It reads cluster.json of the copy, whose controller lives, and registers there."""
    three = Three()
    await three.fill()
    drill = on_a_copy(three, 11)
    life = drill.make("listeners=PLAINTEXT://127.0.0.1:9911")
    starting = asyncio.ensure_future(life.start())
    seen: set[int] = set()
    for _ in range(1200):
        await asyncio.sleep(0.05)
        seen |= nodes_of(three.lives[1]).keys()
    starting.cancel()
    with suppress(BaseException):
        await starting
    for each in three.lives.values():
        await each.crash()
    assert seen == {1, 2, 3}, f"the first cluster has brokers {sorted(seen)}"


async def test_what_a_broker_that_is_off_holds_alone_outlives_a_trial_on_a_copy_of_the_bucket() -> None:
    """Broker 2 is off for an hour. Meanwhile a restore is tried on a copy of the bucket, by brokers of the same ids on
    empty directories. Broker 2 comes back: what it acknowledged and held alone has to be there."""
    three = Three()
    await three.fill()
    controller = three.lives[1].context.controller
    for number in range(6):  # one of them is on broker 2
        await controller.create_topic(f"alone-{number}", 1, {}, replication_factor=1)
    image = three.lives[1].context.metadata.image
    name = next(t.name for t in image.topics.values() if t.name.startswith("alone") and t.rows[0].leader == 2)
    await until(lambda: (name, 0) in three.lives[2].context.registry.partitions, "it is led")
    assert (await three.lives[2].produce(name, b"acknowledged")).error_code == 0
    await three.lives[2].stop()
    await asyncio.sleep(60.0)
    before = nodes_of(three.lives[1])

    drill = on_a_copy(three, 2)
    life = drill.make("listeners=PLAINTEXT://127.0.0.1:9922")
    starting = asyncio.ensure_future(life.start())
    await asyncio.sleep(60.0)
    starting.cancel()
    with suppress(BaseException):
        await starting
    after = nodes_of(three.lives[1])

    try:
        async with asyncio.timeout(120.0):
            await three.start(2)  # with its disk, whole
    except BaseException as refused:  # noqa: BLE001
        pytest.fail(f"before {before}, after {after}; broker 2 with its own, whole disk: {refused!r}")
    assert await three.lives[2].read_all(name) == [(0, b"acknowledged")]
    for each in three.lives.values():
        await each.crash()


async def test_a_replica_on_a_copy_of_the_bucket_does_not_acknowledge_for_one_of_the_cluster_that_was_copied() -> None:
    """Broker 2 registered once since the copy was made, so has the broker of its id on the copy: the same broker epoch.
    Broker 3 leads in both images, in the same leader epoch. Broker 2 itself is slow."""
    three = Three("min.insync.replicas=2")
    await three.fill()
    controller = three.lives[1].context.controller
    for number in range(6):
        await controller.create_topic(f"t-{number}", 1, {"min.insync.replicas": "2"}, replication_factor=3)
    topics = three.lives[1].context.metadata.image.topics.values()
    name = next(topic.name for topic in topics if topic.name != "log" and topic.rows[0].leader == 3)

    def in_sync() -> set[int]:
        return set(three.lives[3].context.metadata.topic(name).rows[0].in_sync)

    await until(lambda: (name, 0) in three.lives[3].context.registry.partitions, "it is led")
    drill = on_a_copy(three, 2)
    await three.lives[2].stop()
    await three.start(2)
    await until(lambda: in_sync() == {1, 2, 3}, "broker 2 is in sync again")
    starting = asyncio.ensure_future(drill.make("listeners=PLAINTEXT://127.0.0.1:9922").start())
    slow = three.lives[2].context.registry.followed[name, 0]
    acknowledged: list[int] = []
    for _ in range(30):
        slow.next_fetch = lambda: None  # type: ignore[method-assign]
        answer = await three.lives[3].produce(name, b"value")
        if answer.error_code == 0 and 2 in in_sync():
            acknowledged.append(answer.base_offset)
            lacks = [offset for offset in acknowledged if offset >= slow.log.log_end_offset]
            assert not lacks, f"broker 2 is in sync, and lacks what was acknowledged at {lacks}"
        del slow.next_fetch  # type: ignore[method-assign]
        await asyncio.sleep(0.5)
    starting.cancel()
    with suppress(BaseException):
        await starting
    for each in three.lives.values():
        await each.crash()
