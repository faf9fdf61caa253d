"""What a request names is looked at once: work and waiting grow with the request, never faster."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from broker.context import Call
from broker.handlers import groups
from broker.handlers.offsets import handle_list_offsets
from broker.wire.apis import ApiKey
from broker.wire.errors import ErrorCode
from broker.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeClusterRequest,
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
)
from tests.support.broker_kit import Life, Place, batch_of, play, produce_request

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


def test_list_offsets_compares_each_index_a_few_times() -> None:
    """Each row was searched among all rows: 240 KB of them stalled every client for 7.6 s."""

    async def scenario() -> None:
        life = await Place().start()
        count = 2000
        CountedIndex.compared = 0
        request = list_offsets(*map(CountedIndex, range(count)))
        answer = await handle_list_offsets(life.context, request, Call(10, life.peer, "kit"))
        assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * count
        assert CountedIndex.compared < 10 * count
        await life.stop()

    play(scenario())


def test_list_offsets_knows_a_partition_named_twice_across_topic_entries() -> None:
    """As Kafka 4.3.1: both rows are INVALID_REQUEST wherever they stand, the third partition is answered."""

    async def scenario() -> None:
        life = await Place().start()
        await life.create("log", 3)
        request = list_offsets(0, 0, 1)
        request.topics += list_offsets(1, 2).topics
        answer = await life.call(ApiKey.LIST_OFFSETS, request)
        codes = {(t.name, p.partition_index, p.error_code) for t in answer.topics for p in t.partitions}
        bad = int(ErrorCode.INVALID_REQUEST)
        assert codes == {("log", 0, bad), ("log", 1, bad), ("log", 2, 0)}
        await life.stop()

    play(scenario())


def test_list_offsets_of_failed_logs_does_not_wait_for_each() -> None:
    """What a failed sync left behind never becomes visible: asking for a dozen ends took a dozen seconds."""

    async def scenario() -> None:
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

    play(scenario())


# --- answers grow with what there is, not with repetitions


@pytest.mark.parametrize("version", range(13))
def test_metadata_shows_a_topic_once_however_often_it_is_named(version: int) -> None:
    """As Kafka, whose names are a set: 24 KB of one name were answered with 921 MB."""

    async def scenario() -> None:
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

    play(scenario())


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


def test_offset_fetch_answers_a_group_and_a_partition_once() -> None:
    """Kafka answers repetitions; each of ours cost a group's whole state: 32 KB were answered with 430 MB."""

    async def scenario() -> None:
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

    play(scenario())


def test_offset_fetch_of_many_groups_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no longer fits is INVALID_REQUEST for its group; the groups before it are answered."""
    monkeypatch.setattr(groups, "_ANSWER_METADATA_BYTES_MAX", 40_000)

    async def scenario() -> None:
        life = await with_groups()
        for number in range(4):
            await with_positions(life, f"g{number}", "m" * 4000)
        wanted = [OffsetFetchRequestGroup(group_id=f"g{number}", topics=None) for number in range(4)]
        answer = await life.call(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=wanted))
        refused = ErrorCode.INVALID_REQUEST
        assert [(g.error_code, bool(g.topics)) for g in answer.groups] == [(0, True)] * 2 + [(refused, False)] * 2
        await life.stop()

    play(scenario())


def test_topics_named_twice_are_refused_once() -> None:
    """CreateTopics, CreatePartitions, DeleteTopics: one row a name, INVALID_REQUEST, nothing done; as Kafka 4.3.1."""

    async def scenario() -> None:
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

    play(scenario())


# --- authorized operations

NOT_ASKED = -(1 << 31)


@pytest.mark.parametrize("version", range(8, 13))
def test_authorized_operations_are_told_when_asked_for(version: int) -> None:
    """What Kafka 4.3.1 without an authorizer answers: 3576 for a topic (also for one that is not there), 8096 for the
    cluster, −2³¹ to who does not ask."""

    async def scenario() -> None:
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

    play(scenario())
