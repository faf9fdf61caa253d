"""A replica that left while its broker was away, and joins again, brings no deleted record back (ADR 32).

`delete.retention.ms` is 1 s here.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.support.brokers.shared_bucket import Pair, both, until
from tests.unit.broker.partition.test_compacted_and_tiered_again import filled, put
from tests.unit.broker.partition.test_tombstones_of_replicas import NOT_TIERED, OFTEN, values_of


async def delete(pair: Pair) -> None:
    """1 leads alone, and deletes the record. Its tombstone expires too."""
    await until(lambda: pair.leads(1), "1 leads")
    await put(pair, b"deleted", None)
    for _ in range(6):
        await filled(pair, "c")
        await asyncio.sleep(3)
    assert values_of(pair, 1) == []


async def brings_nothing_back(pair: Pair) -> None:
    """2 copies all that 1 has, without the record. The pair ends."""
    for _ in range(4):
        await filled(pair, "d")
        await asyncio.sleep(3)
    followed, led = pair.followed(2), pair.lives[1].context.registry.partitions["log", 0]
    assert followed is not None and followed.log.log_end_offset == led.log.log_end_offset
    assert values_of(pair, 2) == []
    await pair.stop()


async def moved_away_while_deleted() -> Pair:
    """2 has a record and is away. 1 leads alone, and has neither the record nor its tombstone any more."""
    pair = await both(OFTEN, **NOT_TIERED)
    await put(pair, b"deleted", b"value")
    await filled(pair, "a")
    await until(lambda: values_of(pair, 2) == [b"value"], "2 has the record")
    pair.end(2)
    pair.elect(1, (1,))
    pair.change(replicas=(1,), leader_epoch=pair.row.leader_epoch + 1)
    pair.publish(1)
    await delete(pair)
    return pair


async def test_a_replica_that_was_moved_away_while_it_was_down_brings_no_deleted_record_back() -> None:
    """Regression: it went on with its old log, which had the record, and got no tombstone any more."""
    pair = await moved_away_while_deleted()
    pair.change(target=(1, 2))
    pair.renew(2)
    pair.publish()
    await brings_nothing_back(pair)


async def test_a_joining_replica_goes_on_with_its_log_in_the_next_leader_epoch() -> None:
    """It was assigned the partition all the time, so other replicas kept the tombstones that it needs."""
    pair = await both(OFTEN, replicas=(1,), **NOT_TIERED)
    await filled(pair, "a")
    pair.change(target=(1, 2))
    pair.publish()
    await until(lambda: pair.followed(2) is not None, "2 follows")
    before = pair.followed(2)
    assert before is not None
    await until(lambda: before.log.log_end_offset == 40, "2 copied the log")
    for _ in range(2):  # as if the in-sync set of other replicas changed
        pair.change()
        pair.publish()
    pair.elect(1, (1,))
    pair.publish()
    await until(lambda: pair.followed(2) not in (None, before), "2 follows in the next epoch")
    after = pair.followed(2)
    assert after is not None and after.log is before.log
    await pair.stop()


async def joined_with_the_record() -> Pair:
    """2 is not in sync, and copied the record."""
    pair = await both(OFTEN, replicas=(1,), **NOT_TIERED)
    await put(pair, b"deleted", b"value")
    await filled(pair, "a")
    pair.change(target=(1, 2))
    pair.publish()
    await until(lambda: pair.followed(2) is not None and values_of(pair, 2) == [b"value"], "2 copied the record")
    return pair


async def test_a_joiner_that_missed_its_cancelled_move_brings_no_deleted_record_back() -> None:
    """Regression: the move was cancelled and begun again while the joiner had no session. Its process had noted that
    its log joins, and went on with it."""
    pair = await joined_with_the_record()
    pair.end(2)
    pair.change(target=(), leader_epoch=pair.row.leader_epoch + 1)
    pair.publish(1)
    await delete(pair)
    pair.change(target=(1, 2))
    pair.renew(2)
    pair.publish()
    await brings_nothing_back(pair)


@pytest.mark.parametrize("is_seen", [False, True], ids=["unseen", "seen by a role that ends slowly"])
async def test_a_joiner_whose_move_began_again_in_one_session_brings_no_deleted_record_back(*, is_seen: bool) -> None:
    """Regression: the move was cancelled and begun again. The joiner saw one image of both, or a slow call of its disk
    ended after both. Its log stayed open, still noted as the log of the move, and had the record."""
    pair = await joined_with_the_record()
    before, slow = pair.followed(2), asyncio.Event()
    assert before is not None
    if is_seen:
        before.lease._count(asyncio.ensure_future(slow.wait()))
    pair.change(target=(), leader_epoch=pair.row.leader_epoch + 1)
    pair.publish(*((1, 2) if is_seen else (1,)))
    await delete(pair)
    pair.change(target=(1, 2))
    pair.publish()
    slow.set()
    await brings_nothing_back(pair)
