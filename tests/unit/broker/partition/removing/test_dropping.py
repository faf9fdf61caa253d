"""A log that other brokers hold now: removed, moved aside, or left as it is when the image gives it back."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from broker.metadata.records import NO_LEADER, Row, RowsSet
from logformat.values import TopicPartition
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.neighbours import commit, join


async def _held(place: Place) -> Life:
    """`log`, with a record, led by the broker; node 2 has a session."""
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"a")
    await join(life, 2)
    return life


def _row(life: Life) -> Row:
    return life.context.metadata.topic("log").rows[0]


async def _commit(life: Life, row: Row) -> None:
    now = _row(life)
    after = replace(row, leader_epoch=now.leader_epoch + 1, partition_epoch=now.partition_epoch + 1)
    await commit(life, RowsSet(life.context.metadata.topic("log").topic_id, ((0, after),)))


def _others(life: Life) -> Row:
    return replace(_row(life), replicas=(2,), leader=2, in_sync=(2,))


def _directories(place: Place) -> list[str]:
    return sorted(name for name in place.disk.list_dir("/data/a") if name.startswith("log-0"))


async def _until(place: Place, *names: str) -> None:
    async with asyncio.timeout(60.0):
        while [name.partition(".")[0] for name in _directories(place)] != list(names):
            await asyncio.sleep(0.05)


async def test_a_log_that_was_seen_to_change_hands_is_removed() -> None:
    """With all that was known of it: a topic's next log of that place begins with nothing."""
    place = Place()
    life = await _held(place)
    await _commit(life, _others(life))
    await _until(place)
    registry = life.context.registry
    assert not list(registry) and not registry.followed and not registry.touched
    await _commit(life, replace(_row(life), replicas=(1, 2), leader=NO_LEADER, in_sync=(2,)))
    async with asyncio.timeout(60.0):
        while ("log", 0) not in registry.followed:
            await asyncio.sleep(0.05)
    assert registry.followed["log", 0].log.log_end_offset == 0
    await life.stop()


async def test_a_log_given_back_before_its_turn_came_stays() -> None:
    """The directories of its topic were somebody's meanwhile: the newest image is what counts then."""
    place = Place()
    life = await _held(place)
    replicas = life.replicas
    async with replicas._logs.place(TopicPartition("log", 0))._turn:
        await _commit(life, _others(life))
        await asyncio.sleep(1.0)
        await _commit(life, replace(_row(life), replicas=(1, 2), leader=1, in_sync=(1, 2)))
    async with asyncio.timeout(60.0):
        while ("log", 0) not in life.context.registry.partitions:
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    assert _directories(place) == ["log-0"]
    assert life.partition("log").log.log_end_offset == 1
    await life.stop()


async def test_what_was_not_seen_goes_aside() -> None:
    """Closed, whole, named as a stray."""
    place = Place()
    life = await _held(place)
    replicas = life.replicas
    drop = replicas.drop
    replicas.drop = lambda topic, indexes, *, is_seen: drop(topic, indexes, is_seen=False)  # type: ignore[method-assign]
    await _commit(life, _others(life))
    async with asyncio.timeout(60.0):
        while not all(name.endswith("-stray") for name in _directories(place)):
            await asyncio.sleep(0.05)
    assert len(_directories(place)) == 1
    await life.stop()
