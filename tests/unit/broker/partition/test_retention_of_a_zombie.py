"""A deposed leader that does not know it lets nothing go by plain retention: log starts never move back."""

from __future__ import annotations

import asyncio

from tests.support.broker_kit import play
from tests.support.shared_bucket import NAME, both, until


def test_a_zombie_that_is_cut_off_lets_nothing_go_by_size() -> None:
    """It counts what it appended for acks=1, which nobody committed. Its log start never moves back: leading again, it
    would take all that was acknowledged with it."""

    async def scenario() -> None:
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

    play(scenario())


def test_a_leader_that_is_asked_lets_go_by_size_what_is_due() -> None:
    """The same topic with nobody cut off: both tiers of the pair start where the root says."""

    async def scenario() -> None:
        pair = await both(remote_storage_enable="false", internal_segment_bytes="1000", retention_bytes="20000")
        for number in range(250):
            assert (await pair.lives[1].produce(NAME, b"%03d" % number + b"x" * 100)).error_code == 0
        await asyncio.sleep(700)
        start = pair.lives[1].partition(NAME).log_start_offset
        assert start > 0 and (await pair.manifest()).log_start_offset == start
        await until(lambda: (copy := pair.followed(2)) is not None and copy.log.log_start_offset == start, "2 is told")
        await pair.stop()

    play(scenario())
