"""A log start that moved stays moved, whichever replica leads next (R7, R26): two whole brokers, the test decides."""

from __future__ import annotations

import asyncio

import pytest

from broker.error_codes import ErrorCode
from logformat.checkpoints import decode_offsets
from logformat.values import TopicPartition
from seams.files.disk import read_file
from tests.support.brokers.shared_bucket import NAME, Pair, both, until


def start_on_disk(pair: Pair, node_id: int) -> int | None:
    path = "/data/a/log-start-offset-checkpoint"
    disk = pair.places[node_id].disk
    if disk.stat(path) is None:
        return None
    return decode_offsets(read_file(disk, path), "").get(TopicPartition(NAME, 0))


@pytest.mark.parametrize("tiered", ["true", "false"])
async def test_cluster_d36_a_deletion_is_answered_when_whoever_may_lead_next_knows_it(tiered: str) -> None:
    """A member that does not fetch keeps it unanswered, asked again too; one that does has the start on its disk when
    it is answered, and leads with it though the bucket is away."""
    pair = await both(remote_storage_enable=tiered)
    for number in range(6):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    pair.renew(2)
    pair.publish(1)  # 2 asks in a session that is over, and is refused
    assert (await pair.delete_records(1, 4)).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert (await pair.delete_records(1, 4)).error_code == ErrorCode.REQUEST_TIMED_OUT
    waiting = asyncio.ensure_future(pair.delete_records(1, 4, 30_000))
    await asyncio.sleep(1)
    assert not waiting.done()
    pair.publish(2)
    answer = await waiting
    assert (answer.error_code, answer.low_watermark) == (0, 4)
    assert start_on_disk(pair, 2) == 4
    assert (await pair.manifest()).log_start_offset == 4
    pair.store_away(True)
    pair.elect(2, (2,))
    pair.publish()
    await until(lambda: pair.leads(2), "the other leads")
    assert (await pair.lives[2].fetch(NAME, 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await pair.lives[2].read_all(NAME, start=4) == [(4, b"4"), (5, b"5")]
    pair.store_away(False)
    await pair.stop()


async def test_a_deletion_waits_for_no_member_whose_session_is_over_and_ends_with_the_leadership() -> None:
    """Who comes back asks the root before it leads; a new leader is the one to be asked."""
    pair = await both()
    for number in range(6):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    pair.renew(2)
    pair.publish(1)
    waiting = asyncio.ensure_future(pair.delete_records(1, 2, 30_000))
    await asyncio.sleep(1)
    pair.end(2)
    pair.publish(1)
    assert (await waiting).error_code == 0
    pair.renew(2)
    pair.publish(1)
    waiting = asyncio.ensure_future(pair.delete_records(1, 4, 30_000))
    await asyncio.sleep(1)
    pair.elect(2, (1, 2))
    pair.publish()
    assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await pair.stop()


async def test_a_replica_joins_when_it_knows_where_the_log_starts() -> None:
    """As a member it may lead without asking the bucket. An idle log's start reaches it too."""
    pair = await both()
    for number in range(6):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    pair.change(in_sync=(1,))
    pair.publish()
    pair.renew(2)
    pair.publish(1)
    assert (await pair.delete_records(1, 4)).error_code == 0
    partition = pair.lives[1].partition(NAME)
    await asyncio.sleep(2)
    assert partition.leader.in_sync.union == {1}
    pair.publish(2)
    await until(lambda: partition.leader.in_sync.union == {1, 2}, "its joining is proposed")
    assert start_on_disk(pair, 2) == 4
    await pair.stop()
