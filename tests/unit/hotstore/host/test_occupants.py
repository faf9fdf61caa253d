"""The checker of late work on disks: it sees a call that works by path in another topic's directory, and only that."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from uuid import UUID

from tests.sim.world.cluster import Cluster
from tests.sim.world.loop import SimLoop
from tests.support.brokers.broker_kit import Place
from tests.support.disk.crash_disk import CrashDisk
from tests.support.disk.hotstore_kit import LOG_PATH, ORDERS, append, batch
from tests.support.disk.occupants import watch
from tests.unit.hotstore.host.test_log_host import CONFIG, ID, OTHER, host

WORKS_FOR: ContextVar[UUID | None] = ContextVar("works for", default=None)


def caller() -> bytes | None:
    topic_id = WORKS_FOR.get()
    return None if topic_id is None else topic_id.bytes


async def test_a_call_for_one_topic_in_the_directory_of_another_is_seen() -> None:
    """Making, sealing and removing for the topic that lies there is not; nor is a call of nobody's."""
    disk, found = CrashDisk(), []
    watch(disk, caller, found.append)
    logs = host(disk)
    WORKS_FOR.set(ID)
    opened = await logs.create(ORDERS, ID, CONFIG)
    append(opened.log, batch(5))
    await logs.close(opened, clean=True)
    assert not found
    WORKS_FOR.set(OTHER)
    with contextlib.suppress(OSError):
        disk.open(f"{LOG_PATH}/leader-epoch-checkpoint.tmp", write=True, create=True).close()
    assert [f"topic {OTHER}" in said and f"topic {ID}" in said for said in found] == [True]
    disk.rename(LOG_PATH, f"{LOG_PATH}.aside")
    assert len(found) >= 2 and "rename of" in found[1]
    WORKS_FOR.set(None)
    disk.unlink(f"{LOG_PATH}.aside/leader-epoch-checkpoint.tmp")
    assert len([said for said in found if "unlink" in said]) == 0


async def test_the_disk_of_each_simulated_machine_is_watched_also_after_it_was_killed_or_lost_power() -> None:
    """The disk itself: a process of the simulation holds a view of it, which no effect is told to."""
    place = Place()
    for lose in (place.kill, place.power_cut, place.lose_disk):
        place.make()
        assert place.disk.on_effect is not None and place.disk.on_rename is not None
        lose()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    cluster = Cluster(loop, "watched", directory_bucket=False, machines=("m0", "m1"))
    for number, machine in enumerate(cluster.machines):
        cluster.start("a", 9000 + number, machine=machine)
        assert machine.disk.on_effect is not None and machine.disk.on_rename is not None
