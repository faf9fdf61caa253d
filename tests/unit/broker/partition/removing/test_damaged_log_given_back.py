"""A damaged log that is dropped, and given back before it was removed, is copied anew (R18)."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, both, until
from tests.unit.broker.partition.late_work.test_late_threads import slow


@pytest.mark.parametrize("drops", [False, True])
async def test_a_damaged_log_that_is_given_back_is_copied_anew(drops: bool) -> None:
    pair = await both()
    for number in range(5):
        assert (await pair.lives[1].produce(NAME, b"%d" % number)).error_code == 0
    await until(lambda: pair.followed(2).follower.end == 5, "copied")  # type: ignore[union-attr]
    failures = pair.lives[2].context.registry.log_failures
    failures.damaged((TOPIC_ID, 0), "a read found it")
    began = slow(pair.lives[2], "close", seconds=5.0)
    if drops:
        pair.change(replicas=(1,), in_sync=(1,))
        pair.publish()
        await until(lambda: bool(began), "its log is being closed")
    else:
        pair.change(in_sync=(1,))
    pair.change(replicas=(1,), target=(1, 2), leader_epoch=pair.row.leader_epoch + 1)
    pair.publish()
    await asyncio.sleep(30.0)
    await until(lambda: pair.followed(2) is not None and pair.followed(2).follower.end == 5, "copied")  # type: ignore[union-attr]
    there = pair.places[2].disk.list_dir("/data/a")
    assert any(name.endswith("-stray") for name in there), f"the damaged log is the copy: {there}"
    await pair.stop()
