"""A compacted log that is cut below its clean end lacks records that only the lost ones superseded."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.support.brokers.shared_bucket import Pair, both, until
from tests.unit.broker.partition.test_compacted_and_tiered_again import filled, put
from tests.unit.broker.partition.test_tombstones_of_replicas import NOT_TIERED, OFTEN, values_of


async def compacted_and_left_behind() -> Pair:
    """1 has removed a value because of a newer one. 2 has the value, and leads uncleanly without the newer one. 1 is
    about to follow it."""
    pair = await both(OFTEN, **NOT_TIERED)
    await put(pair, b"deleted", b"value")
    await filled(pair, "a")
    await until(lambda: values_of(pair, 2) == [b"value"], "2 has the record")
    pair.end(2)
    pair.elect(1, (1,))
    pair.publish(1)
    await until(lambda: pair.leads(1), "1 leads alone")
    await put(pair, b"deleted", b"newer")
    for _ in range(4):
        await filled(pair, "c")
        await asyncio.sleep(3)
    assert values_of(pair, 1) == [b"newer"]
    await lead_uncleanly(pair)
    return pair


async def lead_uncleanly(pair: Pair) -> None:
    """2 leads uncleanly without the newer value. 1 is about to follow it."""
    pair.end(1)
    pair.renew(2)
    epoch = pair.row.leader_epoch + 1
    pair.change(leader=2, leader_epoch=epoch, in_sync=(2,), unclean_epoch=epoch, clean=False)
    pair.publish(2)
    await asyncio.sleep(5)
    pair.change(clean=True, served_epoch=epoch)
    pair.publish(2)
    await until(lambda: pair.leads(2), "2 leads")
    assert values_of(pair, 2) == [b"value"]
    await filled(pair, "d", by=2)
    pair.renew(1)


async def follows(pair: Pair) -> None:
    two = pair.lives[2].context.registry.partitions["log", 0]
    await until(
        lambda: (one := pair.followed(1)) is not None and one.log.log_end_offset == two.log.log_end_offset,
        "1 has all of it",
    )


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_compacted_log_that_an_unclean_start_cuts_is_copied_anew(*, is_away: bool) -> None:
    """Regression: 1 had removed a value because of a newer one, which was lost with the unclean election. 2 had the
    value; 1 lacked it for ever, and as the next leader it showed a key that nobody had deleted as absent. An outage of
    the bucket meanwhile changes nothing."""
    pair = await compacted_and_left_behind()
    pair.places[1].store.down = is_away
    pair.publish()
    await asyncio.sleep(5)
    pair.places[1].store.down = False
    await follows(pair)
    assert values_of(pair, 1) == [b"value"]
    await pair.stop()


@pytest.mark.parametrize(("operation", "suffix"), [("write", ".restart.tmp"), ("rename", "/log-0")])
async def test_a_compacted_log_that_could_not_begin_anew_at_once_is_not_cut_later(operation: str, suffix: str) -> None:
    """The restart lowered the checkpoints that showed what was compacted. Then it failed, or the process was killed.
    The next attempt cut the log, which lacked the value for ever."""
    pair = await compacted_and_left_behind()
    fault = pair.places[1].disk.inject(operation, errno.ENOSPC, suffix)
    pair.publish()
    await follows(pair)
    assert values_of(pair, 1) == [b"value"]
    assert fault.struck == (operation == "rename"), "no step of a restart came before the log was away"
    await pair.stop()
