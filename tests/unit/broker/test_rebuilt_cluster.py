"""A cluster whose `cluster.json` was made anew: who may come, who is waited for, and what nobody deletes (R29)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.controller.broker_rpc import SessionRequest
from broker.controller.decisions.reassignments import Move
from broker.controller.decisions.registrations import forget, register
from broker.controller.unclean_recovery import Candidate, Question, UncleanRecovery, begin
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.membership.identity import BucketIdentity, DirectoryIdentity, Verdict, admit
from broker.membership.lease_watch import LeaseSight
from broker.membership.lost_logs import held_logs
from broker.metadata.image import ClusterImage, check
from broker.metadata.rebuild_root import write_rebuilt
from broker.metadata.rebuilt import UNKNOWN_REPLICA, is_rebuilt
from broker.partition.removing.stray_logs import strays
from broker.partition.removing.topic_deletion import TopicDeletion
from broker.wire.apis import ApiKey
from broker.wire.messages import FindCoordinatorRequest
from coldstore.object_store import PreconditionFailed
from logformat.records import Record, encode_batch
from logformat.values import TopicPartition
from seams.loop.tasks import Tasks
from seams.rng import SeededRng
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import LEASE_S, Place, produce_request
from tests.support.brokers.cluster_kit import CLUSTER, cluster_root, id_of, session
from tests.support.store.memory_store import MemoryStore
from tests.unit.broker.handlers.test_broker_admin import BROKER, TOPIC, altered
from tests.unit.broker.membership.test_broker_membership import lease_of, running
from tests.unit.broker.partition.removing.test_topic_deletion import Removed
from tests.unit.cli.cluster.test_cli_rebuild_plan import found
from thermocline.cli.cluster.restore.rebuild_plan import rebuild_plan

A = UUID(int=1)
PLACE = TopicPartition("log", 0)
LYING = {PLACE: A, TopicPartition("other", 0): UUID(int=9)}
DIRECTORY = DirectoryIdentity(CLUSTER, 1, "d1", has_logs=True, logs=frozenset(LYING))


def rebuilt() -> ClusterImage:
    return rebuild_plan([found(A, "log"), found(A, "log", 1)], {}, 0).image()


def came(image: ClusterImage, node_id: int) -> ClusterImage:
    """A broker registered that has the log of partition 0."""
    asked = SessionRequest(
        node_id, CLUSTER, f"i{node_id}", f"d{node_id}", "boot", (), held_logs=held_logs(image, LYING)
    )
    after = image.with_records(register(image, asked, CLUSTER, is_live=False, is_silent=True).records)
    check(after)
    return after


def test_a_directory_that_the_image_does_not_know_is_let_in_and_says_what_lies_there() -> None:
    """In any other cluster it was taken out; one of another cluster is refused as ever."""
    bucket = BucketIdentity(CLUSTER, {UNKNOWN_REPLICA: "rebuilt"}, is_rebuilt=True)
    assert admit(DIRECTORY, bucket, 1, LeaseSight.RELEASED).verdict is Verdict.RESUME
    assert admit(DIRECTORY, replace(bucket, is_rebuilt=False), 1, LeaseSight.RELEASED).verdict is Verdict.REFUSE
    other = replace(DIRECTORY, cluster_id="another")
    assert admit(other, bucket, 1, LeaseSight.RELEASED).verdict is Verdict.REFUSE
    assert held_logs(rebuilt(), LYING) == ((id_of(1), 0),)


def test_nobody_begins_before_the_unknown_replicas_are_given_up() -> None:
    """Then the replica that keeps most does; nobody registers under the mark's number."""
    image = came(came(rebuilt(), 1), 2)
    assert image.topics[id_of(1)].rows[0].replicas == (UNKNOWN_REPLICA, 1, 2)
    machine = UncleanRecovery(9.0)
    machine.follow(image, 0.0)
    row = image.topics[id_of(1)].rows[0]
    asked = Question((id_of(1), 0), "log", row.leader_epoch)
    for node_id, end in ((1, 50), (2, 70)):
        machine.answered(node_id, image.nodes[node_id].broker_epoch, asked, Candidate(3, end, end))
    assert machine.choose(100.0) == [] and machine.missing()[UNKNOWN_REPLICA] == 2
    machine.follow(image.with_records(forget(image, UNKNOWN_REPLICA).records), 101.0)
    assert [(chosen.place[1], chosen.node_id) for chosen in machine.choose(101.0)] == [(0, 2)]
    mark = SessionRequest(UNKNOWN_REPLICA, CLUSTER, "i", "d", "boot", ())
    with pytest.raises(ApiError) as refused:
        register(image, mark, CLUSTER, is_live=False, is_silent=True)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_choice_does_not_count_if_another_broker_reported_the_log_before_its_commit() -> None:
    """Regression: the choice compared the leader epoch alone, which a reported log does not raise. The partition began
    without the records that the last broker to register held."""
    image = came(rebuilt(), 1)
    image = image.with_records(forget(image, UNKNOWN_REPLICA).records)
    machine = UncleanRecovery(9.0)
    machine.follow(image, 0.0)
    asked = Question((id_of(1), 0), "log", image.topics[id_of(1)].rows[0].leader_epoch)
    machine.answered(1, image.nodes[1].broker_epoch, asked, Candidate(3, 50, 50))
    chosen = machine.choose(0.0)
    assert [one.node_id for one in chosen] == [1]
    later = came(image, 2)
    assert 2 in later.topics[id_of(1)].rows[0].replicas
    assert begin(later, chosen).records == ()
    machine.follow(later, 1.0)
    assert machine.choose(1.0) == [] and set(machine.questions()) == {2}


def test_logs_that_the_image_does_not_name_stay_where_they_are() -> None:
    """It knows too little to call them strays."""
    image = came(rebuilt(), 1)
    lying = {TopicPartition("unheard", 0): UUID(int=9), TopicPartition("log", 1): A}
    assert strays(lying, image, 1) == {}
    known = ClusterImage(
        image.topics, {}, {n: node for n, node in image.nodes.items() if n != UNKNOWN_REPLICA}, 9 << 40
    )
    assert strays(lying, known, 1) == lying


async def test_a_deleted_topics_files_and_objects_stay_until_the_operator_says_done() -> None:
    image, removed = came(rebuilt(), 1), Removed()
    topic = image.topics[id_of(1)]
    metadata = SimpleNamespace(is_decided_by=lambda _: True, image=image)
    forgotten = asyncio.Event()

    async def forget_it(_: object) -> None:
        forgotten.set()

    tasks = Tasks()
    purging = TopicDeletion(
        1,
        cast(Any, metadata),
        cast(Any, removed),
        cast(Any, removed),
        removed.closed,
        forget_it,
        tasks,
        SeededRng(1),
        lambda *_: None,
        9.0,
    )
    purging.purge(topic)
    await asyncio.sleep(600)
    assert not removed.set_asides and not removed.objects and not forgotten.is_set()
    metadata.image = ClusterImage(nodes={1: session()})
    await asyncio.wait_for(forgotten.wait(), 600)
    assert removed.set_asides and removed.objects
    await tasks.close()


async def test_a_rebuilt_root_is_read_and_replaces_no_other() -> None:
    """By compare-and-set; who knew the root before takes it for damage."""
    store, image = MemoryStore(), rebuilt()
    epoch = image.next_broker_epoch - 1
    await write_rebuilt(store, SeededRng(1), CLUSTER, image, epoch, None)
    loaded = await cluster_root(store).load()
    assert loaded is not None and (loaded.image, loaded.epoch, loaded.cluster_id) == (image, epoch, CLUSTER)
    with pytest.raises(PreconditionFailed):
        await write_rebuilt(store, SeededRng(2), CLUSTER, image, epoch, None)


async def test_a_directory_says_that_it_holds_a_topic_by_its_id_not_its_name() -> None:
    """A topic was deleted and made again, and the directory has the log of the first: it was a replica of what it has
    nothing of, and was waited for."""
    place = Place()
    life = await place.start()
    await life.context.controller.create_topic("log", 1, {})
    own = UUID(life.context.metadata.topic("log").topic_id)
    cluster_id = life.context.metadata.cluster_id
    await life.stop()
    for seed, (topic_id, replicas) in enumerate([(A, (UNKNOWN_REPLICA,)), (own, (UNKNOWN_REPLICA, 1))]):
        image = rebuild_plan([found(topic_id, "log")], {}, 0).image()
        del place.memory.objects["cluster.json"]
        await write_rebuilt(place.store, SeededRng(seed), cluster_id, image, image.next_broker_epoch - 1, None)
        life = await place.start()
        assert life.context.metadata.topic("log").rows[0].replicas == replicas
        await life.stop()


async def test_a_compacted_log_is_not_cleaned_until_the_operator_says_done() -> None:
    """The cluster's `log.cleaner.min.compaction.lag.ms` was lost with the root. The cleaner took the default, and
    removed the old values that the lag had kept."""
    place = Place("log.cleaner.backoff.ms=1000")
    life = await place.start()
    lag = (BROKER, "", [("log.cleaner.min.compaction.lag.ms", 0, "604800000")])
    assert await altered(life, lag) == [(0, None)]
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "remote.storage.enable": "false"}
    topic_id = await life.create("log", **configs)
    assert await altered(life, (TOPIC, "log", [("internal.segment.bytes", 0, "1000")])) == [(0, None)]
    await asyncio.sleep(1)
    for at in range(20):
        batch = encode_batch([Record(0, EPOCH_MS, b"k", b"%d" % at * 100)])
        answer = await life.call(ApiKey.PRODUCE, produce_request("log", batch))
        assert answer.responses[0].partition_responses[0].error_code == 0
    await asyncio.sleep(60)
    written = await life.read_all("log")
    assert [offset for offset, _ in written] == list(range(20))  # kept by the lag
    cluster_id = life.context.metadata.cluster_id
    await life.stop()
    image = rebuild_plan([found(topic_id, "log", **configs, **{"internal.segment.bytes": "1000"})], {}, 0).image()
    del place.memory.objects["cluster.json"]
    await write_rebuilt(place.store, SeededRng(1), cluster_id, image, image.next_broker_epoch - 1, None)
    life = await place.start()
    controller, metadata = life.context.controller, life.context.metadata
    await controller.give_up(UNKNOWN_REPLICA, metadata.image.nodes[UNKNOWN_REPLICA].broker_epoch)
    await asyncio.sleep(60)
    assert is_rebuilt(metadata.image)
    assert (await life.read_all("log"))[: len(written)] == written  # the rest closes the reserved offsets
    await controller.reassign([Move("log", 0, (1,))])
    await asyncio.sleep(60)
    await controller.give_up(UNKNOWN_REPLICA, metadata.image.nodes[UNKNOWN_REPLICA].broker_epoch)  # `--done`
    await asyncio.sleep(60)
    assert not is_rebuilt(metadata.image)
    assert written[0] not in await life.read_all("log")
    await life.stop()


async def test_a_group_that_begins_in_a_rebuilt_cluster_does_not_keep_it_rebuilt() -> None:
    """`__consumer_offsets` had replicas on the placeholder, which did not leave at `--done`: nothing was deleted or
    compacted any more."""
    place = Place("offsets.topic.replication.factor=3")
    life = await place.start()
    cluster_id = life.context.metadata.cluster_id
    await life.stop()
    image = rebuild_plan([], {}, 0).image()
    del place.memory.objects["cluster.json"]
    await write_rebuilt(place.store, SeededRng(1), cluster_id, image, image.next_broker_epoch - 1, None)
    life = await place.start()
    controller, metadata = life.context.controller, life.context.metadata
    assert is_rebuilt(metadata.image)
    await life.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key="group"), 1)
    await asyncio.sleep(60)
    assert {row.replicas for row in metadata.topic("__consumer_offsets").rows} == {(1,)}
    await controller.give_up(UNKNOWN_REPLICA, metadata.image.nodes[UNKNOWN_REPLICA].broker_epoch)  # `--done`
    await asyncio.sleep(60)
    assert not is_rebuilt(metadata.image)
    await life.stop()


async def test_a_controller_whose_root_is_gone_shows_that_it_lives() -> None:
    """It bumps the lease, so that nobody rebuilds under it; else a lease that stands would say that nobody runs."""
    place = Place()
    async with running(place):
        del place.memory.objects["cluster.json"]
        await asyncio.sleep(LEASE_S)
        before = (await lease_of(place)).counter
        await asyncio.sleep(LEASE_S)
        assert (await lease_of(place)).counter > before
