"""A read-only broker beside the cluster whose bucket it reads: what its clients see, and that it writes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from broker.error_codes import ErrorCode
from broker.membership.session_start import Refused
from broker.net.dispatch import CloseConnection
from broker.read_only import cluster_poller
from broker.read_only.archived_partition import ArchivedPartition
from broker.read_only.root_cache import FRESH_S, OLD_S
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from coldstore.keys import manifest_key
from coldstore.manifest.manifest import Manifest
from coldstore.stores.operations import Operation
from logformat.values import NewerFormat
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place, batch_of, fetch_request, produce_request
from tests.support.fast_loop import HOUR_S, run_fast
from tests.support.store.faulty_store import WRITES, Fault
from tests.support.waiting import until

READS = {Operation.GET, Operation.GET_IF_CHANGED, Operation.HEAD, Operation.LIST}


async def owner_with(place: Place, topic: str = "log", count: int = 30) -> Life:
    """A broker with `count` records of a topic, all in the bucket."""
    owner = await place.start("node.id=1")
    await owner.create(topic, **SMALL_SEGMENTS)
    await write(owner, count, topic)
    return owner


async def write(owner: Life, count: int, topic: str = "log", begin: int = 0) -> None:
    """As many records, each a batch, and all of them sealed and copied."""
    for at in range(begin, begin + count):
        assert (await owner.produce(topic, f"{at} ".encode() + bytes(200))).error_code == 0
    await seal(owner)


async def seal(owner: Life) -> None:
    assert owner.tiers is not None
    await owner.tiers.seal_all(None)


async def reader_of(place: Place, *settings: str, directory: str = "reader") -> Life:
    return await place.start("node.id=9", *settings, directory=directory, read_only=True)


def writes(life: Life) -> Counter[str]:
    """What it sent to the bucket that is no read."""
    assert life.broker.components.store is not None
    meters = life.broker.components.store.meters
    return Counter({name.value: meter.calls for name, meter in meters.items() if name not in READS and meter.calls})


async def offset(life: Life, sentinel: int, topic: str = "log", version: int = 9) -> tuple[int, int]:
    """(error, offset)."""
    wanted = ListOffsetsRequestPartition(partition_index=0, timestamp=sentinel)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequestTopic(name=topic, partitions=[wanted])])
    found = (await life.call(ApiKey.LIST_OFFSETS, request, version)).topics[0].partitions[0]
    return found.error_code, found.offset


async def test_everything_in_the_bucket_is_read_and_followed() -> None:
    """Records, offsets by sentinel and by time, metadata; then what is copied later, by a fetch that waits for it."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    written = await owner.read_all("log")
    assert await reader.read_all("log") == written
    for sentinel in (-1, -2, -3, -5, 0):
        assert await offset(reader, sentinel) == await offset(owner, sentinel), sentinel
    shown = (await reader.call(ApiKey.METADATA, MetadataRequest(topics=None))).topics
    assert [topic.name for topic in shown] == ["log"]
    assert [(p.leader_id, p.replica_nodes, p.error_code) for p in shown[0].partitions] == [(9, [9], 0)]

    waiting = asyncio.ensure_future(
        reader.call(ApiKey.FETCH, fetch_request(("log", 0, len(written)), max_wait_ms=30_000))
    )
    await asyncio.sleep(1)
    assert not waiting.done()
    await write(owner, 10, begin=30)
    found = (await waiting).responses[0].partitions[0]
    assert found.error_code == 0 and found.high_watermark > 30
    assert await reader.read_all("log") == await owner.read_all("log")
    assert not writes(reader)
    await reader.stop()
    await owner.stop()


async def test_nothing_that_writes_is_taken() -> None:
    """Produce, InitProducerId, DeleteRecords, CreateTopics; a topic that is asked for is not made; not a call of the
    bucket comes of any of them."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    produced = await reader.produce("log", b"no")
    assert produced.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "--read-only" in (produced.error_message or "")
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    given = await reader.call(ApiKey.INIT_PRODUCER_ID, request)
    assert (given.error_code, given.producer_id) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, -1)
    deleted = DeleteRecordsRequestTopic(
        name="log", partitions=[DeleteRecordsRequestPartition(partition_index=0, offset=5)]
    )
    answer = await reader.call(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[deleted], timeout_ms=1000))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = CreateTopicsRequestTopic(name="new", num_partitions=1, replication_factor=1)
    made = await reader.call(ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[topic], timeout_ms=1000))
    assert made.topics[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert "--read-only" in made.topics[0].error_message
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
    shown = await reader.call(ApiKey.METADATA, asked)
    assert shown.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not writes(reader)
    await reader.stop()
    await owner.stop()


async def test_groups_commit_in_memory() -> None:
    """A commit is answered and read again; after a restart it is gone; the owner's groups are not shown."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    found = await reader.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=["g"]))
    assert (found.coordinators[0].error_code, found.coordinators[0].node_id) == (0, 9)
    wanted = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    commit = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="log", partitions=[wanted])])
    assert (await reader.call(ApiKey.OFFSET_COMMIT, commit)).topics[0].partitions[0].error_code == 0

    async def committed(life: Life) -> int:
        topics = [OffsetFetchRequestTopic(name="log", partition_indexes=[0])]
        answer = await life.call(ApiKey.OFFSET_FETCH, OffsetFetchRequest(group_id="g", topics=topics), 5)
        assert answer.error_code == 0
        return int(answer.topics[0].partitions[0].committed_offset)

    assert await committed(reader) == 7
    await reader.stop()
    again = await reader_of(place)
    assert await committed(again) == -1
    assert not writes(reader) and not writes(again)
    await again.stop()
    await owner.stop()


async def test_the_owner_may_be_gone() -> None:
    """Killed, its bucket is read on; its next leader epoch reaches clients with the metadata that names it."""
    place = Place()
    owner = await owner_with(place)
    written = await owner.read_all("log")
    reader = await reader_of(place)
    await owner.crash()
    assert await reader.read_all("log") == written
    epoch = reader.context.registry.readable["log", 0].leader_epoch
    owner = await place.start("node.id=1")
    await write(owner, 5, begin=30)
    await until(lambda: reader.context.registry.readable["log", 0].leader_epoch > epoch)
    request = fetch_request(("log", 0, 0), current_leader_epoch=epoch)
    found = (await reader.call(ApiKey.FETCH, request)).responses[0].partitions[0]
    assert found.error_code == ErrorCode.FENCED_LEADER_EPOCH
    newest = reader.context.registry.readable["log", 0].leader_epoch
    ask = OffsetForLeaderEpochRequestTopic(
        topic="log",
        partitions=[OffsetForLeaderEpochRequestPartition(partition=0, current_leader_epoch=newest, leader_epoch=epoch)],
    )
    ends = await reader.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest(topics=[ask]))
    end = ends.topics[0].partitions[0]
    assert (end.error_code, end.leader_epoch, end.end_offset) == (0, epoch, 30)
    assert await reader.read_all("log") == await owner.read_all("log")
    await reader.stop()
    await owner.stop()


async def test_an_offset_is_not_given_the_epoch_of_an_older_lineage() -> None:
    """A client that asks for the end of that epoch later gets an end below its position: it takes its log for truncated
    and reads records again."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)

    async def end_of(epoch: int) -> int:
        wanted = OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=epoch)
        topic = OffsetForLeaderEpochRequestTopic(topic="log", partitions=[wanted])
        ends = await reader.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest(topics=[topic]))
        end: int = ends.topics[0].partitions[0].end_offset
        return end

    first = owner.partition("log").leader_epoch
    assert await end_of(first) == 30
    await owner.crash()
    owner = await place.start("node.id=1")
    await until(lambda: ("log", 0) in owner.context.registry.partitions)
    await write(owner, 5, begin=30)
    await asyncio.sleep(2 * FRESH_S)
    wanted = ListOffsetsRequestPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequestTopic(name="log", partitions=[wanted])])
    found = (await reader.call(ApiKey.LIST_OFFSETS, request, 9)).topics[0].partitions[0]
    assert found.offset == 35
    assert found.leader_epoch == -1 or await end_of(found.leader_epoch) >= found.offset
    await reader.stop()
    await owner.stop()


async def test_a_root_counts_when_the_image_of_its_epoch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a newer leader copied is not shown before Metadata names its epoch: clients take an epoch above that for
    another log's."""
    monkeypatch.setattr(cluster_poller, "POLL_S", 1e6)
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    assert await offset(reader, -1) == (0, 30)
    await owner.crash()
    owner = await place.start("node.id=1")
    await until(lambda: ("log", 0) in owner.context.registry.partitions)
    await write(owner, 5, begin=30)
    before = reader.context.metadata.topic("log").rows[0].leader_epoch
    assert before < owner.partition("log").leader_epoch
    await asyncio.sleep(2 * FRESH_S)
    assert await offset(reader, -1) == (0, 35)
    assert reader.context.metadata.topic("log").rows[0].leader_epoch == owner.partition("log").leader_epoch
    await reader.stop()
    await owner.stop()


async def test_the_end_does_not_fall_when_tiering_is_switched_off() -> None:
    """The owner takes its objects out of the bucket, as it has all of the log on its disk: readers keep their places,
    get nothing, and go on where they were when it is switched on again."""
    place = Place()
    owner = await place.start("node.id=1")
    await owner.create("log", **{**SMALL_SEGMENTS, "local_retention_bytes": "-1"})
    await write(owner, 30)
    reader = await reader_of(place)
    assert await offset(reader, -1) == (0, 30)
    off = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
    await owner.context.controller.set_configs("log", lambda topic: {**topic.configs, **off})
    await until(lambda: owner.partition("log").tier.remote_end_offset == 0)
    await asyncio.sleep(6)
    assert await offset(reader, -1) == (0, 30)
    for position in (5, 30):
        found = await reader.fetch("log", position, max_wait_ms=100)
        assert (found.error_code, found.high_watermark, bytes(found.records or b"")) == (0, 30, b"")
    assert (await reader.fetch("log", 31)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    on = {"remote.storage.enable": "true"}
    await owner.context.controller.set_configs("log", lambda topic: {**topic.configs, **on})
    await write(owner, 3, begin=30)
    await until(lambda: owner.partition("log").tier.remote_end_offset == 33)
    await asyncio.sleep(2 * FRESH_S)
    assert await offset(reader, -1) == (0, 33)
    assert await reader.read_all("log") == await owner.read_all("log")
    await reader.stop()
    await owner.stop()


async def test_a_log_start_that_moves_is_out_of_range() -> None:
    """DeleteRecords of the owner, and its objects gone: a reader below is told OFFSET_OUT_OF_RANGE, as in Kafka, also
    before the root was looked at again by itself."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    assert await offset(reader, -2) == (0, 0)
    deleted = DeleteRecordsRequestTopic(
        name="log", partitions=[DeleteRecordsRequestPartition(partition_index=0, offset=20)]
    )
    answer = await owner.call(ApiKey.DELETE_RECORDS, DeleteRecordsRequest(topics=[deleted], timeout_ms=10_000))
    assert answer.topics[0].partitions[0].error_code == 0
    prefix = manifest_key(reader.context.registry.readable["log", 0].topic_id, 0).rsplit("/", 1)[0]
    segments = [key for key in place.memory.objects if key.startswith(f"{prefix}/segments/")]
    await until(lambda: sum(key in place.memory.objects for key in segments) < len(segments))
    codes = []
    for _ in range(100):
        found = await reader.fetch("log", 0, max_wait_ms=500)
        codes.append(found.error_code)
        assert not found.records, "what is deleted is not served"
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            break
        await asyncio.sleep(0.1)
    assert codes[-1] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await offset(reader, -2) == (0, 20)
    assert await reader.read_all("log", start=20) == await owner.read_all("log", start=20)
    await reader.stop()
    await owner.stop()


async def test_a_topic_made_again_is_another_one() -> None:
    """Deleted and made under the same name: records of the new one only, by a reader that had the old one open."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    before = await reader.read_all("log")
    old = reader.context.registry.readable["log", 0].topic_id
    await owner.context.controller.delete_topic("log")
    await until(lambda: ("log", 0) not in reader.context.registry.readable)
    assert (await reader.fetch("log", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await owner.create("log", **SMALL_SEGMENTS)
    await write(owner, 8, begin=100)
    await until(lambda: ("log", 0) in reader.context.registry.readable)
    assert reader.context.registry.readable["log", 0].topic_id != old
    after = await reader.read_all("log")
    assert after == await owner.read_all("log")
    assert {value for _, value in before}.isdisjoint({value for _, value in after})
    await reader.stop()
    await owner.stop()


async def test_a_damaged_root_costs_its_partition_only() -> None:
    """KAFKA_STORAGE_ERROR for it, and a condition; the other topic is served; once mended it is served again."""
    place = Place()
    owner = await owner_with(place)
    await owner.create("whole", **SMALL_SEGMENTS)
    await write(owner, 5, "whole")
    await owner.stop()
    topic = owner.context.metadata.topic("log")
    key = next(key for key in place.memory.objects if topic.topic_id in key and key.endswith("manifest.json"))
    found = place.memory.objects[key]
    sound = found.data
    found.data = sound[: len(sound) // 2]
    reader = await reader_of(place)
    answer = await reader.fetch("log", 0, max_wait_ms=500)
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (await offset(reader, -1))[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(await reader.read_all("whole")) == 5
    said = (await reader.broker.views.broker()).decode()
    assert "root_damaged" in said and "log-0" in said
    found.data = sound
    await asyncio.sleep(31)
    assert len(await reader.read_all("log")) == 30
    assert "root_damaged" not in (await reader.broker.views.broker()).decode()
    await reader.stop()


async def test_while_the_bucket_is_away_what_is_known_is_served() -> None:
    """Metadata, offsets and chunks at hand; the condition says so, and goes when it answers again."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    written = await reader.read_all("log")
    await owner.crash()
    place.store.down = True
    await asyncio.sleep(12)
    assert (await reader.call(ApiKey.METADATA, MetadataRequest(topics=None))).topics[0].error_code == 0
    assert await offset(reader, -1) == (0, 30)
    assert (await reader.fetch("log", 29)).error_code == 0
    said = (await reader.broker.views.broker()).decode()
    assert "store_unreachable" in said and "cached data is served" in said
    place.store.down = False
    await asyncio.sleep(6)
    assert "store_unreachable" not in (await reader.broker.views.broker()).decode()
    assert await reader.read_all("log") == written
    await reader.stop()


async def test_a_root_of_long_ago_is_not_served_while_the_bucket_is_away() -> None:
    """Its objects may have been compacted meanwhile: a reader of cached chunks would miss the deletion of a key."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    await reader.read_all("log")
    await owner.crash()
    place.store.down = True
    reader.clock.slept_s = OLD_S - 60.0
    assert (await reader.fetch("log", 29)).error_code == 0
    reader.clock.slept_s = OLD_S + 1.0
    refused = await reader.fetch("log", 29)
    assert refused.error_code == ErrorCode.REPLICA_NOT_AVAILABLE and not refused.records
    place.store.down = False
    await asyncio.sleep(6)
    assert (await reader.fetch("log", 29)).error_code == 0
    await reader.stop()


async def test_a_damaged_cluster_root_leaves_what_is_known() -> None:
    """Also one that is gone: it serves on, tells it, and goes on once mended. One of a newer format ends it: exit 3."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    await owner.stop()
    root = place.memory.objects["cluster.json"]
    sound = root.data
    for broken in (sound[:100], None):
        if broken is None:
            del place.memory.objects["cluster.json"]
        else:
            root.data, root.etag = broken, f"of {len(broken)} bytes"
        await asyncio.sleep(6)
        assert len(await reader.read_all("log")) == 30
        assert "store_unreachable" in (await reader.broker.views.broker()).decode(), broken
    place.memory.objects["cluster.json"] = root
    root.data, root.etag = sound, "as it was"
    await asyncio.sleep(6)
    assert "store_unreachable" not in (await reader.broker.views.broker()).decode()
    root.data = b'{"format_version":99}'
    root.etag = "newer"
    await reader.broker.serve(reader.stop_event)
    assert reader.broker.exit_code == 3
    await reader.broker.close()


async def test_credentials_that_only_read_are_enough() -> None:
    """A bucket that refuses every write: it starts and serves; not one was sent."""
    place = Place()
    owner = await owner_with(place)
    await owner.stop()
    place.store.denies = WRITES
    reader = await reader_of(place)
    assert len(await reader.read_all("log")) == 30
    await reader.stop()
    assert not place.store.hits[Fault.READ_ONLY]


async def test_no_cluster_is_refused() -> None:
    """An empty bucket: a wrong prefix, most likely."""
    with pytest.raises(Refused, match="no cluster"):
        await reader_of(Place())


async def test_the_directory_of_a_broker_is_refused() -> None:
    """Its log is nobody's cache."""
    place = Place()
    owner = await owner_with(place)
    await owner.stop()
    with pytest.raises(Refused, match="of its own"):
        await reader_of(place, directory="a")


async def test_a_newer_format_is_refused() -> None:
    """As by any broker: exit 3."""
    place = Place()
    owner = await owner_with(place)
    await owner.stop()
    root = place.memory.objects["cluster.json"]
    root.data = b'{"format_version":99}'
    with pytest.raises(NewerFormat):
        await reader_of(place)


def test_roots_are_read_for_those_who_ask() -> None:
    """Of 200 partitions one is read: one manifest is at hand, and looked at until nobody reads it for five minutes."""

    async def scenario() -> None:
        place = Place()
        owner = await place.start("node.id=1")
        await owner.create("wide", 200)
        await owner_topic(owner)
        reader = await reader_of(place)
        await reader.read_all("log")
        assert reader_roots(reader) == 1
        await asyncio.sleep(400)
        assert reader_roots(reader) == 0
        assert len(await reader.read_all("log")) == 5
        await reader.stop()
        await owner.stop()

    async def owner_topic(owner: Life) -> None:
        await owner.create("log", **SMALL_SEGMENTS)
        await write(owner, 5)

    run_fast(scenario(), timeout_s=HOUR_S)


def reader_roots(reader: Life) -> int:
    sources = reader.broker._sources
    assert sources is not None
    return len(sources.roots)  # type: ignore[union-attr]


async def test_a_produce_without_acks_closes_the_connection() -> None:
    """As Kafka: there is no answer to say it in."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    with pytest.raises(CloseConnection):
        await reader.call(ApiKey.PRODUCE, produce_request("log", batch_of(b"x"), acks=0), 9)
    await reader.stop()
    await owner.stop()


async def _deaf_reader(monkeypatch: pytest.MonkeyPatch) -> tuple[Life, Life, asyncio.Event]:
    """An owner that started again and wrote on; a reader that reads no newer image until the event is set."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    assert await offset(reader, -1) == (0, 30)
    await owner.crash()
    owner = await place.start("node.id=1")
    await until(lambda: ("log", 0) in owner.context.registry.partitions)
    heard = asyncio.Event()
    look = cluster_poller.ClusterPoller._poll

    async def deaf(self: cluster_poller.ClusterPoller) -> None:
        await heard.wait()
        await look(self)

    monkeypatch.setattr(cluster_poller.ClusterPoller, "_poll", deaf)
    await write(owner, 5, begin=30)
    await asyncio.sleep(2 * FRESH_S)
    return owner, reader, heard


async def test_a_cold_read_shows_no_epoch_that_metadata_does_not_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its root was read again, and waited for a newer image; a cold read told of it meanwhile. A client that meets an
    epoch above the one in its metadata takes it for another log's."""
    owner, reader, heard = await _deaf_reader(monkeypatch)
    partition = reader.context.registry.readable["log", 0]
    asking = asyncio.create_task(offset(reader, -1))
    await asyncio.sleep(10.0)
    await reader.fetch("log", 3, max_wait_ms=100)
    await asyncio.sleep(1.0)
    topic = reader.context.metadata.topic("log")
    assert partition.high_watermark == 30 and topic.rows[0].leader_epoch < owner.partition("log").leader_epoch
    heard.set()
    await asking
    await until(lambda: partition.high_watermark == 35)
    assert reader.context.metadata.topic("log").rows[0].leader_epoch == owner.partition("log").leader_epoch
    await reader.stop()
    await owner.stop()


async def test_no_read_passes_the_high_watermark_while_a_newer_image_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The root names objects of an epoch that the image does not name. A read that reached them left its client above
    the log's end, where OFFSET_OUT_OF_RANGE made it begin again at one end of the log."""
    owner, reader, heard = await _deaf_reader(monkeypatch)
    asking = asyncio.create_task(offset(reader, -1))
    await asyncio.sleep(10.0)
    for _ in range(2):  # the first reader opens the objects after those that it read
        assert await reader.read_all("log", start=10) == (await owner.read_all("log", start=10))[:20]
        await asyncio.sleep(1.0)
    assert (await reader.fetch("log", 35, max_wait_ms=100)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert (await reader.fetch("log", 36, max_wait_ms=100)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    heard.set()
    await asking
    assert await reader.read_all("log") == await owner.read_all("log")
    await reader.stop()
    await owner.stop()


async def test_an_epoch_that_begins_while_the_image_is_read_waits_for_the_next_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner restarted twice. The awaited image was read before the second restart; the root was read after it, by a
    cold read that missed an object."""
    monkeypatch.setattr(cluster_poller, "POLL_S", 1e6)
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    assert await offset(reader, -1) == (0, 30)
    partition = reader.context.registry.readable["log", 0]
    assert isinstance(partition, ArchivedPartition)
    roots = partition._roots
    newer, shown = roots._newer_image, list[tuple[int, int]]()

    async def restart(begin: int) -> Life:
        again = await place.start("node.id=1")
        await until(lambda: ("log", 0) in again.context.registry.partitions)
        await write(again, 5, begin=begin)
        return again

    async def late() -> None:
        nonlocal owner
        await newer()
        monkeypatch.setattr(roots, "_newer_image", newer)
        await owner.crash()
        owner = await restart(35)
        assert await roots.of(partition).reload_if_changed()

    look = partition.read

    def read(manifest: Manifest) -> None:
        look(manifest)
        epoch = reader.context.metadata.topic("log").rows[0].leader_epoch
        shown.append((manifest.leader_epoch, epoch))

    monkeypatch.setattr(ArchivedPartition, "read", lambda _, manifest: read(manifest))
    await owner.crash()
    owner = await restart(30)
    monkeypatch.setattr(roots, "_newer_image", late)
    await asyncio.sleep(2 * FRESH_S)
    await offset(reader, -1)
    await until(lambda: partition.high_watermark == 40)
    assert shown and all(of_root <= of_image for of_root, of_image in shown), shown
    await reader.stop()
    await owner.stop()


async def test_a_read_that_fails_after_its_topic_was_deleted_leaves_nothing() -> None:
    """Regression: the failure was noted for ever, because nobody asks for the partition again."""
    place = Place()
    owner = await owner_with(place)
    reader = await reader_of(place)
    partition = reader.context.registry.readable["log", 0]
    assert isinstance(partition, ArchivedPartition)
    roots = partition._roots
    place.store.script(Operation.GET, Fault.BEFORE, match="manifest.json", times=10**6)
    reading = roots.read(partition)
    roots.forget(partition)
    await reading
    assert place.store.hits[Fault.BEFORE] and not roots.log_failures
    place.store.calm()
    await reader.stop()
    await owner.stop()
