"""Three fences, three consequences (R1): whole brokers beside a controller that is none of them."""

from __future__ import annotations

import asyncio

import pytest

from broker.app import ServeExit
from broker.controller.broker_rpc import SessionRequest
from broker.controller.decisions.registrations import session_records
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.membership.controller_lease import ControllerLease
from broker.membership.identity import Standing, standing
from broker.metadata.cluster_content import Controller
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.image import ClusterImage
from broker.metadata.records import Endpoint, NodeGone, RowsSet, TopicCreated
from broker.metadata.rows import new_rows
from coldstore.keys import cluster_key, lease_key
from tests.support.brokers.broker_kit import LEASE_S, Life, Place
from tests.support.brokers.cluster_kit import cluster_root, created, id_of, session
from tests.support.store.memory_store import StoredObject
from tests.unit.broker.membership.test_broker_membership import lease_of, running

OTHER = 2


async def another_controller(place: Place, life: Life) -> ClusterRoot:
    """Node 2 commits the next controller epoch, beats its lease while `life` lives, and does nothing else."""
    cluster = cluster_root(place.memory, "other")
    assert await cluster.load() is not None
    other = SessionRequest(OTHER, "", "other", "other-directory", "boot", (Endpoint("PLAINTEXT", "other", 9),))
    await cluster.claim("", Controller(OTHER, "other"), lambda image: session_records(image, other))
    controller_lease = ControllerLease(place.memory, life.broker._world, "other", lease_s=LEASE_S, interval_s=3)

    async def beat() -> None:
        while True:
            await controller_lease.beat(cluster.epoch)
            await asyncio.sleep(3)

    life.broker._tasks.spawn("the other controller", beat())
    return cluster


async def test_controller_epoch_lost_is_the_end_of_deciding_only() -> None:
    """It refuses what needs the controller, and beats no more; what it leads it leads on, and its process lives."""
    place = Place()
    async with running(place) as (life, task):
        await life.create("log")
        await life.produce("log", b"before")
        await another_controller(place, life)
        await asyncio.sleep(10)
        with pytest.raises(ApiError) as refused:
            await life.context.controller.create_topic("more", 1, {})
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        await asyncio.sleep(60)
        session = life.session
        assert session is not None and not session.is_controller
        assert (await lease_of(place)).incarnation == "other"
        assert life.context.gate.is_open() and not task.done()
        assert (await life.produce("log", b"after")).error_code == 0
        assert await life.read_all("log") == [(0, b"before"), (1, b"after")]
        assert life.context.producer_ids.give() > 0
    assert not (await lease_of(place)).released, "it is not ours to release"


async def test_what_another_controller_decides_is_obeyed() -> None:
    """Images come by polls, too: a topic this broker is to lead, and one that it leads no more."""
    place = Place()
    async with running(place) as (life, task):
        await life.create("log")
        await life.produce("log", b"x")
        cluster = await another_controller(place, life)
        image = (await cluster.poll()).image
        log = image.topic_named("log")
        assert log is not None
        (row,) = log.rows
        moved = (
            0,
            type(row)((OTHER,), OTHER, row.leader_epoch + 1, row.partition_epoch + 1, (OTHER,), row.leader_epoch + 1),
        )
        made = TopicCreated(id_of(7), "made", new_rows(image, [(1,)]), {})
        await cluster.commit([made, RowsSet(log.topic_id, (moved,))])
        async with asyncio.timeout(20):
            while ("made", 0) not in life.context.registry.partitions:
                await asyncio.sleep(1)
        assert (await life.produce("made", b"y")).error_code == 0
        assert (await life.produce("log", b"z")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not task.done()


async def test_session_lost_to_another_process_is_the_end_of_this_one() -> None:
    """The image names another incarnation under the node id: exit 3, also if the controller epoch was lost before."""
    place = Place()
    async with running(place) as (life, task):
        await life.create("log")
        cluster = await another_controller(place, life)
        await asyncio.sleep(10)
        assert not task.done()
        image = (await cluster.poll()).image
        again = SessionRequest(1, "", "another process", image.nodes[1].directory_id, "boot", ())
        await cluster.commit(session_records(image, again))
        async with asyncio.timeout(10):
            assert await task == ServeExit.REFUSED
        assert not life.context.gate.is_open()


async def test_a_newer_program_that_wrote_cluster_json_ends_this_one() -> None:
    """R14: what it decides cannot be read, nor obeyed. The polls raised, and the process stayed for ever."""
    place = Place()
    async with running(place) as (life, task):
        await life.create("log")
        old = place.memory.objects[cluster_key()]
        data = old.data.replace(b'"format_version":2', b'"format_version":3')
        place.memory.objects[cluster_key()] = StoredObject(data, "newer", None)
        async with asyncio.timeout(10):
            assert await task == ServeExit.REFUSED


async def test_a_lease_that_was_beaten_by_nobody_in_cluster_json_ends_nothing() -> None:
    """The lease says when, `cluster.json` says who: a higher epoch in the lease alone takes no place."""
    place = Place()
    async with running(place) as (life, task):
        lease = place.memory.objects[lease_key()]
        data = lease.data.replace(b'"epoch":1', b'"epoch":9')
        data = data[: data.index(b'"crc32c":')] + data[data.index(b'"epoch"') :]
        place.memory.objects[lease_key()] = StoredObject(data, "later", None)
        await asyncio.sleep(60)
        assert not task.done() and life.context.gate.is_open()
        await life.create("log")


def test_standing_is_told_by_the_incarnation() -> None:
    """Not by the epoch, nor by the directory, which a copy shares."""
    image = ClusterImage().with_records([session("mine"), created(1)])
    assert standing(image, 1, "mine") is Standing.IN_SESSION
    assert standing(image, 1, "other") is Standing.REPLACED
    ended = image.with_records([session("mine", active=False)])
    assert standing(ended, 1, "mine") is Standing.ENDED
    assert standing(image.with_records([NodeGone(1, 1)]), 1, "mine") is Standing.ENDED
