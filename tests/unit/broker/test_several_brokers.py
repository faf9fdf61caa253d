"""Brokers over one bucket, each leading some partitions: what their clients are told, and what becomes of a broker."""

from __future__ import annotations

import asyncio
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.groups.records import partition_of
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from coldstore.stores.operations import Operation
from tests.support.brokers.broker_kit import Life, Place, batch_of, produce_request
from tests.support.store.faulty_store import Fault
from tests.support.waiting import until

NONE = ErrorCode.NONE
Brokers = dict[int, Life]


async def two_brokers(place: Place) -> Brokers:
    """Both registered, and both know it."""
    brokers = {1: await place.start("node.id=1"), 2: await place.start("node.id=2", directory="b")}
    await until(lambda: all(len(actives(life)) == 2 for life in brokers.values()))
    return brokers


async def _three(place: Place) -> Brokers:
    brokers = await two_brokers(place)
    brokers[3] = await place.start("node.id=3", directory="c")
    await until(lambda: all(len(actives(life)) == 3 for life in brokers.values()))
    return brokers


def actives(life: Life) -> list[int]:
    return [node_id for node_id, node in life.context.metadata.image.nodes.items() if node.active]


async def made(brokers: Brokers, asked: Life, name: str, partitions: int) -> list[int]:
    """Create a topic at one broker, wait until all serve it; the leaders of its partitions."""
    wanted = CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=1)
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)
    (answer,) = (await asked.call(ApiKey.CREATE_TOPICS, request)).topics
    assert answer.error_code == NONE, answer
    await until(lambda: all(life.context.metadata.topic_named(name) for life in brokers.values()))
    leaders = [row.leader for row in asked.context.metadata.topic(name).rows]
    await until(
        lambda: all((name, index) in brokers[at].context.registry.partitions for index, at in enumerate(leaders))
    )
    return leaders


async def serves(life: Life, name: str, index: int) -> None:
    await until(lambda: (name, index) in life.context.registry.partitions)


async def shown(life: Life, name: str) -> list[tuple[int, int]]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    (topic,) = (await life.call(ApiKey.METADATA, request)).topics
    return [(partition.error_code, partition.leader_id) for partition in topic.partitions]


async def test_each_broker_serves_its_share_and_sends_clients_to_the_other() -> None:
    """Any of them takes what only one decides. Leaders are spread evenly, both say the same, and whoever does not lead
    sends producers to who does."""
    brokers = await two_brokers(Place())
    for asked, name in ((brokers[1], "a"), (brokers[2], "b")):
        leaders = await made(brokers, asked, name, 4)
        assert sorted(leaders) == [1, 1, 2, 2]
        for life in brokers.values():
            assert await shown(life, name) == [(NONE, leader) for leader in leaders]
        for index, leader in enumerate(leaders):
            other = brokers[3 - leader]
            refused = await other.produce(name, b"x", index=index)
            assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await brokers[leader].produce(name, b"x", index=index)).error_code == NONE
            assert await brokers[leader].read_all(name, index) == [(0, b"x")]
    for life in brokers.values():
        metadata = await life.call(ApiKey.METADATA, MetadataRequest(topics=[]))
        assert [each.node_id for each in metadata.brokers] == [1, 2]
        assert metadata.controller_id == 1
    for life in reversed(brokers.values()):
        await life.stop()


async def _coordinator(brokers: Brokers, asked: Life, group: str) -> int:
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    async with asyncio.timeout(120):
        while True:
            (found,) = (await asked.call(ApiKey.FIND_COORDINATOR, request)).coordinators
            if found.error_code == NONE:
                assert (found.host, found.port) == ("127.0.0.1", 9000 + found.node_id)
                return int(found.node_id)
            await asyncio.sleep(0.1)


async def _commit(life: Life, group: str, topic: str, offset: int, metadata: str = "") -> int:
    row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[row])])
    return int((await life.call(ApiKey.OFFSET_COMMIT, request, 8)).topics[0].partitions[0].error_code)


async def _committed(life: Life, group: str, topic: str, offset: int, metadata: str = "") -> None:
    """As a client does: asks again while the coordinator is on its way to its office."""
    async with asyncio.timeout(60):
        while (code := await _commit(life, group, topic, offset, metadata)) != NONE:
            assert code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), code
            await asyncio.sleep(0.1)


async def _position(life: Life, group: str, topic: str) -> int:
    request = OffsetFetchRequest(group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])])
    async with asyncio.timeout(60):
        while (answer := await life.call(ApiKey.OFFSET_FETCH, request, 5)).error_code != NONE:
            await asyncio.sleep(0.1)
    return int(answer.topics[0].partitions[0].committed_offset)


def _group_in(partition: int) -> str:
    return next(f"g{at}" for at in range(100) if partition_of(f"g{at}", 2) == partition)


async def test_groups_are_spread_and_keep_positions_in_topics_of_both() -> None:
    """Asked of the broker that does not decide. A deleted topic's positions go at both, its files at both, its objects
    once; those of the topic that stays do not."""
    place = Place("offsets.retention.check.interval.ms=1000")
    brokers = await two_brokers(place)
    for name in ("stays", "goes"):
        await made(brokers, brokers[1], name, 2)
    groups = [_group_in(0), _group_in(1)]
    at = {group: await _coordinator(brokers, brokers[2], group) for group in groups}
    assert sorted(at.values()) == [1, 2]
    for group, node_id in at.items():
        await _committed(brokers[node_id], group, "stays", 5)
        await _committed(brokers[node_id], group, "goes", 6)
        assert await _commit(brokers[3 - node_id], group, "stays", 7) == ErrorCode.NOT_COORDINATOR

    topic_id = brokers[1].context.metadata.topic("goes").topic_id
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="goes")], timeout_ms=30_000)
    (deleted,) = (await brokers[2].call(ApiKey.DELETE_TOPICS, request)).responses
    assert deleted.error_code == NONE
    await until(lambda: not any(topic_id in key for key in place.memory.objects))
    await until(lambda: not any(life.context.metadata.image.deleted for life in brokers.values()))
    for directory in "ab":
        names = place.disk.list_dir(f"/data/{directory}")
        assert not any(name.startswith("goes") for name in names), names
    await asyncio.sleep(10)
    for group, node_id in at.items():
        assert await _position(brokers[node_id], group, "stays") == 5
        assert await _position(brokers[node_id], group, "goes") == -1
    assert brokers[1].context.metadata.topic(OFFSETS_TOPIC).internal
    for life in reversed(brokers.values()):
        await life.stop()


async def test_a_broker_that_dies_takes_its_partitions_and_groups_and_brings_them_back() -> None:
    """The other goes on, and says that they have no leader."""
    place = Place("offsets.topic.replication.factor=1")
    brokers = await two_brokers(place)
    leaders = await made(brokers, brokers[1], "log", 4)
    for index, leader in enumerate(leaders):
        assert (await brokers[leader].produce("log", b"before", index=index)).error_code == NONE
    led = {await _coordinator(brokers, brokers[1], group): group for group in map(_group_in, (0, 1))}
    group = led[2]
    await _committed(brokers[2], group, "log", 1)

    await brokers[2].crash()
    one = brokers[1]
    await until(lambda: actives(one) == [1])
    lost = [(ErrorCode.LEADER_NOT_AVAILABLE, -1)]
    assert await shown(one, "log") == [(NONE, 1) if leader == 1 else lost[0] for leader in leaders]
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    (found,) = (await one.call(ApiKey.FIND_COORDINATOR, request)).coordinators
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    for index, leader in enumerate(leaders):
        code = (await one.produce("log", b"meanwhile", index=index)).error_code
        assert code == (NONE if leader == 1 else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    brokers[2] = await place.start("node.id=2", directory="b")
    await until(lambda: actives(one) == [1, 2])
    for index, leader in enumerate(leaders):
        await serves(brokers[leader], "log", index)
        values = [value for _, value in await brokers[leader].read_all("log", index)]
        assert values == ([b"before", b"meanwhile"] if leader == 1 else [b"before"])
    assert await shown(one, "log") == [(NONE, leader) for leader in leaders]
    assert await _position(brokers[2], group, "log") == 1
    for life in reversed(brokers.values()):
        await life.stop()


async def test_groups_survive_their_coordinator_where_its_partition_has_replicas() -> None:
    """Three brokers, so three replicas; one dies: another that has all its records leads, loads, and answers with what
    was committed."""
    place = Place("offsets.topic.num.partitions=3")
    brokers = await _three(place)
    await made(brokers, brokers[1], "log", 1)
    groups = [next(f"g{at}" for at in range(100) if partition_of(f"g{at}", 3) == index) for index in range(3)]
    at = {group: await _coordinator(brokers, brokers[1], group) for group in groups}
    assert sorted(at.values()) == [1, 2, 3]
    for group, node_id in at.items():
        await _committed(brokers[node_id], group, "log", 5)
    await brokers[2].crash()
    await until(lambda: actives(brokers[1]) == [1, 3])
    for group in groups:
        node_id = await _coordinator(brokers, brokers[1], group)
        assert node_id != 2
        assert await _position(brokers[node_id], group, "log") == 5
        await _committed(brokers[node_id], group, "log", 6)
    for node_id in (3, 1):
        await brokers[node_id].stop()


async def test_a_broker_that_restarts_gets_its_replicas_of_topics_created_meanwhile() -> None:
    """As in Kafka: its replicas join the in-sync sets, of ordinary and of internal topics, and can lead. The first was
    refused until then, and the second had fewer replicas for ever."""
    place = Place("offsets.topic.num.partitions=3")
    brokers = await _three(place)
    await brokers[3].crash()
    one = brokers[1]
    await until(lambda: actives(one) == [1, 2])
    wanted = CreateTopicsRequestTopic(name="log", num_partitions=1, replication_factor=3)
    (created,) = (await one.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[wanted], timeout_ms=30_000))).topics
    assert created.error_code == NONE, created
    group = "g"
    node_id = await _coordinator(brokers, one, group)
    await _committed(brokers[node_id], group, "log", 5)
    image = one.context.metadata
    rows = [row for name in ("log", OFFSETS_TOPIC) for row in image.topic(name).rows]
    assert all(row.replicas[2] == 3 and set(row.in_sync) == {1, 2} for row in rows)

    brokers[3] = await place.start("node.id=3", directory="c")
    await until(lambda: all(len(row.in_sync) == 3 for name in ("log", OFFSETS_TOPIC) for row in image.topic(name).rows))
    await brokers[2].crash()
    await until(lambda: actives(one) == [1, 3])
    assert await _position(brokers[await _coordinator(brokers, one, group)], group, "log") == 5
    for node_id in (3, 1):
        await brokers[node_id].stop()


async def test_cluster_d46_a_new_coordinator_loads_its_groups_though_the_bucket_holds_nothing_it_can_read() -> None:
    """The store went away for them when their coordinator died: what is committed is on every replica's disk."""
    place = Place("offsets.topic.num.partitions=3")
    brokers = await _three(place)
    await made(brokers, brokers[1], "log", 1)
    groups = [next(f"g{at}" for at in range(100) if partition_of(f"g{at}", 3) == index) for index in range(3)]
    (group,) = [group for group in groups if await _coordinator(brokers, brokers[1], group) == 2]
    for offset in range(1_100):  # beyond what a log is let grow
        await _committed(brokers[2], group, "log", offset, "m" * 4_000)
    index = groups.index(group)
    await until(lambda: brokers[2].partition(OFFSETS_TOPIC, index).log.log_start_offset > 0)
    await asyncio.sleep(30)  # a snapshot, and the replicas hear of the log start
    topic_id = brokers[1].context.metadata.topic(OFFSETS_TOPIC).topic_id
    for operation in (Operation.GET, Operation.GET_IF_CHANGED, Operation.PUT_ROOT, Operation.PUT_SEGMENT):
        place.store.script(operation, Fault.BEFORE, match=topic_id, times=10**6)
    await brokers[2].crash()
    await until(lambda: actives(brokers[1]) == [1, 3])
    node_id = await _coordinator(brokers, brokers[1], group)
    async with asyncio.timeout(20):
        assert await _position(brokers[node_id], group, "log") == 1_099
        await _committed(brokers[node_id], group, "log", 2_000)
    for node_id in (3, 1):
        await brokers[node_id].crash()


async def test_cluster_r25_a_coordinator_that_no_controller_answered_for_a_session_sends_its_members_away() -> None:
    """Another may have taken commits by then, and be read here as if it had not. "Store away" counts as an answer: an
    outage of the store alone stops no group."""
    place = Place("offsets.topic.num.partitions=3")
    brokers = await _three(place)
    await made(brokers, brokers[1], "log", 1)
    controller = brokers[1].context.metadata.controller
    assert controller is not None and controller.node_id == 1
    groups = [next(f"g{at}" for at in range(100) if partition_of(f"g{at}", 3) == index) for index in range(3)]
    at = {await _coordinator(brokers, brokers[1], group): group for group in groups}
    for node_id, group in at.items():
        await _committed(brokers[node_id], group, "log", 5)
    session_s = brokers[2].context.live.now.times.session_s

    place.store.down = True
    await asyncio.sleep(3 * session_s)
    for node_id, group in at.items():
        assert await _position_now(brokers[node_id], group) == 5

    await brokers[1].crash()
    await asyncio.sleep(session_s - 2)  # the last heartbeat may be parked since 1.5 s before
    assert [await _position_now(brokers[node_id], at[node_id]) for node_id in (2, 3)] == [5, 5]
    await asyncio.sleep(2)
    for node_id in (2, 3):
        assert await _position_now(brokers[node_id], at[node_id]) == ErrorCode.NOT_COORDINATOR
        assert await _commit(brokers[node_id], at[node_id], "log", 6) == ErrorCode.NOT_COORDINATOR
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[at[node_id]])
        (found,) = (await brokers[node_id].call(ApiKey.FIND_COORDINATOR, request)).coordinators
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    place.store.calm()
    for group in groups:
        node_id = await _coordinator(brokers, brokers[2], group)
        assert await _position(brokers[node_id], group, "log") == 5
        await _committed(brokers[node_id], group, "log", 6)
    for node_id in (3, 2):
        await brokers[node_id].crash()


async def _position_now(life: Life, group: str) -> int:
    """The committed offset, or the error: not asked again."""
    request = OffsetFetchRequest(group_id=group, topics=[OffsetFetchRequestTopic(name="log", partition_indexes=[0])])
    answer = await life.call(ApiKey.OFFSET_FETCH, request, 5)
    return int(answer.error_code or answer.topics[0].partitions[0].committed_offset)


async def test_a_deletion_outlives_the_controller_that_began_it() -> None:
    """It dies between objects, the record stands: the next one begins again. What the leader of a partition uploaded
    while the objects went goes too; each broker's files go by themselves, also of one that was away meanwhile."""
    place = Place("offsets.topic.replication.factor=1")
    brokers = await two_brokers(place)
    await made(brokers, brokers[1], "log", 4)
    topic_id = brokers[1].context.metadata.topic("log").topic_id
    place.store.script(Operation.DELETE, Fault.BEFORE, times=10_000)
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="log")], timeout_ms=30_000)
    (deleted,) = (await brokers[2].call(ApiKey.DELETE_TOPICS, request)).responses
    assert deleted.error_code == NONE
    await until(lambda: place.store.hits[Fault.BEFORE] > 1)
    await brokers[1].crash()
    two = brokers[2]
    await until(lambda: two.context.metadata.is_decided_by(2))
    assert any(topic_id in key for key in place.memory.objects)
    place.store.calm()
    await until(lambda: not any(topic_id in key for key in place.memory.objects))
    brokers[1] = await place.start("node.id=1", directory="a")
    await until(lambda: not two.context.metadata.image.deleted)

    assert sorted(await made(brokers, brokers[1], "late", 2)) == [1, 2]
    late_id = brokers[1].context.metadata.topic("late").topic_id
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="late")], timeout_ms=30_000)
    await brokers[1].call(ApiKey.DELETE_TOPICS, request)
    await until(lambda: not any(late_id in key for key in place.memory.objects))
    stray = f"topics/{late_id}/1/segments/{0:020d}-0-{UUID(int=5)}.log"
    place.memory.objects[stray] = next(iter(place.memory.objects.values()))  # an upload that was under way
    await until(lambda: not any(life.context.metadata.image.deleted for life in brokers.values()))
    assert stray not in place.memory.objects
    for directory in "ab":
        names = place.disk.list_dir(f"/data/{directory}")
        assert not any(name.startswith("late") for name in names), names
    for life in reversed(brokers.values()):
        await life.stop()


async def _producer_id(life: Life) -> int:
    answer = await life.call(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest(transactional_id=None))
    assert answer.error_code == NONE and answer.producer_epoch == 0
    return int(answer.producer_id)


async def test_cluster_d47_no_two_brokers_give_one_producer_id_whatever_became_of_store_and_sessions() -> None:
    """They are made of the broker epoch, which one session has: with the store away, after a session ended and began
    anew, after a restart."""
    place = Place("offsets.topic.num.partitions=3")
    brokers = await _three(place)
    given = [await _producer_id(life) for life in brokers.values() for _ in range(3)]
    place.store.down = True
    await asyncio.sleep(60)
    given += [await _producer_id(life) for life in brokers.values() for _ in range(3)]
    place.store.calm()
    before = brokers[1].context.metadata.image.nodes[3].broker_epoch
    await brokers[3].crash()
    await until(lambda: actives(brokers[1]) == [1, 2])
    brokers[3] = await place.start("node.id=3", directory="c")
    await until(lambda: actives(brokers[1]) == [1, 2, 3])
    assert brokers[1].context.metadata.image.nodes[3].broker_epoch > before
    given += [await _producer_id(life) for life in brokers.values() for _ in range(3)]
    assert len(set(given)) == len(given) == 27
    for life in brokers.values():
        await life.crash()


async def test_a_new_leader_knows_the_last_five_batches_of_a_producer() -> None:
    """What the dead leader acknowledged, or appended and did not live to acknowledge, is a resend there: answered with
    its offset, and not appended again. What follows is taken; what is older is refused."""
    place = Place("offsets.topic.num.partitions=3")
    brokers = await _three(place)
    wanted = CreateTopicsRequestTopic(name="log", num_partitions=1, replication_factor=3)
    (made,) = (await brokers[1].call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[wanted]))).topics
    assert made.error_code == NONE

    def leader() -> int:
        found = brokers[2].context.metadata.topic_named("log")
        return -1 if found is None else found.rows[0].leader

    await until(lambda: leader() > 0)
    old = leader()
    await serves(brokers[old], "log", 0)
    producer_id = await _producer_id(brokers[2])
    batches = [
        batch_of(b"a%d" % n, b"b%d" % n, producer_id=producer_id, producer_epoch=0, base_sequence=2 * n)
        for n in range(7)
    ]

    async def produced(life: Life, number: int) -> tuple[int, int]:
        request = produce_request("log", batches[number], timeout_ms=20_000)
        answer = (await life.call(ApiKey.PRODUCE, request, 9)).responses[0].partition_responses[0]
        return answer.error_code, answer.base_offset

    for number in range(6):
        assert await produced(brokers[old], number) == (NONE, 2 * number)
    await brokers[old].crash()
    left = {node_id: life for node_id, life in brokers.items() if node_id != old}
    some = next(iter(left.values()))
    await until(lambda: some.context.metadata.topic("log").rows[0].leader in left)
    new = left[some.context.metadata.topic("log").rows[0].leader]
    await until(lambda: ("log", 0) in new.context.registry.partitions)
    for number in range(1, 6):
        assert await produced(new, number) == (NONE, 2 * number)
    assert (await produced(new, 0))[0] in (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    )
    assert new.partition("log").log.log_end_offset == 12
    assert await produced(new, 6) == (NONE, 12)
    for life in left.values():
        await life.crash()
