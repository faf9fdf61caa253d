"""Machines of one world: each loses its own power, its own directories, and nothing of the others'."""

from __future__ import annotations

import asyncio

import pytest

from seams.rng import SeededRng
from tests.sim.scripted import script
from tests.sim.scripted.script import Story, aftermath, again, ready, send
from tests.sim.world.cluster import Cluster
from tests.sim.world.loop import SimLoop


def test_a_power_cut_is_its_machines_alone() -> None:
    """The other machine's broker serves on in its run; the one that was cut boots anew, and its disk forgot."""

    async def act(loop: SimLoop) -> Cluster:
        cluster = Cluster(loop, "machines", directory_bucket=False, settings=script.SETTINGS, machines=("m0", "m1"))
        here, there = cluster.machines
        assert [machine.boot_id for machine in cluster.machines] == ["m0-boot-1", "m1-boot-1"]
        await asyncio.sleep(5.0)
        story = Story(cluster)
        story.node = cluster.start("a", machine=there)
        assert await ready(story)
        client = story.client()
        assert await again(lambda: client.create_topic(script.PLACE[0], 1, script.TOPIC))
        story.tail.producer = await client.init_producer_id()
        await send(story, 0, client)
        cluster.power_cut(0.0, SeededRng("here"), here)
        assert story.node.serving and story.node.clock.boot_id() == "m1-boot-1"
        await send(story, 1, client)
        before_s = story.node.clock.boottime_s()
        assert before_s > 5.0
        there.disk.make_dirs("/unsynced")
        cluster.power_cut(0.0, SeededRng("there"), there)
        assert story.node.dead and there.disk.stat("/unsynced") is None
        assert [machine.boot_id for machine in cluster.machines] == ["m0-boot-2", "m1-boot-2"]
        story.node = cluster.start("a", machine=there)
        assert story.node.clock.boottime_s() == 0.0
        assert await aftermath(story) == []
        return cluster

    script.in_virtual_time(act)


def test_a_directory_bucket_has_one_machine() -> None:
    """It lies on that machine's disk: others could not reach it."""
    with pytest.raises(AssertionError):
        Cluster(SimLoop(), "machines", directory_bucket=True, machines=("m0", "m1"))
