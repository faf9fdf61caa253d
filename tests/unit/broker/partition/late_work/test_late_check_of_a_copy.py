"""A check of offsets that a replica's fetch asked for, and that runs after its log was cut by the next role."""

from __future__ import annotations

import asyncio

from tests.support.brokers.shared_bucket import NAME, both, until
from tests.unit.broker.partition.late_work.test_late_threads import slow
from tests.unit.broker.partition.leading.test_unclean_start import begin, done, empty, log_of, values


async def test_a_replica_that_was_checked_across_a_cut_brings_all_it_has_to_an_unclean_election() -> None:
    """Damage was noted that is none: the replica with 25 records said that it has none, one with 10 was preferred."""
    pair = await both("thermocline.flush=os", internal_segment_bytes="1000")
    first, second = pair.lives[1], pair.lives[2]
    for number in range(5):
        assert (await first.produce(NAME, b"both number %d" % number)).error_code == 0
    epoch = pair.row.leader_epoch + 1
    pair.change(leader=2, leader_epoch=epoch, in_sync=(2, 1), served_epoch=epoch)
    pair.publish(2)
    await until(lambda: pair.leads(2), "the copy leads")
    for _ in range(12):
        assert (await first.produce(NAME, b"tail" * 30, acks=1)).error_code == 0
    await asyncio.sleep(1.0)
    log = log_of(pair, 1)
    for segment in log._locator.segments[:-1]:
        segment.trusted_bytes = segment.size  # as after a restart of this process
    began = slow(first, "check", seconds=15.0)
    partition = first.partition(NAME)
    for _ in range(5):  # the fetch of a third replica, to the log's end
        found = partition.local.read(first.context.residency, 3, 1 << 20, log.log_end_offset, min_one=True)
        if isinstance(found, asyncio.Future) and not began:
            await asyncio.sleep(0.2)
    assert began
    pair.publish(1)
    await until(lambda: pair.followed(1) is not None, "it follows")
    for number in range(20):
        assert (await second.produce(NAME, b"acked %d" % number)).error_code == 0
    await until(lambda: pair.followed(1).follower.end == 25, "all is copied")  # type: ignore[union-attr]
    await asyncio.sleep(20.0)
    assert log_of(pair, 1).sound_end_offset == 25
    await second.crash()
    empty(pair, 1)
    del pair.lives[2]
    await begin(pair, 1)
    done(pair)
    await until(lambda: pair.leads(1), "it serves")
    assert len(await values(pair, 1)) == 25
    await first.crash()
