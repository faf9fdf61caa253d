"""What lies in a data directory and is not this broker's: moved aside on no proof, removed on proof only (R8, R24)."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from broker.metadata.cluster_content import Controller, ControllerAt
from broker.metadata.cluster_root import ClusterRoot
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Row, TopicCreated, TopicDeleted, TopicPurged
from broker.partition.removing.stray_logs import assigned, is_stray, strays
from broker.partition.replica_owner import ReplicaOwner
from hotstore.flush.durability import SealJob
from logformat.checkpoints import PARTITION_METADATA_FILE
from logformat.values import TopicPartition
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Place
from tests.support.brokers.cluster_kit import id_of, row, session
from tests.support.brokers.neighbours import commit, join, move
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, both, until
from tiering.service import TierService

A = (TopicPartition("log", 0), UUID(int=1))
B = (TopicPartition("log", 1), UUID(int=1))
C = (TopicPartition("old", 0), UUID(int=2))


def test_cluster_d43_a_stray_is_what_the_image_gives_to_others_or_does_not_name() -> None:
    """Not what a deletion removes, and nothing by an image that does not know this broker."""
    topic = Topic(id_of(1), "log", (row(1), row(2)), {}, False)
    image = ClusterImage(topics={id_of(1): topic}, nodes={1: session(), 2: session(node_id=2)}, next_broker_epoch=9)
    found = dict((A, B, C))
    assert strays(found, image, 1) == dict((B, C))
    assert assigned(image, 1) == {A[0]}
    assert is_stray(TopicPartition("log", 2), UUID(int=1), image, 1)
    image.deleted[id_of(2)] = Topic(id_of(2), "old", (row(1),), {}, False)
    assert strays(found, image, 1) == dict((B,))
    assert strays(found, image, 3) == {}


def _directories(place: Place) -> list[str]:
    """Of logs, as they are called, the unique part left out."""
    names = (name for name in place.disk.list_dir("/data/a") if "-0" in name)
    return sorted(name if "." not in name else name.split(".")[0] + "-" + name.rsplit("-", 1)[1] for name in names)


async def test_cluster_d44_a_topic_made_again_while_a_broker_was_down_finds_its_place_free() -> None:
    """The log of the topic before lay there: the new one was never opened. What was moved has all its records."""
    place = Place()
    life = await place.start()
    before, gone = str(await life.create("log")), str(await life.create("gone"))
    await life.produce("log", b"old")
    await life.stop()

    # The others' doings while this one is down.
    root = ClusterRoot(place.store, SeededRng("others"), life.clock, life.workers)
    found = await root.load()
    assert found is not None
    began = session("i2", node_id=2, broker_epoch=found.image.next_broker_epoch)
    await root.claim(found.cluster_id, Controller(2, "i2"), lambda _: [began])
    await root.commit([TopicDeleted(before), TopicDeleted(gone)])
    await root.commit([TopicPurged(before), TopicPurged(gone), TopicCreated(id_of(9), "log", (row(1),), {})])

    life = await place.start(take_over=True)
    await life.context.controller.opened(life.context.metadata.topic("log"))
    assert (await life.produce("log", b"new")).base_offset == 0
    assert _directories(place) == ["gone-0-stray", "log-0", "log-0-stray"]
    await life.stop()


async def test_a_stray_that_the_disk_refuses_keeps_no_start_from_its_other_logs() -> None:
    """Seed 3322 of three brokers, late: EIO on the file that says whose a log is ended every start with exit 4, for as
    long as the disk refused it, where an opening that meets the same leaves the others alone. It lies where it lay."""
    place = Place()
    life = await place.start()
    await life.create("mine")
    await life.create("gone")
    await life.produce("mine", b"a")
    topic_id = life.context.metadata.topic("gone").topic_id
    await life.stop()
    root = ClusterRoot(place.store, SeededRng("others"), life.clock, life.workers)
    found = await root.load()
    assert found is not None
    began = session("i2", node_id=2, broker_epoch=found.image.next_broker_epoch)
    await root.claim(found.cluster_id, Controller(2, "i2"), lambda _: [began])
    await root.commit([TopicDeleted(topic_id), TopicPurged(topic_id)])

    place.disk.inject("read", errno.EIO, PARTITION_METADATA_FILE, times=-1, below="/data/a/gone-0")
    life = await place.start(take_over=True)
    assert (await life.produce("mine", b"b")).base_offset == 1
    assert _directories(place) == ["gone-0", "mine-0"]
    assert "read the topic id of gone-0" in str(life.broker.health.failures)
    await life.stop()
    place.disk.heal()
    life = await place.start()
    assert _directories(place) == ["gone-0-stray", "mine-0"]
    await life.stop()


async def test_a_deletion_that_was_purged_before_this_broker_looked_leaves_its_log_aside() -> None:
    """It jumps over both records: the image does not name the topic, which is no proof."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"a")
    topic_id = life.context.metadata.topic("log").topic_id
    await commit(life, TopicDeleted(topic_id), TopicPurged(topic_id), TopicCreated(id_of(9), "log", (row(1),), {}))
    await life.context.controller.opened(life.context.metadata.topic("log"))
    assert (await life.produce("log", b"b")).base_offset == 0
    assert _directories(place) == ["log-0", "log-0-stray"]
    await life.stop()


async def test_a_copy_of_a_topic_made_again_waits_until_the_log_before_is_closed() -> None:
    """Found by reading: who copies did not wait for the turn of the name. A broker that learned of the deletion and of
    the new topic at once moved the old log away while it was open; what was still written beside its segments, by path
    (producers, epochs), went into the new topic's directory: a log that claims another one's lineage and end."""
    pair = await both(remote_storage_enable="false", internal_segment_bytes="1000")
    for _ in range(30):
        assert (await pair.lives[1].produce(NAME, b"x" * 100)).error_code == 0
    copy = pair.followed(2)
    assert copy is not None
    await until(lambda: copy.follower.end == 30, "all is copied")
    old, workers, goes_on = copy.opened, pair.lives[2].workers, asyncio.Event()
    run = workers.run

    async def slow(function: Any, *args: Any, **named: Any) -> Any:
        if isinstance(getattr(function, "__self__", None), SealJob):
            await goes_on.wait()
        return await run(function, *args, **named)

    workers.run = slow  # type: ignore[method-assign]
    old.log.roll()
    old.flusher.request()
    await until(lambda: old.flusher._states.is_sealing, "it writes what belongs beside the sealed segment")
    new = Row((1, 2), 1, 0, 0, (1, 2), 0)
    pair.note(TopicDeleted(TOPIC_ID), TopicPurged(TOPIC_ID), TopicCreated(id_of(78), NAME, (new,), {}))
    pair.publish()
    await asyncio.sleep(30)
    goes_on.set()
    replicas: Any = pair.lives[2].replicas
    await until(lambda: not replicas._logs.is_open(old), "the old log is closed")
    await until(lambda: (now := pair.followed(2)) is not None and now is not copy, "2 follows the new one")
    names = pair.places[2].disk.list_dir("/data/a/log-0")
    assert {name.split(".")[0] for name in names if name.startswith("0")} == {"0" * 20}, names
    assert _directories(pair.places[2]) == ["log-0", "log-0-stray"]
    await pair.stop()


async def test_what_others_lead_now_is_moved_aside_by_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And stays whole there. The process ended before it did anything about the row that it saw (ADR 20)."""
    monkeypatch.setattr(ReplicaOwner, "drop", lambda *_, **__: None)
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.create("mine")
    await life.produce("log", b"a")
    await join(life, 2)
    await move(life, "log", 0, 2)
    await life.stop()
    assert _directories(place) == ["log-0", "mine-0"]
    life = await place.start()
    assert _directories(place) == ["log-0-stray", "mine-0"]
    (moved,) = (name for name in place.disk.list_dir("/data/a") if name.endswith("-stray"))
    log = f"/data/a/{moved}/00000000000000000000.log"
    found = place.disk.stat(log)
    assert found is not None and found.size > 60
    shown = json.loads(await life.broker.views.broker())
    assert shown["cluster"]["strays"] == [moved], "cluster status names it"
    assert (await life.produce("mine", b"a")).error_code == 0
    await life.stop()


async def test_only_the_controllers_broker_purges_and_the_next_controllers_takes_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another broker removes its own files only; it deletes no object and asks for no record."""
    purge_topic, purged = TierService.purge_topic, []

    async def counted(self: TierService, topic_id: UUID, partitions: int, may_delete: Callable[[], bool]) -> bool:
        purged.append(str(topic_id))
        return await purge_topic(self, topic_id, partitions, may_delete)

    monkeypatch.setattr(TierService, "purge_topic", counted)
    place = Place()
    life = await place.start()
    await join(life, 2)
    await life.create("log")
    await life.produce("log", b"a")
    topic = life.context.metadata.topic("log")
    publisher = cast(Any, life.context.controller)._commit_queue._feed._publisher  # faster than this broker's next poll
    image = life.context.metadata.image.with_records([TopicDeleted(topic.topic_id)])
    publisher.publish(image, ControllerAt(2, "i2", 2))
    async with asyncio.timeout(1):
        while _directories(place):
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    assert purged == [] and any(topic.topic_id in key for key in place.memory.objects)
    assert not life.broker.health.failures

    publisher.publish(image, ControllerAt(1, "i1", 3))
    async with asyncio.timeout(1):
        while any(topic.topic_id in key for key in place.memory.objects):
            await asyncio.sleep(0.001)
    assert purged == [topic.topic_id]
    await life.crash()


async def test_cluster_d77_an_older_image_that_is_put_back_deletes_nothing() -> None:
    """A running broker obeys none below its own; one that starts on it moves the log aside, and every object stays."""
    place = Place()
    life = await place.start()
    older = place.memory.objects["cluster.json"]
    await life.create("log", **SMALL_SEGMENTS)
    for _ in range(20):
        await life.produce("log", b"x" * 100)
    topic_id = life.context.metadata.topic("log").topic_id
    partition = life.partition("log")
    async with asyncio.timeout(60):
        while partition.tier.remote_end_offset < 10:
            await asyncio.sleep(0.1)
    newer = place.memory.objects["cluster.json"]
    place.memory.objects["cluster.json"] = older
    await asyncio.sleep(30)
    assert life.context.metadata.topic_named("log") is not None, "its own image is newer"
    assert (await life.produce("log", b"x")).error_code == 0
    assert newer.etag != older.etag
    await life.crash()
    place.kill()

    life = await place.start(take_over=True)
    assert life.context.metadata.topic_named("log") is None
    before = {key for key in place.memory.objects if topic_id in key}
    await asyncio.sleep(60)
    assert before == {key for key in place.memory.objects if topic_id in key}
    assert len(before) > 3 and _directories(place) == ["log-0-stray"]
    await life.stop()
