"""The wait for the right to serve is used to read what lost logs begin with; who does not wait asks nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Row, TopicCreated
from broker.startup.bucket_probe import ColdPrefetch, lost_here
from coldstore.stores.metered import MeteredStore
from hotstore.host.data_dir import DataDir
from hotstore.log.log_config import LogConfig
from hotstore.recovery.log_loading import make_log
from logformat.values import TopicPartition
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.support.brokers.cluster_kit import claim
from tests.support.fast_loop import FastClock
from tests.support.store.faulty_store import FaultyStore
from tests.support.tier.tier_kit import DATA, House
from tiering.opening.read_ahead import ReadAhead

ID = "0190a8c0-0000-7000-8000-0000000000aa"


def row(*replicas: int, in_sync: tuple[int, ...] | None = None) -> Row:
    return Row(replicas, replicas[0], 3, 1, replicas if in_sync is None else in_sync, 3)


def test_only_logs_of_this_node_alone_that_do_not_lie_here_are_lost_here() -> None:
    """What others hold is copied from them, and what lies here is asked of its own disk."""
    rows = (row(1), row(1), row(2), row(1, 2), row(1, 2, in_sync=(1,)), row(1))
    image = ClusterImage(topics={ID: Topic(ID, "orders", rows, {}, False)})
    held = {TopicPartition("orders", 1)}
    assert list(lost_here(image, 1, held)) == [(UUID(ID), 0), (UUID(ID), 5)]
    assert list(lost_here(image, 2, held)) == [(UUID(ID), 2)]


class Asked(ReadAhead):
    """What it was asked for."""

    def __init__(self, house: House) -> None:
        super().__init__(house.memory, house.world(), 10.0)
        self.wanted: list[tuple[UUID, int]] = []
        self.cut_off = 0

    async def read(self, wanted: Iterable[tuple[UUID, int]]) -> None:
        self.wanted += wanted
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cut_off += 1
            raise


async def test_reading_begins_once_with_the_wait_and_ends_with_it() -> None:
    """The wait tells of itself at every look; the claim is not to wait for what is still being read."""
    house, tasks = House(), Tasks()
    world = house.world()
    data_dir = DataDir.open(house.disk, DATA)
    make_log(data_dir, TopicPartition("orders", 1), UUID(ID).bytes, LogConfig())
    cluster = ClusterRoot(house.memory, world.rng, world.clock, world.workers)
    await claim(cluster)
    await cluster.commit([TopicCreated(ID, "orders", (row(1), row(1)), {})])
    ahead, store = Asked(house), MeteredStore(house.memory, FastClock())
    reading = ColdPrefetch(ahead, store, world, data_dir, 1, tasks)
    reading.end()
    assert not sum(meter.calls for meter in store.meters.values())
    reading = ColdPrefetch(ahead, store, world, data_dir, 1, tasks)
    for _ in range(3):
        reading.begin()
        await asyncio.sleep(1)
    assert ahead.wanted == [(UUID(ID), 0)]
    reading.end()
    await asyncio.sleep(1)
    assert ahead.cut_off == 1
    await tasks.close()


async def test_a_store_that_is_away_is_left_to_who_joins() -> None:
    """He tells of it; nothing is reported from here."""
    house, failures = House(), list[str]()
    tasks = Tasks(lambda name, failure: failures.append(name))
    store = FaultyStore(house.memory, SeededRng(1))
    store.down = True
    reading = ColdPrefetch(Asked(house), store, house.world(), DataDir.open(house.disk, DATA), 1, tasks)
    reading.begin()
    await asyncio.sleep(100)
    assert not failures and not len(tasks)
