"""What the bucket gives while a partition opens may be damaged, on its way or at rest: its neighbours serve on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.groups.offset_requests import CommitRow
from broker.internal_topics.shard_life import ShardState
from broker.partition.leading.leader_role import LeaderRole
from coldstore.object_store import StoreUnavailable
from logformat.values import TopicPartition
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place
from tests.support.fast_loop import run_fast
from tests.support.groups.group_world import commit_rows


def _flip_footers(place: Place) -> None:
    """One bit of the footer of every object of partition 0; a second call puts it right again."""
    objects = place.memory.objects
    for key, stored in objects.items():
        if "/0/segments/" in key:
            data = bytearray(stored.data)
            data[-100] ^= 1
            objects[key] = replace(stored, data=bytes(data))


async def _written_and_lost(place: Place) -> None:
    """A topic of two partitions in the bucket, and the disk gone."""
    life = await place.start()
    await life.create("log", 2, **SMALL_SEGMENTS)
    for number in range(12):
        for index in range(2):
            await life.produce("log", b"%d" % number + b"x" * 200, index=index)
    await life.stop()
    place.lose_disk()


async def _offline(life: Life) -> None:
    while not life.replicas.damaged:  # type: ignore[union-attr]
        await asyncio.sleep(0.1)


def test_a_footer_flipped_on_its_way_keeps_a_partition_offline_only_until_it_is_read_whole() -> None:
    """Simulated seed 1748: a burst of flips while the disk was replaced left the partition offline for good."""

    async def scenario() -> None:
        place = Place("thermocline.seal.on.shutdown=true")
        await _written_and_lost(place)
        _flip_footers(place)
        life = await place.start()
        await _offline(life)
        assert [value[:1] for _, value in await life.read_all("log", 1) if value][:3] == [b"0", b"1", b"2"]
        host = life.replicas
        assert host is not None and list(host.damaged) == [TopicPartition("log", 0)]
        _flip_footers(place)
        while host.damaged:
            await asyncio.sleep(1.0)
        assert len(await life.read_all("log", 0)) == 12
        assert (await life.produce("log", b"goes on")).error_code == ErrorCode.NONE
        await life.stop()

    run_fast(scenario(), timeout_s=900.0)


def test_a_topic_deleted_while_one_of_its_partitions_is_offline_is_not_opened_again() -> None:
    """Nor does its damage keep the broker from a clean stop."""

    async def scenario() -> None:
        place = Place("thermocline.seal.on.shutdown=true")
        await _written_and_lost(place)
        _flip_footers(place)
        life = await place.start()
        await _offline(life)
        await life.context.controller.delete_topic("log")
        _flip_footers(place)
        await asyncio.sleep(300.0)
        host = life.replicas
        assert host is not None and not host.damaged and not life.context.registry.partitions
        await life.stop()
        assert place.disk.stat("/data/a/.kafka_cleanshutdown") is not None

    run_fast(scenario(), timeout_s=3600.0)


def test_a_partition_is_opened_once_however_many_attempts_its_topic_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partition 0 comes damaged while the store refuses partition 1: the second attempt opened both, and the look
    after the damaged one then put another `Partition` over the same log in the registry. Who waited for the first one
    (consumers, acknowledgements) was never told again."""
    open_one = LeaderRole._opened
    refusals = iter([True])

    async def scenario() -> None:
        place = Place("thermocline.seal.on.shutdown=true")
        await _written_and_lost(place)
        _flip_footers(place)

        async def refused_once(self: LeaderRole) -> Any:
            if self.topic.name == "log" and self.index == 1 and next(refusals, False):
                await asyncio.sleep(1.0)
                _flip_footers(place)
                raise StoreUnavailable("made up")
            return await open_one(self)

        monkeypatch.setattr(LeaderRole, "_opened", refused_once)
        life = await place.start()
        host = life.replicas
        assert host is not None and next(refusals, None) is None
        while ("log", 0) not in life.context.registry.partitions:
            await asyncio.sleep(0.1)
        served = life.partition("log", 0)
        waiting = served.visible(served.log.log_end_offset + 1, asyncio.get_running_loop().time() + 1000)
        assert waiting is not None
        await asyncio.sleep(120.0)
        assert life.partition("log", 0) is served and not host.damaged
        assert (await life.produce("log", b"goes on")).error_code == ErrorCode.NONE
        await asyncio.wait_for(waiting, 1.0)
        await life.stop()

    run_fast(scenario(), timeout_s=3600.0)


def test_a_topic_deleted_while_it_opens_leaves_no_partition_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was opened and not published yet is closed with it."""
    open_one = LeaderRole._opened

    async def scenario() -> None:
        life = await Place().start()

        async def refused(self: LeaderRole) -> Any:
            if self.index == 1:
                raise StoreUnavailable("made up")
            return await open_one(self)

        monkeypatch.setattr(LeaderRole, "_opened", refused)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(life.create("log", 2), 5.0)
        replicas = life.replicas
        logs = replicas._logs
        assert len(logs.open_logs) == 1
        await life.context.controller.delete_topic("log")
        async with asyncio.timeout(5.0):
            while logs.open_logs:
                await asyncio.sleep(0.1)
        await life.stop()

    run_fast(scenario(), timeout_s=3600.0)


def test_the_groups_of_an_offsets_partition_that_comes_back_come_back_with_it() -> None:
    """Its root came damaged while the broker started on a new disk: the partition was opened five seconds later, its
    groups stayed without a coordinator until the next start."""

    async def scenario() -> None:
        place = Place("offsets.topic.num.partitions=1")
        life = await place.start()
        await life.create("log")
        assert await life.context.groups.find("g") is ErrorCode.NONE
        assert await _commit(life, 7) == [ErrorCode.NONE]
        await life.stop()
        offsets_id = life.context.registry.topics["__consumer_offsets"].topic_id
        place.lose_disk()
        _flip_root(place, offsets_id)
        life = await place.start()
        groups, host = life.context.groups, life.replicas
        assert host is not None and list(host.damaged) == [TopicPartition("__consumer_offsets", 0)]
        await groups.log.wait_loaded()
        assert groups.log.state_of(0) is ShardState.ABSENT
        assert await _commit(life, 8) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        _flip_root(place, offsets_id)
        while host.damaged:
            await asyncio.sleep(1.0)
        await asyncio.sleep(120.0)
        assert groups.log.state_of(0) is ShardState.READY
        error, topics = await groups.offsets.fetch("g", None)
        assert error is ErrorCode.NONE and [(t.topic, t.partitions[0][1].offset) for t in topics] == [("log", 7)]
        assert await _commit(life, 8) == [ErrorCode.NONE]
        await life.stop()

    run_fast(scenario(), timeout_s=3600.0)


def _flip_root(place: Place, topic_id: str) -> None:
    key = f"topics/{topic_id}/0/manifest.json"
    stored = place.memory.objects[key]
    place.memory.objects[key] = replace(stored, data=bytes([stored.data[0] ^ 1]) + stored.data[1:])


async def _commit(life: Life, offset: int) -> list[ErrorCode]:
    groups = life.context.groups
    return await commit_rows(groups, "g", [CommitRow("log", 0, offset, -1, "")])
