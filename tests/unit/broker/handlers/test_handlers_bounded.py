"""What a request names is looked at once: work and waiting grow with the request, never faster."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from typing import Any

import msgspec
import pytest

from broker.config.definitions import BROKER
from broker.context import Call
from broker.error_codes import ErrorCode
from broker.handlers.fetch.list_offsets import handle_list_offsets
from broker.handlers.groups import offsets as groups
from broker.net.dispatch import Peer
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeGroupsRequest,
    FetchRequest,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestGroupTopic,
    OffsetFetchRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from logformat.record_batch import Codec
from logformat.records import Record, encode_batch
from tests.sim.world.clock import EPOCH_MS
from tests.support.brokers.broker_kit import (
    FETCH_BY_NAME,
    NEWEST,
    SMALL_SEGMENTS,
    Life,
    Place,
    batch_of,
    decoded,
    fetch_request,
    parts_of,
    produce_request,
    values_of,
)
from tests.support.wire.proportion import BYTES_MAX, cost_of

PARTITIONS = 12


class CountedIndex(int):
    """A partition index that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedIndex.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def list_offsets(*indexes: int, topic: str = "log", timestamp: int = -1) -> ListOffsetsRequest:
    wanted = [ListOffsetsRequestPartition(partition_index=index, timestamp=timestamp) for index in indexes]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequestTopic(name=topic, partitions=wanted)])


async def test_list_offsets_compares_each_index_a_few_times() -> None:
    """Each row was searched among all rows: 240 KB of them stalled every client for 7.6 s."""
    life = await Place().start()
    count = 2000
    CountedIndex.compared = 0
    request = list_offsets(*map(CountedIndex, range(count)))
    answer = await handle_list_offsets(life.context, request, Call(10, life.peer, "kit"))
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * count
    assert CountedIndex.compared < 10 * count
    await life.stop()


async def test_list_offsets_knows_a_partition_named_twice_across_topic_entries() -> None:
    """As Kafka 4.3.1: both rows are INVALID_REQUEST wherever they stand, the third partition is answered."""
    life = await Place().start()
    await life.create("log", 3)
    request = list_offsets(0, 0, 1)
    request.topics += list_offsets(1, 2).topics
    answer = await life.call(ApiKey.LIST_OFFSETS, request)
    codes = {(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions}
    bad = int(ErrorCode.INVALID_REQUEST)
    assert codes == {("log", 0, bad), ("log", 1, bad), ("log", 2, 0)}
    await life.stop()


async def test_list_offsets_of_failed_logs_does_not_wait_for_each() -> None:
    """What a failed sync left behind never becomes visible: asking for a dozen ends took a dozen seconds."""
    place = Place("thermocline.flush=sync")
    life = await place.start()
    await life.create("log", PARTITIONS)
    place.disk.inject("sync", errno.EIO, ".log", times=-1)
    for index in range(PARTITIONS):
        await life.call(ApiKey.PRODUCE, produce_request("log", batch_of(b"x"), acks=1, index=index))
    await asyncio.sleep(5)
    place.disk.heal()
    partitions: list[Any] = [life.partition("log", index) for index in range(PARTITIONS)]
    assert all(p.log.log_end_offset == 1 and p.high_watermark == 0 for p in partitions)
    began = asyncio.get_running_loop().time()
    answer = await life.call(ApiKey.LIST_OFFSETS, list_offsets(*range(PARTITIONS)))
    assert [(p.error_code, p.offset) for p in answer.topics[0].partitions] == [(0, 0)] * PARTITIONS
    assert asyncio.get_running_loop().time() - began < 0.5
    await life.crash()


# --- answers grow with what there is, not with repetitions


@pytest.mark.not_fast
@pytest.mark.parametrize("version", range(13))
async def test_metadata_shows_a_topic_once_however_often_it_is_named(version: int) -> None:
    """As Kafka, whose names are a set: 24 KB of one name were answered with 921 MB."""
    life = await Place("auto.create.topics.enable=false").start()
    topic_id = await life.create("wide", 100)
    names = ["wide", "none"] * 1000
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    answer = await life.call(ApiKey.METADATA, request, version)
    assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("wide", 100), ("none", 0)]
    if version >= 10:
        by_id = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)] * 1000)
        if version < 12:
            by_id.topics = [MetadataRequestTopic(name="", topic_id=topic_id)] * 1000
        assert [t.name for t in (await life.call(ApiKey.METADATA, by_id, version)).topics] == ["wide"]
    await life.stop()


async def with_positions(life: Life, group: str, metadata: str = "m") -> None:
    """A group that committed 5 to each of the four partitions of "log"."""
    rows = [OffsetCommitRequestPartition(index, 5, -1, metadata) for index in range(4)]
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name="log", partitions=rows)],
    )
    for _ in range(100):
        answer = await life.call(ApiKey.OFFSET_COMMIT, request)
        if {row.error_code for row in answer.topics[0].partitions} == {0}:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(answer)


async def with_groups(*settings: str) -> Life:
    life = await Place(*settings).start()
    await life.create("log", 4)
    await life.context.groups.find("g")
    return life


async def test_offset_fetch_answers_a_group_and_a_partition_once() -> None:
    """Kafka answers repetitions; each of ours cost a group's whole state: 32 KB were answered with 430 MB."""
    life = await with_groups()
    await with_positions(life, "g")
    everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)] * 1000)
    (group,) = (await life.call(ApiKey.OFFSET_FETCH, everything)).groups
    assert [(p.partition_index, p.committed_offset) for p in group.topics[0].partitions] == [
        (index, 5) for index in range(4)
    ]
    topics = [OffsetFetchRequestGroupTopic(name="log", partition_indexes=[1, 1, 3] * 50)] * 50
    some = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)] * 2)
    (group,) = (await life.call(ApiKey.OFFSET_FETCH, some)).groups
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in group.topics] == [("log", [1, 3])]
    old_topics = [OffsetFetchRequestTopic(name="log", partition_indexes=[0, 2, 0])] * 50
    old = await life.call(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id="g", topics=old_topics), 7)
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in old.topics] == [("log", [0, 2])]
    await life.stop()


async def test_offset_fetch_of_many_groups_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no longer fits is INVALID_REQUEST for its group; the groups before it are answered."""
    monkeypatch.setattr(groups, "_ANSWER_METADATA_BYTES_MAX", 40_000)
    life = await with_groups()
    for number in range(4):
        await with_positions(life, f"g{number}", "m" * 4000)
    wanted = [OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(4)]
    answer = await life.call(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=wanted))
    refused = ErrorCode.INVALID_REQUEST
    assert [(g.error_code, bool(g.topics)) for g in answer.groups] == [(0, True)] * 2 + [(refused, False)] * 2
    await life.stop()


async def test_topics_named_twice_are_refused_once() -> None:
    """CreateTopics, CreatePartitions, DeleteTopics: one row a name, INVALID_REQUEST, nothing done; as Kafka 4.3.1."""
    life = await Place().start()
    await life.create("known")
    new = [CreateTopicsRequestTopic(name=name, num_partitions=1, replication_factor=1) for name in "ddde"]
    made = await life.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(timeout_ms=9000, topics=new))
    assert [(t.name, t.error_code) for t in made.topics] == [("d", ErrorCode.INVALID_REQUEST), ("e", 0)]
    grown = [CreatePartitionsRequestTopic(name="known", count=9, assignments=None)] * 500
    answer = await life.call(ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(topics=grown, timeout_ms=9000))
    assert [(t.name, t.error_code) for t in answer.results] == [("known", ErrorCode.INVALID_REQUEST)]
    gone = [DeleteTopicsRequestTopic(name="known")] * 500 + [DeleteTopicsRequestTopic(name="e")]
    answer = await life.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=gone, timeout_ms=9000))
    codes = [(t.name, t.error_code, t.error_message or "") for t in answer.responses]
    assert codes == [("known", ErrorCode.INVALID_REQUEST, "Duplicate topic name."), ("e", 0, "")]
    assert life.context.registry.topics.keys() == {"known"}
    await life.stop()


# --- authorized operations

NOT_ASKED = -(1 << 31)


@pytest.mark.parametrize("version", range(8, 13))
async def test_authorized_operations_are_told_when_asked_for(version: int) -> None:
    """What Kafka 4.3.1 without an authorizer answers: 3576 for a topic (also for one that is not there), 8096 for the
    cluster, −2³¹ to who does not ask."""
    life = await Place("auto.create.topics.enable=false").start()
    await life.create("log")
    for asked, of_topic, of_cluster in ((True, 3576, 8096), (False, NOT_ASKED, NOT_ASKED)):
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name="log"), MetadataRequestTopic(name="none")],
            include_topic_authorized_operations=asked,
            include_cluster_authorized_operations=asked,
        )
        answer = await life.call(ApiKey.METADATA, request, version)
        assert [topic.topic_authorized_operations for topic in answer.topics] == [of_topic] * 2
        assert answer.cluster_authorized_operations == (of_cluster if version <= 10 else NOT_ASKED)
        described = await life.call(
            ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(include_cluster_authorized_operations=asked)
        )
        assert described.cluster_authorized_operations == of_cluster
    await life.stop()


# --- very many partitions


def produce_of(topics: int, partitions: int, batch: bytes, acks: int = -1) -> ProduceRequest:
    rows = [ProduceRequestPartition(index=index, records=memoryview(batch)) for index in range(partitions)]
    return ProduceRequest(
        acks=acks,
        timeout_ms=5000,
        topic_data=[ProduceRequestTopic(name=f"t{at}", partition_data=list(rows)) for at in range(topics)],
    )


async def test_a_produce_of_very_many_partitions_leaves_the_loop_to_others() -> None:
    """5 000 batches in one frame: others have their turns meanwhile, every batch is appended and answered once."""
    life = await Place().start()
    for topic in ("t0", "t1"):
        await life.create(topic, 10)
    request = produce_of(500, 10, batch_of(b"v"), acks=1)
    turns = 0
    answering = asyncio.ensure_future(life.call(ApiKey.PRODUCE, request))
    while not answering.done() and turns < 100:
        turns += 1
        await asyncio.sleep(0)
    assert 5 < turns < 100
    rows = [(t.name, p.index, p.error_code) for t in answering.result().responses for p in t.partition_responses]
    assert len(rows) == len(set(rows)) == 5000
    assert [row for row in rows if row[2] == 0] == [(name, at, 0) for name in ("t0", "t1") for at in range(10)]
    assert {row[2] for row in rows[20:]} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert {life.partition("t0", at).log.log_end_offset for at in range(10)} == {1}
    await life.stop()


async def test_a_produce_of_very_many_partitions_that_waited_for_the_gate_is_worked_on_in_turns() -> None:
    """After a sleep every request waits until this broker is known to serve still; then it was worked on at once."""
    life = await Place().start()
    await life.create("t0", 10)
    life.clock.slept_s = 60.0
    answering = asyncio.ensure_future(life.call(ApiKey.PRODUCE, produce_of(500, 10, batch_of(b"v"), acks=1)))
    await asyncio.sleep(0)
    async with asyncio.timeout(60.0):
        await life.context.gate.opened()
    assert not life.partition("t0").log.log_end_offset
    turns = 0
    while not answering.done() and turns < 100:
        turns += 1
        await asyncio.sleep(0)
    assert 5 < turns < 100
    await answering
    await life.stop()


async def test_a_produce_of_very_many_partitions_answers_a_topic_once() -> None:
    """As Kafka does. Its pieces answered a topic they shared twice, of which Sarama keeps the last."""
    life = await Place().start()
    await life.create("t1", 2)
    answer = await life.call(ApiKey.PRODUCE, produce_of(3, 2500, batch_of(b"v")))
    assert [topic.name for topic in answer.responses] == ["t0", "t1", "t2"]
    for topic in answer.responses:
        assert [row.index for row in topic.partition_responses] == list(range(2500))
    assert [row.error_code for row in answer.responses[1].partition_responses[:3]] == [0, 0, 3]
    await life.stop()


def wide_fetch(count: int, offset: int = 0, **how: Any) -> FetchRequest:
    """Partitions 0 to count − 1 of "log", in one topic entry."""
    request = fetch_request(("log", 0, offset), **how)
    (row,) = request.topics[0].partitions
    request.topics[0].partitions = [msgspec.structs.replace(row, partition=index) for index in range(count)]
    return request


async def test_a_fetch_of_very_many_partitions_waits_as_every_fetch() -> None:
    """5 000 partitions, one of which exists: a record ends the wait, or its time does."""
    life = await Place().start()
    await life.create("log")
    request = wide_fetch(5000, max_wait_ms=20_000)
    began = asyncio.get_running_loop().time()
    fetching = asyncio.ensure_future(life.call(ApiKey.FETCH, request))
    await asyncio.sleep(5)
    assert not fetching.done()
    await life.produce("log", b"x")
    answer = await fetching
    assert 5 <= asyncio.get_running_loop().time() - began < 6
    rows = [part for topic in answer.responses for part in topic.partitions]
    assert len(rows) == 5000
    (found,) = [part for part in rows if not part.error_code]
    assert values_of(found) == [b"x"]
    empty = wide_fetch(5000, 1, max_wait_ms=300)
    began = asyncio.get_running_loop().time()
    await life.call(ApiKey.FETCH, empty)
    assert 0.29 < asyncio.get_running_loop().time() - began < 0.5
    await life.stop()


@pytest.mark.parametrize("turns", range(1, 9))
async def test_what_comes_between_two_looks_of_a_wide_fetch_is_not_waited_for(turns: int) -> None:
    """A record that came after the look at its partition, and before anybody was asked to tell, was found when the wait
    was over: up to a minute late."""
    life = await Place("thermocline.flush=os").start()
    await life.create("log")
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    request = wide_fetch(5000, max_wait_ms=30_000)
    fetching = life.dispatch(ApiKey.FETCH, request)
    for _ in range(turns):
        await asyncio.sleep(0)
    producer = Peer(2, "127.0.0.1:50001", "PLAINTEXT")
    life.dispatch(ApiKey.PRODUCE, produce_request("log", batch_of(b"x"), acks=1), peer=producer)
    answer = decoded(ApiKey.FETCH, FETCH_BY_NAME, await parts_of(fetching))
    assert values_of(answer.responses[0].partitions[0]) == [b"x"]
    assert loop.time() - began_s < 1.0
    await life.stop()


async def test_a_session_ends_where_looking_at_it_would_hold_the_loop() -> None:
    """A full fetch of more gets none; one that outgrows it has to begin again."""
    life = await Place().start()
    await life.create("log")
    begin = {"session_id": 0, "session_epoch": 0}
    request = wide_fetch(9_999, **begin)
    half = (await life.call(ApiKey.FETCH, request)).session_id
    assert half > 0
    too_many = wide_fetch(10_001, **begin)
    assert (await life.call(ApiKey.FETCH, too_many)).session_id == 0
    more = fetch_request(("log", 10_000, 0), ("log", 10_001, 0), session_id=half, session_epoch=1)
    assert (await life.call(ApiKey.FETCH, more)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(life.context.fetch_sessions) == 0
    await life.stop()


@pytest.mark.not_fast
@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY])
async def test_a_look_by_time_does_not_unpack_bombs(codec: Codec, tiered: bool) -> None:
    """A batch of 100 MiB of zeros under 1 MiB (5 MiB of snappy): any client could make two threads of each tier unpack
    128 MiB, again and again. Its first offset is the answer; small batches are looked into as ever."""
    life = await Place().start()
    configs = SMALL_SEGMENTS | {"internal_segment_bytes": "5100000", "remote_storage_enable": str(tiered).lower()}
    await life.create("log", **configs, max_message_bytes=str(8 << 20))
    plain = [Record(at, EPOCH_MS + at, None, b"v") for at in range(3)]
    bomb = [Record(at, EPOCH_MS + 10 + at, None, bytes(34 << 20)) for at in range(3)]
    for records in (plain, bomb, [record._replace(timestamp=record.timestamp + 20) for record in plain]):
        batch = encode_batch(records, codec=codec)
        assert (await life.call(ApiKey.PRODUCE, produce_request("log", batch))).responses[0].partition_responses[
            0
        ].error_code == 0
    del batch, bomb, records
    for _ in range(2):
        await life.produce("log", bytes(5_000_000))  # the second has a segment of its own: what is before is sealed
    await asyncio.sleep(60)
    partition = life.partition("log")
    assert (partition.log.local_log_start_offset > 5) is tiered
    for asked, offset in ((1, 1), (11, 3), (12, 3), (20, 6), (22, 8)):
        request = list_offsets(0, timestamp=EPOCH_MS + asked)
        cost = await cost_of(life, life.frame(ApiKey.LIST_OFFSETS, 10, request), count_calls=False)
        assert cost.bytes < BYTES_MAX
        (row,) = (await life.call(ApiKey.LIST_OFFSETS, request)).topics[0].partitions
        assert (row.error_code, row.offset) == (0, offset), asked
        assert row.timestamp >= EPOCH_MS + asked
    await life.call(ApiKey.LIST_OFFSETS, list_offsets(0, timestamp=-3))
    await life.stop()


@pytest.mark.parametrize(
    ("key", "request_", "bytes_max"),
    [
        (ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[f"{at:x}" for at in range(30_000)]), 20 << 20),
        (
            ApiKey.DESCRIBE_CONFIGS,
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequestResource(4, "1", [*map(str, BROKER), f"other-{at}"]) for at in range(80)
                ],
                include_synonyms=True,
                include_documentation=True,
            ),
            20 << 20,
        ),
    ],
    ids=["DESCRIBE_GROUPS", "DESCRIBE_CONFIGS"],
)
async def test_a_response_is_not_kept_as_small_objects(key: ApiKey, request_: Any, bytes_max: int) -> None:
    """Found by a penetration test: the objects of a response and of its encoding took 40 times its bytes (60 MiB for
    groups that nobody knows, 74 MiB for configs of one broker that a request asked for by different sets of names)."""
    life = await Place().start()
    await life.context.groups.find("g")
    frame = life.frame(key, NEWEST[key], request_)
    cost = await cost_of(life, frame, count_calls=False)
    assert cost.answer_bytes > 1 << 20
    assert cost.bytes < bytes_max
    await life.stop()


async def test_the_refusal_of_very_many_groups_leaves_the_loop_to_others() -> None:
    """Found by a penetration test: the rule of OffsetFetch asked for 20 000 groups in one turn, 55 ms."""
    life = await Place(
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users=User:root"
    ).start()
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(f"{at:x}") for at in range(10_000)])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    audit, denials = life.dispatcher.clients.audit, Counter[int]()  # by turn
    note = audit.note

    def noted(*of: Any, **how: Any) -> None:
        denials[turns] += 1
        note(*of, **how)

    audit.note = noted  # type: ignore[method-assign]
    counting = asyncio.ensure_future(count())
    answer = await life.call(ApiKey.OFFSET_FETCH, request, 9, Peer(1, "10.0.0.1:1", "PLAINTEXT", principal="User:eve"))
    counting.cancel()
    assert len(answer.groups) == denials.total() == 10_000
    assert max(denials.values()) <= 1_000
    await life.stop()
