"""Partitions that move between three whole brokers: asked at any, nothing acknowledged lost, disks given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.controller.cluster_control import ClusterControl
from broker.error_codes import ErrorCode
from broker.membership import session_start
from broker.metadata.records import Row, RowsSet
from broker.metadata.rows import reassigned
from broker.wire.apis import ApiKey
from broker.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from seams.files.disk import remove_tree
from tests.support.brokers.broker_kit import Life, Place
from tests.support.brokers.neighbours import commit, join
from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, Three

NONE = ErrorCode.NONE


class Moving(Three):
    """`log`, of one partition, and how it is moved."""

    async def made(self, factor: int, **configs: str) -> None:
        for node_id in NODES:
            await self.start(node_id)
        controller = self.lives[NODES[0]].context.controller
        await controller.create_topic("log", 1, configs, replication_factor=factor)
        leader = self.row(NODES[0]).leader
        await until(lambda: ("log", 0) in self.lives[leader].context.registry.partitions, "it is led")

    async def move(self, at: int, *replicas: int, index: int = 0) -> Any:
        """What the broker `at` answers."""
        return await self.asked(at, list(replicas), index)

    async def cancel(self, at: int) -> Any:
        return await self.asked(at, None)

    async def asked(self, at: int, replicas: list[int] | None, index: int = 0) -> Any:
        wanted = AlterPartitionReassignmentsRequestPartition(index, replicas)
        request = AlterPartitionReassignmentsRequest(topics=[AlterPartitionReassignmentsRequestTopic("log", [wanted])])
        answer = await self.lives[at].call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, request)
        assert (answer.error_code, answer.error_message) == (NONE, None)
        (topic,) = answer.responses
        return topic.partitions[0].error_code, topic.partitions[0].error_message

    async def listed(self, at: int, *indexes: int) -> list[tuple[list[int], list[int], list[int]]]:
        topics = [ListPartitionReassignmentsRequestTopic("log", list(indexes))] if indexes else None
        request = ListPartitionReassignmentsRequest(topics=topics)
        answer = await self.lives[at].call(ApiKey.LIST_PARTITION_REASSIGNMENTS, request)
        assert (answer.error_code, answer.error_message) == (NONE, None)
        return [(p.replicas, p.adding_replicas, p.removing_replicas) for t in answer.topics for p in t.partitions]

    async def over(self, *replicas: int) -> Row:
        """Wait until these hold it, and all brokers know it; the row."""
        await until(
            lambda: all((self.row(node).replicas, self.row(node).target) == (replicas, ()) for node in self.lives),
            f"{replicas} hold it: {self.row(NODES[0])}",
        )
        row = self.row(NODES[0])
        await until(lambda: ("log", 0) in self.lives[row.leader].context.registry.partitions, "it is led")
        return row

    def directories(self, node_id: int) -> list[str]:
        """Of logs on this broker's disk, in whatever state."""
        place = self.places[node_id]
        return sorted(name for name in place.disk.list_dir("/data/a") if name.startswith("log-0"))

    def leader(self) -> Life:
        return self.lives[self.row(NODES[0]).leader]

    async def put(self, *values: bytes) -> None:
        for value in values:
            answer = await self.leader().produce("log", value)
            assert answer.error_code == NONE, answer

    async def values(self) -> list[bytes | None]:
        return [value for _, value in await self.leader().read_all("log")]

    async def end(self) -> None:
        for life in self.lives.values():
            await life.crash()


async def _shown(life: Life) -> tuple[int, list[int], list[int]]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="log")])
    (topic,) = (await life.call(ApiKey.METADATA, request)).topics
    found = topic.partitions[0]
    return found.leader_id, found.replica_nodes, sorted(found.isr_nodes)


async def test_a_partition_moves_to_another_broker_and_its_old_log_goes() -> None:
    """Asked at a broker that does not decide; what was there is there; its old broker has its disk back."""
    three = Moving()
    await three.made(1)
    (old,) = three.row(1).replicas
    new, asked = (node for node in NODES if node != old)
    await three.put(b"a", b"b")
    assert three.directories(old) == ["log-0"]
    assert await three.move(asked, new) == (NONE, None)
    row = await three.over(new)
    assert (row.leader, row.in_sync) == (new, (new,))
    assert await three.listed(asked) == []
    await three.put(b"c")
    assert await three.values() == [b"a", b"b", b"c"]
    for life in three.lives.values():
        assert await _shown(life) == (new, [new], [new])
    await until(lambda: three.directories(old) == [], "its log is gone")
    assert three.directories(new) == ["log-0"]
    refused = await three.lives[old].produce("log", b"d")
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await three.end()


async def test_one_replica_becomes_three_and_one_again() -> None:
    """Of a tiered topic, written all the while; each step is seen by every broker."""
    three = Moving()
    await three.made(1, **{"min.insync.replicas": "2"})
    (first,) = three.row(1).replicas
    second, third = (node for node in NODES if node != first)
    await three.put(b"a")
    assert await three.move(second, second, first, third) == (NONE, None)
    row = await three.over(second, first, third)
    assert (row.leader, sorted(row.in_sync)) == (first, list(NODES))
    await three.put(b"b")
    assert await three.move(third, third) == (NONE, None)
    row = await three.over(third)
    assert (row.leader, row.in_sync) == (third, (third,))
    await three.put(b"c")
    assert await three.values() == [b"a", b"b", b"c"]
    await until(lambda: [three.directories(n) for n in (first, second)] == [[], []], "their logs are gone")
    await three.end()


async def test_a_move_that_cannot_end_is_listed_and_called_off() -> None:
    """To a broker that is off: Kafka's three lists, at any broker; who held it before does again."""
    three = Moving()
    await three.made(2)
    before = three.row(1)
    (other,) = (node for node in NODES if node not in before.replicas)
    if other == 1:  # it decides
        before_other = before.replicas
        assert await three.move(2, before_other[0], 1) == (NONE, None)
        await three.over(before_other[0], 1)
        before = three.row(1)
        (other,) = (node for node in NODES if node not in before.replicas)
    await three.put(b"a")
    await three.lives.pop(other).crash()
    leaving = before.replicas[0]
    staying = before.replicas[1]
    assert await three.move(1, staying, other) == (NONE, None)
    for at in three.lives:
        assert await three.listed(at) == [([staying, other, leaving], [other], [leaving])]
        assert await three.listed(at, 0) == [([staying, other, leaving], [other], [leaving])]
        assert await three.listed(at, 1) == []
    await until(lambda: all(three.row(at).target for at in three.lives), "all know it")
    leader, replicas, _ = await _shown(three.lives[1])
    assert (leader, replicas) == (before.leader, [staying, other, leaving])
    await three.put(b"b")
    assert await three.cancel(staying) == (NONE, None)
    row = await three.over(*before.replicas)
    assert (row.leader, row.leader_epoch) == (before.leader, before.leader_epoch + 1)
    assert (await three.cancel(staying))[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await three.values() == [b"a", b"b"]
    await three.end()


async def test_who_comes_back_to_a_partition_begins_anew() -> None:
    """Out, its log gone, and in again: nothing of what it reported before counts (D81)."""
    three = Moving()
    await three.made(2)
    first, second = three.row(1).replicas
    (other,) = (node for node in NODES if node not in (first, second))
    await three.put(b"a", b"b")
    assert await three.move(other, first, other) == (NONE, None)
    await three.over(first, other)
    await until(lambda: three.directories(second) == [], "its log is gone")
    assert await three.move(other, first, second) == (NONE, None)
    await three.over(first, second)
    followed = three.lives[second].context.registry.followed
    await until(lambda: ("log", 0) in followed and followed["log", 0].log.log_end_offset == 2, "copied anew")
    await until(lambda: three.directories(other) == [], "the other's log is gone")
    assert await three.values() == [b"a", b"b"]
    await three.end()


async def test_a_log_that_is_given_back_before_it_went_stays() -> None:
    """The next row names its broker again before anything was done about the one that did not."""
    three = Moving()
    await three.made(2)
    first, second = three.row(1).replicas
    await three.put(b"a")
    await asyncio.gather(three.move(1, first), three.move(1, first, second))
    await three.over(first, second)
    await until(lambda: len(three.row(1).in_sync) == 2, "both in sync")
    await three.put(b"b")
    assert await three.values() == [b"a", b"b"]
    assert three.directories(second) == ["log-0"]
    await three.end()


async def test_a_log_that_is_gone_when_a_move_begins_is_told_as_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broker read the image, where nobody else was assigned it, so named no lost log; then somebody moved
    it; then the broker registered. Nobody else holds any of it: it begins after all that was given, as at replication
    factor 1 (C30). It took the offsets again. Found by the core's walks, seed 2591."""
    monkeypatch.setattr(session_start, "lost_logs", lambda *_: ())
    place = Place()
    life = await place.start()
    await life.create("log")
    assert (await life.produce("log", b"a")).base_offset == 0
    await join(life, 2)
    topic = life.context.metadata.topic("log")
    after = reassigned(life.context.metadata.image, topic, 0, (2, 1))
    assert after is not None and after.target == (2, 1)
    await commit(life, RowsSet(topic.topic_id, ((0, after),)))
    reserved_end = life.partition("log").log.reserved_end
    await life.crash()
    remove_tree(place.disk, "/data/a/log-0")
    life = await place.start()
    async with asyncio.timeout(60.0):
        while ("log", 0) not in life.context.registry.partitions:
            await asyncio.sleep(0.05)
    row = life.context.metadata.topic("log").rows[0]
    assert (row.replicas, row.target, row.in_sync, row.clean) == ((1,), (2, 1), (1,), True)
    assert (await life.produce("log", b"b")).base_offset >= reserved_end
    await life.stop()


async def test_a_replica_that_finds_another_topic_s_log_in_its_place_moves_it_aside() -> None:
    """Found by a reader: a topic that was deleted and made again while a broker was off was led by others, and its
    replica there, which only follows, refused to open for ever."""
    it = Moving()
    await it.made(3)
    await it.lives[3].crash()
    controller = it.lives[1].context.controller
    await until(lambda: not it.lives[1].context.metadata.image.nodes[3].active, "its session ended")
    await controller.delete_topic("log")
    await until(lambda: not it.lives[1].context.metadata.image.deleted, "nothing is left of it")
    await controller.create_topic("log", 1, {}, assignments=((0, (1, 2, 3)),))
    await it.start(3)
    await until(lambda: set(it.row(1).in_sync) == {1, 2, 3}, "its replica is in sync")
    for life in it.lives.values():
        await life.crash()


async def test_a_move_waits_for_a_log_that_failed_although_it_counts_as_in_sync() -> None:
    """The minimum keeps it in the set: it was made the only replica, and the sound logs were given away."""
    three = Moving()
    await three.made(3, **{"min.insync.replicas": "3"})
    await three.put(b"a")
    row = three.row(1)
    ill = row.replicas[2]
    registry = three.lives[ill].context.registry
    topic_id = three.lives[ill].context.metadata.topic("log").topic_id
    registry.log_failures.failed((topic_id, 0), "the disk said so")
    cluster_control, metadata = three.lives[1].context.brokers, three.lives[1].context.metadata
    assert isinstance(cluster_control, ClusterControl), "the first one decides"
    await until(lambda: ill in cluster_control.unfit(metadata.image), "it is told")
    assert await three.move(1, ill) == (NONE, None)
    await until(lambda: three.row(1).partition_epoch > row.partition_epoch, "it is decided")
    assert (three.row(1).replicas, three.row(1).target) == (row.replicas, (ill,))
    registry.log_failures.works((topic_id, 0))
    await three.over(ill)
    assert await three.values() == [b"a"]
    await three.end()
