"""Deleted topics leave nothing behind in the broker, and a stop goes on whatever the bucket refuses."""

from __future__ import annotations

import asyncio

from broker.metadata.image import Topic
from coldstore.manifest.manifest import EditRefused
from tests.support.brokers.broker_kit import Place


async def test_a_deleted_topic_with_unsynced_bytes_is_not_ticked_for_ever() -> None:
    """Its closed log is dirty for good, so nothing else would let go of it."""
    place = Place()
    life = await place.start()
    await life.create("log")
    registry = life.context.registry
    (partition,) = registry.partitions.values()
    registry.touched.add(partition)
    topic: Topic = registry.topics["log"]
    registry.withdraw(topic)
    assert registry.touched == set() and not registry.partitions
    await life.crash()


async def test_a_refused_last_snapshot_does_not_stop_the_stop() -> None:
    """Whatever the manifest says to the groups' last snapshot, logs are closed, the marker is written."""
    place = Place()
    life = await place.start()
    await life.create("log")
    snapshots = life.broker.components.snapshots
    assert snapshots is not None

    async def refused() -> None:
        raise EditRefused("snapshot at 5 is older than the manifest's snapshot")

    snapshots.write_all = refused  # type: ignore[assignment,method-assign]
    await life.stop()
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is not None
    await asyncio.sleep(0)
