"""Scenes that simulated runs found once, played by hand: seeds rot when code changes, these do not."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from broker.error_codes import ErrorCode
from seams.rng import SeededRng
from tests.sim.checks.checker import Finding
from tests.sim.client import ServerError
from tests.sim.nemesis import _DataFault
from tests.sim.scripted import script
from tests.sim.scripted.script import PLACE, Story, aftermath, again, ready, send
from tests.sim.world.cluster import Cluster
from tests.sim.world.loop import SimLoop
from tests.support.disk.crash_disk import CAPACITY_BYTES
from tests.support.scenario import by

Scene = Callable[[Story], Awaitable[None]]


def played(scene: Scene, *settings: str, directory_bucket: bool = False) -> None:
    """Run a scene on a broker that has a topic and a producer."""

    async def act(loop: SimLoop) -> Cluster:
        cluster = Cluster(loop, "scene", directory_bucket=directory_bucket, settings=(*script.SETTINGS, *settings))
        story = Story(cluster)
        story.node = cluster.start("a")
        assert await ready(story)
        client = story.client()
        assert await again(lambda: client.create_topic(PLACE[0], 1, script.TOPIC))
        story.tail.producer = await client.init_producer_id()
        await scene(story)
        return cluster

    script.in_virtual_time(act)


@by(played, "thermocline.seal.on.shutdown=true")
async def test_a_clean_stop_ends_though_the_bucket_is_away(story: Story, /) -> None:
    """Group snapshots, the last seal and the reservation cannot reach the bucket: exit 0, nothing lost (seed 24)."""
    client = story.client()
    for number in range(5):
        await send(story, number, client)
    await script.commit_offset(story, client, 3)
    story.cluster.store.down = True
    node = story.node
    assert node is not None
    node.stop.set()
    async with asyncio.timeout(60.0):
        assert await node.main == 0
    story.cluster.store.down = False
    assert await aftermath(story) == []


@by(played)
async def test_a_clean_stop_ends_though_the_disk_is_full(story: Story, /) -> None:
    """Small files beside the logs cannot be written: no traceback, the next start recovers (seeds 10, 33, 43)."""
    client = story.client()
    for number in range(5):
        await send(story, number, client)
    disk = story.cluster.machines[0].disk
    disk.capacity_bytes = CAPACITY_BYTES - disk.space("/").free
    node = story.node
    assert node is not None
    node.stop.set()
    async with asyncio.timeout(60.0):
        await asyncio.wait([node.main])
    assert story.cluster.failures == []
    disk.capacity_bytes = CAPACITY_BYTES
    assert await aftermath(story) == []


@by(played)
async def test_a_produce_that_finds_the_disk_full_may_be_sent_again(story: Story, /) -> None:
    """The second batch of a producer takes the fast path; its refusal must be one that clients retry (seed 2)."""
    client = story.client()
    await send(story, 0, client)
    await send(story, 1, client)
    disk = story.cluster.machines[0].disk
    disk.capacity_bytes = CAPACITY_BYTES - disk.space("/").free
    try:
        await send(story, 2, client)
        raise AssertionError("acknowledged by a full disk")
    except ServerError as refused:
        assert refused.code is ErrorCode.KAFKA_STORAGE_ERROR
    disk.capacity_bytes = CAPACITY_BYTES
    assert await again(lambda: send(story, 2, client))
    assert await aftermath(story) == []


def test_what_a_failed_fsync_lost_is_not_acknowledged_after_a_restart_either() -> None:
    """fsyncgate over a restart: the page cache still shows the bytes, the disk never had them, then the power goes."""
    found: list[Finding] = []

    async def scene(story: Story) -> None:
        client = story.client()
        await send(story, 0, client)
        story.cluster.machines[0].disk.faults.append(_DataFault("sync", errno.EIO, ".log"))
        try:
            await send(story, 1, client)
        except Exception as refused:  # noqa: BLE001 - any answer but an acknowledgement
            assert not isinstance(refused, AssertionError)
        assert story.cluster.machines[0].disk.hits["fault:sync"] == 1
        assert story.node is not None
        story.cluster.kill(story.node)
        story.node = story.cluster.start("a")
        assert await ready(story)
        assert await again(lambda: send(story, 1, client))
        await asyncio.sleep(0.05)
        story.cluster.power_cut(0.0, SeededRng("cut"))
        found.extend(await aftermath(story))

    played(scene)
    assert found == []


def test_a_failed_fsync_acknowledges_nothing_and_is_not_tried_again() -> None:
    """Its pages are lost though the next fsync succeeds; what was acknowledged is there after a power cut (C10)."""
    found: list[Finding] = []

    async def scene(story: Story) -> None:
        client = story.client()
        await send(story, 0, client)
        story.cluster.machines[0].disk.faults.append(_DataFault("sync", errno.EIO, ".log"))
        for _ in range(3):
            try:
                await send(story, 1, client)
            except Exception as refused:  # noqa: BLE001 - any answer but an acknowledgement
                assert not isinstance(refused, AssertionError)
        assert story.cluster.machines[0].disk.hits["fault:sync"] == 1
        story.cluster.power_cut(0.0, SeededRng("cut"))
        found.extend(await aftermath(story))

    played(scene)
    assert found == []


def test_a_new_directory_on_a_full_disk_ends_with_4_and_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    """A supervisor that starts it again finds it so until there is room, and then it serves (seed 1055 of three)."""

    async def act(loop: SimLoop) -> Cluster:
        cluster = Cluster(loop, "no room", directory_bucket=False, settings=script.SETTINGS)
        disk = cluster.machines[0].disk
        disk.capacity_bytes = CAPACITY_BYTES - disk.space("/").free
        for _ in range(2):
            node = cluster.start("a")
            async with asyncio.timeout(60.0):
                assert await node.main == 4 and node.had_no_room
        disk.capacity_bytes = CAPACITY_BYTES
        story = Story(cluster)
        story.node = cluster.start("a")
        assert await ready(story)
        return cluster

    with caplog.at_level("ERROR", "broker.app"):
        script.in_virtual_time(act)
    said = [text for record in caplog.records if (text := record.getMessage()).startswith("storage failed")]
    assert len(said) == 2 and all(
        "no space left" in text and "free space there, then start again" in text for text in said
    )
