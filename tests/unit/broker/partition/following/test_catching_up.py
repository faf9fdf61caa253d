"""A replica takes from its leader what the bucket does not hold, and nothing else: two whole brokers, the test decides.
Leaders here keep everything on their disks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from broker.error_codes import ErrorCode
from broker.partition.following.follower_replica import FollowerReplica
from broker.partition.leading.leader_replica import LeaderReplica
from broker.wire.apis import ApiKey
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, batch_of, produce_request
from tests.support.brokers.shared_bucket import NAME, Pair, both, until

KEEPING = {**SMALL_SEGMENTS, "local_retention_bytes": "-1"}
RECORDS = 40


async def produced(pair: Pair, count: int = RECORDS, by: int = 1) -> None:
    for number in range(count):
        assert (await pair.lives[by].produce(NAME, b"%03d" % number + b"x" * 100)).error_code == 0


async def alone(*settings: str) -> Pair:
    """1 leads `log-0` alone, has all of it on its disk, and saw most of it in the bucket; 2 is a broker."""
    pair = await both(*settings, replicas=(1,), **KEEPING)
    await produced(pair)
    tier = leading(pair).tier.partition_state
    await until(
        lambda: tier.sure_end_offset == leading(pair).log.active_segment.base_offset,
        "all sealed is verified",
    )
    assert leading(pair).log.local_log_start_offset == 0 and tier.sure_end_offset > 20
    return pair


def leading(pair: Pair, node_id: int = 1) -> LeaderReplica:
    return pair.lives[node_id].partition(NAME)


def copied(pair: Pair, node_id: int = 2) -> Any:
    return pair.lives[node_id].context.registry.copied


async def caught_up(pair: Pair, node_id: int = 2, leader: int = 1) -> FollowerReplica:
    """Its log ends where its leader's does."""

    def is_there() -> bool:
        found = pair.followed(node_id)
        return found is not None and found.follower.end == leading(pair, leader).log.log_end_offset

    await until(is_there, "the copy")
    found = pair.followed(node_id)
    assert found is not None
    return found


async def away(pair: Pair) -> None:
    """2 has no session any more, and is out of the set: its leader gives it nothing."""
    await caught_up(pair)
    pair.end(2)
    pair.change(in_sync=(1,))
    pair.publish(1)


async def back(pair: Pair) -> None:
    pair.renew(2)
    pair.publish()


def bytes_above(pair: Pair, offset: int, node_id: int = 1) -> int:
    log = leading(pair, node_id).log
    return sum(found.length for found in log.batch_ranges(offset, log.log_end_offset))


async def is_read_whole(pair: Pair, leader: int) -> None:
    """By a consumer, both tiers, after a clean election."""
    await until(lambda: leading(pair, 3 - leader).leader.in_sync.union == {1, 2}, "it is proposed")
    pair.change(in_sync=(1, 2))
    pair.publish()
    pair.elect(leader, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(leader), "the copy leads")
    values = await pair.lives[leader].read_all(NAME)
    assert [offset for offset, _ in values] == list(range(leading(pair, leader).log.log_end_offset))


async def test_an_empty_replica_copies_the_hot_tail_alone() -> None:
    """Its leader has all on its own disk: what lies in the bucket, verified, is not moved all the same."""
    pair = await alone()
    verified = leading(pair).tier.partition_state.sure_end_offset
    pair.change(replicas=(1, 2))
    pair.publish()
    followed = await caught_up(pair)
    assert (followed.log.local_log_start_offset, followed.log.log_start_offset) == (verified, 0)
    totals = copied(pair)
    assert totals.bytes_in == bytes_above(pair, verified) and totals.begun == 1
    assert totals.bytes_skipped == bytes_above(pair, 0) - bytes_above(pair, verified)
    epochs = leading(pair).log.epochs
    assert followed.log.epochs == epochs.truncate_from_start(followed.log.epochs.entries[0].start_offset)
    await is_read_whole(pair, 2)
    await pair.stop()


async def test_a_copy_that_begins_in_the_bucket_knows_whose_batches_lie_below() -> None:
    """From the footer: it never had a byte of them, and as leader it answers a resend of each of the last five with its
    offset, and takes the next."""
    pair = await both(replicas=(1,), **KEEPING)
    producer_id = 5 << 36
    batches = [batch_of(b"own %d" % n, producer_id=producer_id, producer_epoch=0, base_sequence=n) for n in range(7)]

    async def written(number: int, by: int) -> tuple[int, int]:
        request = produce_request(NAME, batches[number])
        answer = (await pair.lives[by].call(ApiKey.PRODUCE, request, 9)).responses[0].partition_responses[0]
        return answer.error_code, answer.base_offset

    for number in range(6):
        assert await written(number, by=1) == (ErrorCode.NONE, number)
    await produced(pair)
    tier = leading(pair).tier.partition_state
    await until(
        lambda: tier.sure_end_offset == leading(pair).log.active_segment.base_offset,
        "all is verified",
    )
    assert tier.sure_end_offset > 20
    pair.change(replicas=(1, 2))
    pair.publish()
    followed = await caught_up(pair)
    assert followed.log.local_log_start_offset == tier.sure_end_offset
    await is_read_whole(pair, 2)
    end = leading(pair, 2).log.log_end_offset
    for number in range(1, 6):
        assert await written(number, by=2) == (ErrorCode.NONE, number)
    assert leading(pair, 2).log.log_end_offset == end, "none of them was appended again"
    assert await written(6, by=2) == (ErrorCode.NONE, end)
    await pair.stop()


@pytest.mark.parametrize("skip_bytes", [0, 1 << 20])
async def test_one_that_is_far_behind_begins_at_the_verified_end(skip_bytes: int) -> None:
    """It was away while more than the limit came. Below the limit it copies on, and keeps what it
    has: no request to the bucket is worth that."""
    pair = await both(f"thermocline.follower.skip.bytes={skip_bytes}", **KEEPING)
    await produced(pair, 3)
    await away(pair)
    before = copied(pair).bytes_in
    await produced(pair)
    tier, log = leading(pair).tier.partition_state, leading(pair).log
    await until(lambda: tier.sure_end_offset == log.active_segment.base_offset, "all sealed is verified")
    verified = tier.sure_end_offset
    await back(pair)
    followed = await caught_up(pair)
    assert followed.log.local_log_start_offset == (0 if skip_bytes else verified)
    assert copied(pair).begun == (not skip_bytes)
    assert copied(pair).bytes_in == before + bytes_above(pair, 3 if skip_bytes else verified)
    await is_read_whole(pair, 2)
    await pair.stop()


async def test_a_member_of_the_set_is_never_sent_to_the_bucket() -> None:
    """It ought to have all of that. Where the set says so and its log does not, it copies what it lacks from its own
    end on: acknowledgements rest on its report, and nothing of its log goes on another one's word."""
    pair = await alone("thermocline.follower.skip.bytes=0")
    pair.change(replicas=(1, 2), in_sync=(1, 2))  # somebody believes wrongly
    pair.publish()
    followed = await caught_up(pair)
    assert followed.log.local_log_start_offset == 0 and copied(pair).begun == 0
    assert pair.bytes_of(1) == pair.bytes_of(2)
    await pair.stop()


async def emptied(pair: Pair) -> None:
    """2, which copied all, leads, and verified nothing; 1 comes back on an empty directory."""
    await until(lambda: copied(pair).bytes_in > 0, "the copy")
    pair.elect(2, (2,))
    await pair.lives[1].crash()
    pair.publish(2)
    await until(lambda: pair.leads(2), "the copy leads")
    port = 9000 + 100 + pair.places[1].lives
    pair.lives[1] = await pair.places[1].start(f"listeners=PLAINTEXT://127.0.0.1:{port}", directory="b")
    pair._renew(pair.lives[1].context.metadata.image.nodes[1])
    pair.publish()


async def led_by_two() -> Pair:
    pair = await both(**KEEPING)
    await produced(pair)
    tier, log = leading(pair).tier.partition_state, leading(pair).log
    await until(lambda: tier.sure_end_offset == log.active_segment.base_offset, "all sealed is verified")
    await caught_up(pair)
    return pair


@pytest.mark.parametrize("drops", [False, True])
async def test_a_new_leader_verifies_what_an_empty_replica_need_not_copy(drops: bool) -> None:
    """It saw no object yet, as who led died with its disk: all of the log would be moved. Nor does the replica begin
    behind the first object, while the store takes its time with the others; nor where that leader's disk begins, when
    it let go of some (a row of bench/rows/replace.py moved 1.7 times what was hot)."""
    pair = await led_by_two()
    verified = leading(pair).tier.partition_state.sure_end_offset
    if drops:
        followed = pair.followed(2)
        assert followed is not None and followed.log.delete_local_before(12)
    store = pair.places[2].store
    store.plan = replace(store.plan, latency_s=(0.1, 0.2))
    await emptied(pair)
    followed = await caught_up(pair, 1, leader=2)
    assert followed.log.local_log_start_offset == verified == leading(pair, 2).tier.partition_state.sure_end_offset
    assert copied(pair, 1).bytes_in == bytes_above(pair, verified, 2)
    await is_read_whole(pair, 1)
    await pair.stop()


async def test_an_outage_of_the_bucket_keeps_no_replica_waiting() -> None:
    """What its leader cannot verify now is copied from its disk."""
    pair = await led_by_two()
    pair.places[2].store.down = True
    await emptied(pair)
    followed = await caught_up(pair, 1, leader=2)
    assert followed.log.local_log_start_offset == 0 and copied(pair, 1).begun == 0
    await pair.stop()


async def test_what_is_damaged_in_the_bucket_is_copied_from_the_leader_s_disk() -> None:
    """The object was whole when it was verified, and its footer is not any more: the replica, which has to begin with
    it, asks its leader for everything, which may be the last one to have it."""
    pair = await alone()
    objects = pair.places[1].memory.objects
    key = max(key for key in objects if "/segments/" in key)
    objects[key].data = objects[key].data[:-60] + bytes(60)
    pair.change(replicas=(1, 2))
    pair.publish()
    followed = await caught_up(pair)
    assert followed.log.local_log_start_offset == 0 and pair.bytes_of(1) == pair.bytes_of(2)
    await asyncio.sleep(1.0)
    await pair.stop()


async def test_a_replica_that_is_sent_on_while_segments_leave_the_leader_s_disk_begins_further_on() -> None:
    """Local retention does not wait for who copies: the next answer names a later verified end (D35)."""
    pair = await both("thermocline.follower.skip.bytes=1000000000", replicas=(1,), **KEEPING)
    await produced(pair, 4)
    pair.change(replicas=(1, 2))
    pair.publish()
    await caught_up(pair)
    await away(pair)
    await produced(pair)
    await until(lambda: leading(pair).tier.partition_state.sure_end_offset > 20, "most is verified")
    dropped = leading(pair).log.delete_local_before(20)
    assert dropped and (start := leading(pair).log.local_log_start_offset) > 4
    await back(pair)
    followed = await caught_up(pair)
    assert followed.log.local_log_start_offset >= start and followed.log.log_start_offset == 0
    await is_read_whole(pair, 2)
    await pair.stop()
