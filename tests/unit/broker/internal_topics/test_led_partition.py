"""Groups' state on disk and in the bucket, of a whole broker: what a load meets there."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from broker.error_codes import ErrorCode as E
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.groups.offset_requests import CommitRow
from broker.internal_topics.led_partition import InternalTopicWatcher
from broker.internal_topics.shard_life import ShardState
from broker.partition.leading import leader_replica
from coldstore.stores.operations import Operation
from logformat.record_batch import LENGTH_AT
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, Three
from tests.support.groups.group_world import commit_rows
from tests.support.store.faulty_store import Fault


async def commit(life: Life, offset: int, metadata: str = "", group: str = "g") -> E:
    rows = [CommitRow("log", 0, offset, -1, metadata)]
    (code,) = await commit_rows(life.context.groups, group, rows)
    return code


async def committed(life: Life, group: str = "g") -> int | E | None:
    error, topics = await life.context.groups.offsets.fetch(group, None)
    return error if error is not E.NONE else topics[0].partitions[0][1].offset if topics else None


async def with_commits(place: Place, count: int = 3) -> Life:
    life = await place.start()
    await life.create("log")
    assert await life.context.groups.find("g") is E.NONE
    for number in range(count):
        assert await commit(life, number) is E.NONE
    return life


async def test_a_length_that_rotted_keeps_its_partition_off_and_no_load_running() -> None:
    """A batch that claims more bytes than the log has was read again and again, ever larger, and nobody was told: its
    groups were told for ever that they are being loaded."""
    place = Place("offsets.topic.num.partitions=1", "thermocline.offsets.snapshot.interval.ms=3600000")
    life = await with_commits(place)
    await life.crash()
    path = f"/data/a/{OFFSETS_TOPIC}-0/{0:020}.log"
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    assert await committed(life) == 2
    # As a bit flip in the page cache, or on a disk, of a log that is open already.
    life.context.groups.log.resign(0)
    place.disk.flip_bit(path, LENGTH_AT + 1, 6)
    partition = life.partition(OFFSETS_TOPIC)
    partition.leader_epoch += 1
    InternalTopicWatcher(life.context.groups.log, life.clock, life.workers).led(partition)
    async with asyncio.timeout(60):
        await life.context.groups.log.wait_loaded()
    assert life.context.groups.log.state_of(0) is ShardState.FAILED
    assert await commit(life, 9) is E.COORDINATOR_NOT_AVAILABLE
    place.disk.flip_bit(path, LENGTH_AT + 1, 6)
    await asyncio.sleep(60)
    assert await committed(life) == 2
    await life.crash()


# ---- a disk that is lost after everything was sealed -----------------------------------------------------------------


async def gaps(life: Life) -> list[tuple[int, int]]:
    """Once they were looked for: beside the load of groups, which waits for none of it."""
    partitions = [life.partition(OFFSETS_TOPIC, index) for index in range(2)]
    async with asyncio.timeout(30):
        while any(partition.tier.partition_state.local_gaps is None for partition in partitions):
            await asyncio.sleep(0.1)
    return [gap for partition in partitions for gap in partition.tier.status().gaps]


async def test_a_disk_lost_after_a_seal_costs_no_commit_and_no_gap() -> None:
    """As for any topic (ADR 13): the newest commit is in a snapshot, and nobody was given an offset above it. Half of
    the two partitions were never written to."""
    place = Place("thermocline.offsets.snapshot.interval.ms=3600000")
    life = await with_commits(place)
    await asyncio.sleep(5)
    assert await commit(life, 7) is E.NONE
    await life.broker.views.seal(None)
    await asyncio.sleep(20)
    await life.crash()
    place.lose_disk()
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    assert await committed(life) == 7 and await gaps(life) == []
    assert await commit(life, 8) is E.NONE
    await life.crash()


async def test_the_first_commit_after_a_seal_waits_for_its_offsets_and_is_declared_when_it_is_lost() -> None:
    """It is accepted once the root says that offsets above the seal are given."""
    place = Place("thermocline.offsets.snapshot.interval.ms=3600000")
    life = await with_commits(place)
    await life.broker.views.seal(None)
    (held,) = (index for index in range(2) if life.partition(OFFSETS_TOPIC, index).high_watermark)
    assert life.partition(OFFSETS_TOPIC, held).log.reserved_end == 3
    assert await commit(life, 9) is E.NONE and await committed(life) == 9
    await life.crash()
    place.lose_disk()
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    assert await committed(life) == 2 and [start for start, _ in await gaps(life)] == [3]
    await life.crash()


async def test_a_commit_that_waits_for_offsets_when_its_partition_is_resigned_is_not_appended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next leader's log would have it above its own records. Here the next leader is this broker again."""
    monkeypatch.setattr(leader_replica, "_RESERVATION_POLL_S", 5.0)
    place = Place()
    life = await with_commits(place)
    await life.broker.views.seal(None)
    (held,) = (index for index in range(2) if life.partition(OFFSETS_TOPIC, index).high_watermark)
    partition = life.partition(OFFSETS_TOPIC, held)
    place.store.script(Operation.PUT_ROOT, Fault.BEFORE, times=10**6)
    writing = asyncio.get_running_loop().create_task(commit(life, 9))
    await asyncio.sleep(1)
    assert not writing.done()
    place.store.calm()
    await led_again(life, held)
    assert await writing is E.NOT_COORDINATOR
    await asyncio.sleep(30)
    assert partition.leading and partition.log.log_end_offset == 3
    await life.crash()


async def test_commits_of_a_sealed_partition_are_refused_in_words_while_the_store_is_away() -> None:
    """COORDINATOR_NOT_AVAILABLE: the client tries again; what goes on without a seal goes on."""
    place = Place()
    life = await with_commits(place)
    await life.broker.views.seal(None)
    place.store.script(Operation.PUT_ROOT, Fault.BEFORE, times=10**6)
    assert await commit(life, 9) is E.COORDINATOR_NOT_AVAILABLE
    assert await committed(life) in (2, E.NOT_COORDINATOR)
    place.store.calm()
    await asyncio.sleep(60)
    assert await commit(life, 10) is E.NONE and await committed(life) == 10
    await life.crash()


async def test_a_snapshot_ends_where_it_was_cut_whatever_was_appended_while_it_was_written() -> None:
    """A load that needs it goes on in the local log from there: behind a later end it would miss a commit."""
    place = Place("offsets.topic.num.partitions=1", "thermocline.offsets.snapshot.interval.ms=3600000")
    life = await with_commits(place)
    (shard,) = life.context.groups.log.shards()
    end, batches = await shard.snapshot()
    assert await commit(life, 9) is E.NONE
    assert life.partition(OFFSETS_TOPIC).log.log_end_offset > end == 3
    await shard.shard_log.commit_snapshot(end, batches)
    assert await shard.shard_log.snapshot_end() == end
    await life.crash()


# ---- a log that is rewritten, so that no load needs the bucket -------------------------------------------------------


async def coordinating(three: Three) -> tuple[int, Life]:
    """Who leads the shard, once it is loaded."""

    def found() -> list[tuple[int, Life]]:
        lives = three.lives.items()
        return [(node_id, life) for node_id, life in lives if life.context.groups.log.state_of(0) is ShardState.READY]

    await until(lambda: bool(found()), "its groups are served")
    return found()[0]


def away(place: Place, topic_id: str) -> None:
    """What the bucket holds of this topic cannot be read or written."""
    for operation in (Operation.GET, Operation.GET_IF_CHANGED, Operation.PUT_ROOT, Operation.PUT_SEGMENT):
        place.store.script(operation, Fault.BEFORE, match=topic_id, times=10**6)


async def test_a_log_that_grew_is_rewritten_and_loaded_with_the_store_away() -> None:
    """Its first segment goes, the log start moves to the rewrite, and the next process loads from the disk alone."""
    place = Place(
        "offsets.topic.num.partitions=1",
        "offsets.topic.segment.bytes=1048576",
        "thermocline.offsets.snapshot.interval.ms=3600000",
    )
    life = await with_commits(place)
    log = life.partition(OFFSETS_TOPIC).log
    for offset in range(1_100):
        assert await commit(life, offset, "m" * 4_000) is E.NONE
    async with asyncio.timeout(60):
        while not log.log_start_offset:
            await asyncio.sleep(0.1)
    await asyncio.sleep(5)
    first = [segment.base_offset for segment in log.sealed_segments()]
    assert 0 not in first and log.log_start_offset > 1_000
    away(place, life.context.metadata.topic(OFFSETS_TOPIC).topic_id)
    assert await commit(life, 7) is E.NONE
    await life.crash()
    life = await place.start()
    async with asyncio.timeout(60):
        await life.context.groups.log.wait_loaded()
    assert await committed(life) == 7 and await commit(life, 8) is E.NONE
    await life.crash()


async def test_a_disk_lost_after_a_rewrite_begins_at_the_snapshot_and_needs_no_bucket_once_rewritten() -> None:
    """The log start of the root lies below what the disk has now: that log does not hold all, whatever it says."""
    place = Place("offsets.topic.num.partitions=1", "offsets.topic.segment.bytes=1048576")
    life = await with_commits(place)
    for offset in range(1_100):
        assert await commit(life, offset, "m" * 4_000) is E.NONE
    async with asyncio.timeout(60):
        while not life.partition(OFFSETS_TOPIC).log.log_start_offset:
            await asyncio.sleep(0.1)
    await asyncio.sleep(20)
    await life.crash()
    place.lose_disk()
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    assert await committed(life) == 1_099
    await asyncio.sleep(10)  # rewritten
    away(place, life.context.metadata.topic(OFFSETS_TOPIC).topic_id)
    await life.crash()
    life = await place.start()
    async with asyncio.timeout(60):
        await life.context.groups.log.wait_loaded()
    assert await committed(life) == 1_099
    await life.crash()


async def test_all_disks_lost_right_after_a_rewrite_begin_at_the_snapshot() -> None:
    """The root's log start had passed the newest snapshot: nobody could ever load that shard again."""
    three = Three("offsets.topic.num.partitions=1", "thermocline.offsets.snapshot.interval.ms=3600000")
    await three.fill()
    assert await three.lives[1].context.groups.find("g") is E.NONE
    _, life = await coordinating(three)
    for offset in range(3):
        assert await commit(life, offset) is E.NONE
    await life.broker.views.seal(None)
    assert await commit(life, 3) is E.NONE
    (shard,) = life.context.groups.log.shards()
    shard.growth.is_whole = False  # as after a load that needed the bucket: rewritten at once
    log = life.partition(OFFSETS_TOPIC).log
    await until(lambda: log.log_start_offset > 0 or shard.growth.start is not None, "it is rewritten")
    await asyncio.sleep(10)
    for broker in three.lives.values():
        await broker.crash()
    for place in three.places.values():
        place.lose_disk()
    for node_id in NODES:
        await three.start(node_id)
        await asyncio.sleep(30)  # else its last process might be cut off only
    _, life = await coordinating(three)
    assert await committed(life) in (2, 3)
    assert await commit(life, 4) is E.NONE and await committed(life) == 4
    for broker in three.lives.values():
        await broker.crash()


async def test_a_log_cut_within_its_rewrite_is_loaded_with_the_snapshot_that_has_the_rest() -> None:
    """A replica fell behind within a rewrite, and all others were lost once the log start had moved there. Its first
    batch marks a rewrite, so it counted as complete: the snapshot was not read, and positions in it were gone."""
    three = Three("offsets.topic.num.partitions=1", "thermocline.offsets.snapshot.interval.ms=3600000")
    await three.fill()
    assert await three.lives[1].context.groups.find("g0") is E.NONE
    leader, life = await coordinating(three)
    groups = [f"g{number}" for number in range(450)]  # a rewrite of three batches
    for number, group in enumerate(groups):
        assert await commit(life, number, group=group) is E.NONE
    (shard,) = life.context.groups.log.shards()
    behind = next(node_id for node_id in NODES if node_id != leader)
    append_cut, appended = shard.append_cut, 0

    async def cut_off_after_two(*args: Any, **named: Any) -> Any:
        nonlocal appended
        found, appended = await append_cut(*args, **named), appended + 1
        if appended == 2:
            end, batches = await shard.snapshot()
            await shard.shard_log.commit_snapshot(end, batches)
            await asyncio.sleep(5)  # the replica knows and has noted that all of it is committed
            await three.lives[behind].crash()
        return found

    shard.append_cut = cut_off_after_two  # type: ignore[method-assign]
    shard.growth.is_whole = False  # as after a load that needed the bucket: rewritten at once
    await until(lambda: life.partition(OFFSETS_TOPIC).log.log_start_offset == len(groups), "it starts at the rewrite")
    for node_id in NODES:
        if node_id != behind:
            await three.lives[node_id].crash()
            three.places[node_id].lose_disk()
    for node_id in sorted(NODES, key=lambda node_id: node_id != behind):
        await three.start(node_id)
        await asyncio.sleep(30)
    now_leads, life = await coordinating(three)
    assert now_leads == behind, "the one that has some of it"
    assert [await committed(life, group) for group in groups] == list(range(450))
    for broker in three.lives.values():
        await broker.crash()


async def test_a_replica_assigned_while_a_rewrite_is_flushed_keeps_the_root_s_start_below_its_snapshot() -> None:
    """Alone when the start was asked for, shared when it moved: the root's start had passed the snapshot, and after a
    lost disk nobody could load the shard again."""
    settings = "thermocline.flush=os", "thermocline.offsets.snapshot.interval.ms=3600000"
    place = Place("offsets.topic.num.partitions=1", *settings)
    life = await with_commits(place)
    await life.broker.views.seal(None)
    assert await commit(life, 3) is E.NONE
    partition = life.partition(OFFSETS_TOPIC)
    (shard,) = life.context.groups.log.shards()
    flush, flushed = partition.flusher.flush, asyncio.Event()

    async def assigned_meanwhile() -> None:
        partition.tier.partition_state.is_alone = False
        await flush()
        flushed.set()

    partition.flusher.flush = assigned_meanwhile  # type: ignore[method-assign]
    shard.growth.is_whole = False  # as after a load that needed the bucket: rewritten at once
    await flushed.wait()
    await asyncio.sleep(1)
    await life.crash()
    place.lose_disk()
    life = await place.start()
    async with asyncio.timeout(60):
        await life.context.groups.log.wait_loaded()
    assert await committed(life) in (2, 3)
    await life.crash()


# ---- leadership that moves while commits are under way ---------------------------------------------------------------


async def led_again(life: Life, index: int = 0) -> None:
    """Resign the partition, and lead it in the next epoch, as the publisher does."""
    replicas = life.replicas
    topic = life.context.registry.topics[OFFSETS_TOPIC]
    replicas.resign(topic, [index])
    row, rows = topic.rows[index], list(topic.rows)
    rows[index] = msgspec.structs.replace(
        row, leader_epoch=row.leader_epoch + 1, partition_epoch=row.partition_epoch + 1
    )
    topic = msgspec.structs.replace(topic, rows=tuple(rows))
    replicas.lead(topic, [index])
    await replicas.opened(topic.topic_id)


async def test_a_rewrite_of_an_ended_epoch_does_not_move_the_start_in_the_next_one() -> None:
    """Regression: the flush before the move outlived the epoch, and the start moved through the next epoch's lease."""
    life = await with_commits(Place("offsets.topic.num.partitions=1"))
    partition = life.partition(OFFSETS_TOPIC)
    (shard,) = life.context.groups.log.shards()
    flush, flushed = partition.flusher.flush, asyncio.Event()

    async def led_again_meanwhile() -> None:
        await led_again(life)
        await flush()
        flushed.set()

    partition.flusher.flush = led_again_meanwhile  # type: ignore[method-assign]
    shard.growth.is_whole = False  # as after a load that needed the bucket: rewritten at once
    await flushed.wait()
    await asyncio.sleep(1)
    assert life.partition(OFFSETS_TOPIC) is partition and partition.leading
    assert partition.log_start_offset == 0
    await life.crash()


async def test_a_load_that_failed_once_does_not_end_the_epoch() -> None:
    """Regression: the second load of a leader epoch went on with a log that the failed one had resigned. No rewrite
    moved the log start, and no commit waited for offsets, until the next epoch."""
    place = Place("offsets.topic.num.partitions=1")
    life = await with_commits(place)
    log = life.context.groups.log
    path = f"/data/a/{OFFSETS_TOPIC}-0/{0:020}.log"
    place.disk.flip_bit(path, LENGTH_AT + 1, 6)
    await led_again(life)
    await log.wait_loaded()
    assert log.state_of(0) is ShardState.FAILED
    place.disk.flip_bit(path, LENGTH_AT + 1, 6)
    await asyncio.sleep(60)
    assert await committed(life) == 2
    (shard,) = log.shards()
    shard.growth.is_whole = False  # as after a load that needed the bucket: rewritten at once
    await asyncio.sleep(10)
    assert life.partition(OFFSETS_TOPIC).log_start_offset == 3
    await life.crash()


async def test_groups_are_sent_to_the_leader_that_the_image_names_and_wait_where_it_names_this_broker() -> None:
    """NOT_COORDINATOR, and every client looks for the new one; COORDINATOR_NOT_AVAILABLE, and it comes back."""
    life = await with_commits(Place("offsets.topic.num.partitions=1"))
    replicas, metadata = life.replicas, life.context.metadata
    topic = metadata.topic(OFFSETS_TOPIC)
    replicas.resign(topic, [0])
    assert await commit(life, 5) is E.COORDINATOR_NOT_AVAILABLE, "its root names somebody newer, the image does not"
    elsewhere = msgspec.structs.replace(topic.rows[0], leader=77, leader_epoch=9)
    moved = msgspec.structs.replace(topic, rows=(elsewhere,))
    metadata.swap(msgspec.structs.replace(metadata.image, topics={**metadata.image.topics, topic.topic_id: moved}))
    assert await commit(life, 5) is E.NOT_COORDINATOR and await committed(life) is E.NOT_COORDINATOR
    await life.crash()


async def test_cluster_d45_leadership_that_moves_under_commits_loses_none_that_was_acknowledged() -> None:
    """At every moment of a commit's way: it is told NOT_COORDINATOR, or it is durable; what the next epoch shows is
    what the log holds, also where the high watermark of the new epoch passes the old append."""
    place = Place("offsets.topic.num.partitions=1")
    life = await with_commits(place)
    partition, acknowledged, told = life.partition(OFFSETS_TOPIC), 2, set[E]()
    for moment in range(60):
        writing = asyncio.get_running_loop().create_task(commit(life, 10 + moment))
        await asyncio.sleep(moment * 0.0002)
        assert life.partition(OFFSETS_TOPIC) is partition
        for _ in range(5):
            await asyncio.sleep(0)  # what is decided is told
        was_pending = not writing.done()
        await led_again(life)
        code = await writing
        assert code is E.NOT_COORDINATOR or not was_pending, "the next epoch's high watermark says nothing of it"
        told.add(code)
        await life.context.groups.log.wait_loaded()
        shown = await committed(life)
        if code is E.NONE:
            acknowledged = 10 + moment
        assert shown in (acknowledged, 10 + moment)
        acknowledged = int(shown)
    assert told == {E.NONE, E.NOT_COORDINATOR}, "the moments are on both sides"
    await life.stop()


@pytest.mark.parametrize("end", ["seal", "stop"])
async def test_a_first_rewrite_on_a_new_disk_that_ends_in_its_middle_loses_no_commit(end: str) -> None:
    """Regression: after a seal or a clean stop no gap is declared, so the new disk's log began with the rewrite. The
    next load took its first batch for the beginning of a complete one, and the other groups' positions were lost."""
    place = Place("offsets.topic.num.partitions=1")
    life = await with_commits(place)
    groups = [f"g{number}" for number in range(450)]
    for number, group in enumerate(groups):
        assert await commit(life, number, group=group) is E.NONE
    if end == "seal":
        await life.broker.views.seal(None)
        await asyncio.sleep(20)
        await life.crash()
    else:
        await life.stop()
    place.lose_disk()
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    partition = life.partition(OFFSETS_TOPIC)
    first = partition.log.log_end_offset
    async with asyncio.timeout(60):
        while partition.log.log_end_offset == first:
            await asyncio.sleep(0.0005)
    await life.crash()
    place.kill()
    life = await place.start()
    await life.context.groups.log.wait_loaded()
    assert [await committed(life, group) for group in groups] == list(range(450))
    await life.crash()
