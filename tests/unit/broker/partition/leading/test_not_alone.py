"""A partition that is not alone: it obeys the leader machine, whatever the set (its shell comes with replication)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.replication.in_sync import NO_SESSION, AppliedRow
from broker.replication.leader import Report
from broker.wire.apis import ApiKey
from broker.wire.messages import ListOffsetsRequest, ListOffsetsRequestPartition, ListOffsetsRequestTopic
from tests.support.brokers.broker_kit import Life, Place


async def _latest(life: Life, version: int = 11) -> Any:
    wanted = ListOffsetsRequestPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsRequestTopic(name="log", partitions=[wanted])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic], timeout_ms=5000)
    return (await life.call(ApiKey.LIST_OFFSETS, request, version)).topics[0].partitions[0]


async def test_what_a_member_of_the_set_did_not_report_is_neither_shown_nor_acknowledged() -> None:
    """Also not after the next leader epoch began, whose end is then unknown (KIP-207) until the member has all that
    came before it; who asks in an old version hears what that version knows."""
    place = Place()
    life = await place.start()
    await life.create("log")
    await life.produce("log", b"a")
    partition = life.partition("log")
    me = life.context.config.node_id
    row = AppliedRow(partition.leader_epoch + 1, 1, frozenset((me, 7)), 1, frozenset((me, 7)), {me: NO_SESSION, 7: 70})
    partition.lease.move_high_watermark(partition.high_watermark)
    partition.lead(partition.lease, partition.tier, row)
    assert (await _latest(life)).offset == 1
    await life.produce("log", b"b", acks=1)
    await partition.flusher.flush()
    assert (partition.high_watermark, partition.log.flushed_end_offset) == (1, 2)
    assert (await life.produce("log", b"c")).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert await life.read_all("log") == [(0, b"a")]

    partition.lead(partition.lease, partition.tier, replace(row, leader_epoch=row.leader_epoch + 1))
    assert not partition.is_end_known
    assert (await _latest(life)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert (await _latest(life, 4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert partition.leader.reported(7, Report(3, 70), row.leader_epoch + 1)
    assert partition.is_end_known and partition.leader.high_watermark == 3
    await life.stop()


async def test_acks_all_is_refused_while_fewer_of_the_set_have_a_session_than_the_minimum() -> None:
    """On the way that single requests go, and on that of runs, also when it happens between two runs; with too few,
    acks=1 is taken."""
    life = await Place().start()
    await life.create("log")
    partition = life.partition("log")
    me = life.context.config.node_id
    few = AppliedRow(partition.leader_epoch + 1, 1, frozenset((me, 7)), 2, frozenset((me, 7)), {me: NO_SESSION})
    partition.lead(partition.lease, partition.tier, few)
    refused = ErrorCode.NOT_ENOUGH_REPLICAS
    assert [(await life.produce("log", b"a")).error_code for _ in range(4)] == [refused] * 4
    assert (await life.produce("log", b"a", acks=1)).error_code == 0
    assert partition.log.log_end_offset == 1

    enough = replace(few, partition_epoch=2, sessions={me: NO_SESSION, 7: 70})
    partition.leader.applied(enough)
    partition.leader.reported(7, Report(100, 70), few.leader_epoch)
    assert [(await life.produce("log", b"a")).error_code for _ in range(4)] == [0] * 4
    assert life.peer.produce_route is not None and life.peer.produce_route.alike is not None  # type: ignore[attr-defined]
    partition.leader.applied(replace(few, partition_epoch=3))
    assert (await life.produce("log", b"a")).error_code == refused
    assert partition.log.log_end_offset == 5
    await life.stop()
