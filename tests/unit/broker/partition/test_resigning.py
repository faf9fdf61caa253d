"""Leaderships end one at a time: a fenced partition resigns, its neighbours and the broker go on."""

from __future__ import annotations

import asyncio
from uuid import UUID

import msgspec
import pytest

from broker.error_codes import ErrorCode
from broker.metadata.image import Topic
from broker.observe.tier_view import status_json
from broker.partition.leading.leader_replica import LeaderReplica
from coldstore.manifest.manifest_store import ManifestStore
from coldstore.stores.operations import Operation
from logformat.errors import Fenced
from seams.rng import SeededRng
from tests.support.brokers.broker_kit import Life, Place
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.store.faulty_store import Fault, FaultPlan
from tiering.opening.reservation import read_reservation, write_reservation

OTHER_EPOCH = 900


class Told:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def led(self, partition: LeaderReplica) -> None:
        self.heard.append(f"led {partition.topic}-{partition.index} in {partition.leader_epoch}")

    def resigned(self, topic: str, index: int) -> None:
        self.heard.append(f"resigned {topic}-{index}")

    def withdrawn(self, topic: str) -> None:
        self.heard.append(f"withdrawn {topic}")


async def _led_by_another(place: Place, life: Life, topic_id: UUID, *, reserve: int = 0) -> None:
    """Somebody claims partition 0 in a higher epoch; with `reserve` it also gave offsets below that."""
    store = ManifestStore(place.memory, topic_id, 0, SeededRng(9), life.clock)
    manifest = await store.claim(OTHER_EPOCH, "log", {})
    if reserve:
        await store.commit(lambda m: m.reserve(manifest.reserved_end_offset + reserve))


async def _fenced(life: Life) -> LeaderReplica:
    """Let partition 0 of `log` meet its root's new epoch."""
    partition = life.partition("log", 0)
    partition.tier.reserve_soon(partition.log.reserved_end + 1)
    async with asyncio.timeout(60.0):
        while partition.leading:
            await asyncio.sleep(0.1)
    return partition


async def test_a_fenced_partition_resigns_alone() -> None:
    """Before, the gate of the whole broker shut, and nothing was answered to anybody until the process ended."""
    place = Place()
    life = await place.start()
    told = Told()
    assert life.replicas is not None
    life.replicas.watch(told)
    topic_id = await life.create("log", 2)
    await life.produce("log", b"before")
    await _led_by_another(place, life, topic_id)
    partition = await _fenced(life)

    assert (await life.produce("log", b"late")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await life.fetch("log", 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await life.produce("log", b"other", index=1)).error_code == ErrorCode.NONE
    assert await life.read_all("log", 1) == [(0, b"other")]
    assert life.context.gate.is_open() and partition.log.log_end_offset == 1
    assert told.heard[-1] == "resigned log-0"
    assert life.broker._sources is not None
    status = msgspec.json.decode(status_json(life.broker._sources))
    assert [(of["leader"], of["blocked_by"]) for of in status if of["topic"] == "log"] == [
        (-1, "fenced"),
        (1, None),
    ]
    await life.stop()
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is not None


def in_the_next_epoch(topic: Topic, leader_epoch: int = -1) -> Topic:
    """The topic as the image has it when its first partition is to be led again."""
    row = topic.rows[0]
    epoch = max(leader_epoch, row.leader_epoch + 1)
    row = msgspec.structs.replace(row, leader_epoch=epoch, partition_epoch=row.partition_epoch + 1)
    return msgspec.structs.replace(topic, rows=(row, *topic.rows[1:]))


async def test_who_waits_for_an_acknowledgement_learns_at_once_that_the_leader_resigned() -> None:
    """Not when the request's timeout is over: the client would wait in vain, and then not know where to go."""
    place = Place()
    life = await place.start()
    await life.create("log", 1)
    replicas, loop = life.replicas, asyncio.get_running_loop()
    partition = life.partition("log", 0)
    waiting = partition.visible(5, loop.time() + 1000.0)
    assert waiting is not None
    began_s = loop.time()
    replicas.resign(life.context.registry.topics["log"], [0])
    assert waiting.done() and waiting.exception() is not None and loop.time() == began_s
    assert not partition.leading and partition.log.owner is not partition
    await life.stop()


async def test_a_partition_leads_again_in_a_higher_epoch() -> None:
    """The same log, without a gap where nobody else gave offsets; what was read from it is still there."""
    place = Place()
    life = await place.start()
    replicas = life.replicas
    await life.create("log", 1)
    await life.produce("log", b"a")
    topic, before = life.context.registry.topics["log"], life.partition("log", 0)
    replicas.resign(topic, [0])
    assert (await life.produce("log", b"b")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    told = Told()
    replicas.watch(told)
    topic = in_the_next_epoch(topic)
    replicas.lead(topic, [0])
    await replicas.opened(topic.topic_id)
    assert life.partition("log", 0) is before and before.leading
    assert told.heard == [f"led log-0 in {topic.rows[0].leader_epoch}"]
    assert (await life.produce("log", b"b")).base_offset == 1
    assert await life.read_all("log") == [(0, b"a"), (1, b"b")]
    await life.stop()


async def test_who_waits_for_offsets_learns_at_once_that_the_leader_resigned() -> None:
    """Not when the bucket had all its time to give some."""
    place = Place()
    life = await place.start()
    replicas, tiers, loop = (
        life.replicas,
        life.tiers,
        asyncio.get_running_loop(),
    )
    assert replicas is not None and tiers is not None
    await life.create("log", 1, remote_storage_enable="true")
    await life.produce("log", b"a")
    await tiers.seal_all(None)
    place.store.down = True
    producing = loop.create_task(life.produce("log", b"b"))
    await asyncio.sleep(0.5)
    assert not producing.done()
    began_s = loop.time()
    replicas.resign(life.context.registry.topics["log"], [0])
    assert (await producing).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert loop.time() - began_s < 0.1
    place.store.down = False
    await life.stop()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_seal_ends_when_its_partition_is_led_no_more(*, is_deleted: bool) -> None:
    """Nobody copies it from then on: it waited for ever, or as long as its caller did."""
    place = Place()
    life = await place.start()
    replicas, tiers = life.replicas, life.tiers
    await life.create("log", 1, remote_storage_enable="true")
    await life.produce("log", b"a")
    place.store.down = True
    sealing = asyncio.get_running_loop().create_task(tiers.seal_all(["log"]))
    await asyncio.sleep(5.0)
    assert not sealing.done()
    topic = life.context.registry.topics["log"]
    if is_deleted:
        replicas.withdraw(topic)
    else:
        replicas.resign(topic, [0])
    with pytest.raises(Fenced):
        async with asyncio.timeout(60.0):
            await sealing
    place.store.down = False
    await life.stop()


async def test_what_was_not_synced_when_its_leader_resigned_is_synced_in_time() -> None:
    """flush.ms is the log's, whoever leads: records stayed unsynced until the next append, however late it came."""
    life = await Place("thermocline.flush=os", "log.flush.interval.ms=1000").start()
    replicas = life.replicas
    await life.create("log", 1)
    await life.produce("log", b"a")
    partition = life.partition("log", 0)
    replicas.resign(life.context.registry.topics["log"], [0])
    assert partition.log.dirty_bytes > 0
    await asyncio.sleep(5.0)
    assert partition.log.dirty_bytes == 0 and partition not in life.context.registry.touched
    await life.stop()


async def test_a_reservation_that_was_under_way_when_its_leader_resigned_is_no_gap() -> None:
    """Nobody else led: offsets that only the root knows of were given to nobody. A million were declared lost."""
    place = Place()
    life = await place.start()
    replicas = life.replicas
    await life.create("log", 1)
    await life.produce("log", b"a")
    partition, topic = life.partition("log", 0), life.context.registry.topics["log"]
    ours, store = (
        partition.log.reserved_end,
        ManifestStore(place.memory, partition.topic_id, 0, SeededRng(9), life.clock),
    )
    place.store.plan = FaultPlan(latency_s=(1.0, 1.0))
    place.store.script(Operation.PUT_ROOT, Fault.LOST)
    partition.tier.reserve_soon(ours + 1)
    async with asyncio.timeout(60.0):
        while (found := await store.load()) is None or found.reserved_end_offset == ours:
            await asyncio.sleep(0.01)
    assert partition.log.reserved_end == ours
    topic = in_the_next_epoch(topic)
    replicas.resign(topic, [0])
    replicas.lead(topic, [0])
    await replicas.opened(topic.topic_id)
    assert life.partition("log", 0).tier.lost is None
    place.store.plan = FaultPlan()
    assert (await life.produce("log", b"b")).base_offset == 1
    await life.stop()


async def test_a_reservation_given_back_while_its_leader_resigned_is_not_used() -> None:
    """What the root says when it is claimed again bounds the offsets, whatever was read of the copy on disk."""
    place = Place()
    life = await place.start()
    replicas, tiers = life.replicas, life.tiers
    await life.create("log", 1, remote_storage_enable="true")
    await life.produce("log", b"a")
    partition, topic = life.partition("log", 0), life.context.registry.topics["log"]
    directory = place.disk.open_dir(partition.log.path)
    copy = read_reservation(directory, partition.topic_id, 0)
    assert copy is not None and copy.reserved_end > 1
    await tiers.seal_all(None)  # the root reserves nothing any more
    replicas.resign(topic, [0])
    write_reservation(directory, copy)  # as it is read when the release is under way
    leading = asyncio.Event()
    at_first: list[int] = []

    class Noting(Told):
        def led(self, partition: LeaderReplica) -> None:
            at_first.append(partition.log.reserved_end)
            leading.set()

    replicas.watch(Noting())
    replicas.lead(in_the_next_epoch(topic), [0])
    await leading.wait()
    found = await ManifestStore(place.memory, partition.topic_id, 0, SeededRng(9), life.clock).load()
    assert found is not None and at_first[0] <= found.reserved_end_offset
    await life.stop()


async def _claimed_epoch(place: Place, life: Life, topic: Topic) -> int:
    manifest = await ManifestStore(place.memory, UUID(topic.topic_id), 0, SeededRng(9), life.clock).load()
    assert manifest is not None
    return manifest.leader_epoch


async def _claiming(*, answered_first: bool) -> tuple[Place, Life, Topic, LeaderReplica]:
    """A broker that claims its log in the next epoch. Topic and partition are those of before."""
    place = Place()
    life = await place.start()
    await life.create("log", 1)
    await life.produce("log", b"a")
    topic, before = life.context.registry.topics["log"], life.partition("log", 0)
    life.replicas.resign(topic, [0])
    if answered_first:
        place.store.plan = FaultPlan(latency_s=(1.0, 1.0))
    else:
        place.store.down = True
    life.replicas.lead(in_the_next_epoch(topic), [0])
    await asyncio.sleep(0.5)
    return place, life, topic, before


@pytest.mark.parametrize("answered_first", [False, True])
async def test_a_leadership_that_ends_while_its_claim_is_under_way_gives_way_to_the_next(
    *, answered_first: bool
) -> None:
    """One partition over the log, in the newest epoch: whether the first claim gets its answer, or is made again."""
    place, life, topic, before = await _claiming(answered_first=answered_first)
    replicas, second = life.replicas, in_the_next_epoch(in_the_next_epoch(topic))
    replicas.resign(second, [0])
    replicas.lead(second, [0])
    place.store.down = False
    async with asyncio.timeout(60.0):
        await replicas.opened(topic.topic_id)
    partition = life.partition("log", 0)
    assert partition is before and partition.leading
    assert partition.leader_epoch == second.rows[0].leader_epoch == await _claimed_epoch(place, life, topic)
    assert partition.log.owner is partition
    assert (await life.produce("log", b"b")).base_offset == 1
    await life.stop()


@pytest.mark.parametrize("answered_first", [False, True])
async def test_a_leadership_that_ends_while_its_claim_is_under_way_is_not_begun(*, answered_first: bool) -> None:
    """And nothing is claimed in the epoch of whoever leads then."""
    place, life, topic, _ = await _claiming(answered_first=answered_first)
    replicas, first = life.replicas, in_the_next_epoch(topic)
    row = msgspec.structs.replace(in_the_next_epoch(first, OTHER_EPOCH).rows[0], leader=2)
    replicas.resign(msgspec.structs.replace(first, rows=(row,)), [0])
    place.store.down = False
    async with asyncio.timeout(60.0):
        await replicas.opened(topic.topic_id)
    assert (await life.produce("log", b"b")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await _claimed_epoch(place, life, topic) < OTHER_EPOCH
    assert not life.replicas.damaged
    await life.stop()


async def test_offsets_that_another_leader_may_have_given_are_not_given_again() -> None:
    """It leads again where the other's reservation ends, and declares what lies in between a gap."""
    place = Place()
    life = await place.start()
    replicas = life.replicas
    topic_id = await life.create("log", 1)
    await life.produce("log", b"a")
    ours = life.partition("log", 0).log.reserved_end
    await _led_by_another(place, life, topic_id, reserve=1000)
    await _fenced(life)
    topic = in_the_next_epoch(life.context.registry.topics["log"], OTHER_EPOCH + 1)
    replicas.lead(topic, [0])
    await replicas.opened(topic.topic_id)
    partition = life.partition("log", 0)
    assert partition.tier.lost == (1, ours + 1000)
    assert (await life.produce("log", b"b")).base_offset == ours + 1000
    found = await life.read_all("log")
    assert (found[0], found[-1]) == ((0, b"a"), (ours + 1000, b"b"))
    await life.stop()


def test_a_stop_while_a_tail_is_in_doubt_is_not_clean() -> None:
    """It waits for its claim, since another may have led it meanwhile: the next start must not take it for whole. A
    topic that is being made waits, too, and holds nothing that could be lost."""

    async def scenario(*, is_made: bool) -> None:
        place = Place()
        life = await place.start()
        replicas = life.replicas
        await life.create("log", 1)
        await life.produce("log", b"a")
        topic = life.context.registry.topics["log"]
        if is_made:
            replicas.resign(topic, [0])
        place.store.down = True
        if is_made:
            replicas.lead(in_the_next_epoch(topic), [0])
        else:
            replicas.lead(msgspec.structs.replace(topic, topic_id=str(UUID(int=7)), name="other"), [0])
        await asyncio.sleep(5.0)
        await life.stop()
        assert (place.disk.stat("/data/a/.kafka_cleanshutdown") is None) == is_made

    run_fast(scenario(is_made=True), timeout_s=HOUR_S)
    run_fast(scenario(is_made=False), timeout_s=HOUR_S)
