"""A deposed leader that does not know it lets nothing go by plain retention: log starts never move back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.metadata.records import Row, TopicCreated
from broker.partition.leading.leader_role import LeaderRole
from logformat.errors import Fenced
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, Pair, both, until


async def test_a_zombie_that_is_cut_off_lets_nothing_go_by_size() -> None:
    """It counts what it appended for acks=1, which nobody committed. Its log start never moves back: leading again, it
    would take all that was acknowledged with it."""
    pair = await both(remote_storage_enable="false", internal_segment_bytes="1000", retention_bytes="20000")
    for number in range(50):
        assert (await pair.lives[1].produce(NAME, b"%03d" % number + b"x" * 100)).error_code == 0
    copy = pair.followed(2)
    assert copy is not None
    await until(lambda: copy.follower.end == 50 and copy.high_watermark == 50, "all is copied")
    pair.places[1].store.down = True  # and hears of no image
    pair.elect(2, (2,))
    pair.publish(2)
    await until(lambda: pair.leads(2), "2 leads")
    for _ in range(200):
        assert (await pair.lives[1].produce(NAME, b"zombie" + b"z" * 100, acks=1)).error_code == 0
    zombie = pair.lives[1].partition(NAME)
    assert zombie.high_watermark == 50 and zombie.log.local_bytes > 30_000
    await asyncio.sleep(700)
    assert zombie.log.local_log_start_offset == 0
    pair.places[1].store.down = False
    pair.publish(1)
    await until(lambda: (back := pair.followed(1)) is not None and back.follower.end == 50, "1 follows")
    pair.elect(1, (1, 2))
    pair.publish()
    await until(lambda: pair.leads(1), "1 leads")
    await asyncio.sleep(2)
    assert pair.lives[1].partition(NAME).log_start_offset == 0
    await pair.stop()


async def test_a_leader_that_is_asked_lets_go_by_size_what_is_due() -> None:
    """The same topic with nobody cut off: both tiers of the pair start where the root says."""
    pair = await both(remote_storage_enable="false", internal_segment_bytes="1000", retention_bytes="20000")
    for number in range(250):
        assert (await pair.lives[1].produce(NAME, b"%03d" % number + b"x" * 100)).error_code == 0
    await asyncio.sleep(700)
    start = pair.lives[1].partition(NAME).log_start_offset
    assert start > 0 and (await pair.manifest()).log_start_offset == start
    await until(lambda: (copy := pair.followed(2)) is not None and copy.log.log_start_offset == start, "2 is told")
    await pair.stop()


@pytest.mark.parametrize("when", ["open", "being opened"])
async def test_a_leader_that_waits_for_its_neighbours_lets_nothing_go_once_another_leads(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by reading: `log-0` is open here, and not published yet, for `log-1` is not open. Another broker leads it
    since: nobody told its tier, which was in order with the newest image and might have moved the log start in the
    root, for as long as the neighbour took; that keeps nobody waiting for more than half a second now."""
    pair = Pair()
    await pair.start(1)
    await pair.start(2)
    row = Row((1, 2), 1, 0, 0, (1, 2), 0)
    pair.note(TopicCreated(TOPIC_ID, NAME, (row, row), {}))
    replicas: Any = pair.lives[1].replicas
    goes_on, is_open, opening = asyncio.Event(), asyncio.Event(), LeaderRole._opened

    async def held_up(self: LeaderRole) -> Any:
        if self.index == 1:
            await asyncio.Event().wait()  # until the broker stops
        partition = await opening(self)
        is_open.set()
        if when == "being opened":
            await goes_on.wait()
        return partition

    monkeypatch.setattr(LeaderRole, "_opened", held_up)
    pair.publish()
    await is_open.wait()
    if when == "open":
        await until(lambda: replicas.opened_count == 1, "one of two is open")
    assert not replicas._registry.partitions, "it waits for its neighbour"
    (tier,) = [tier for tier in replicas._tiers._attached if tier.name == f"{NAME}-0"]
    tier.partition_state.check_fresh()
    pair.elect(2, (1, 2))
    pair.publish(1)  # the other claims nothing yet: no root of it tells
    goes_on.set()
    assert not replicas._registry.partitions, "it waits for its neighbour"
    with pytest.raises(Fenced):
        tier.partition_state.check_fresh()
    pair.publish(2)
    await until(lambda: pair.leads(2), "2 leads")
    await until(lambda: pair.followed(1) is not None, "1 follows, whatever the neighbour waits for")
    await pair.stop()
