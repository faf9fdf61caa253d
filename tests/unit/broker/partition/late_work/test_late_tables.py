"""What is looked up by a partition's name belongs to the topic that has the name now, whatever ends late."""

from __future__ import annotations

import asyncio
import errno

from broker.metadata.records import Row, TopicCreated, TopicDeleted
from tests.support.brokers.shared_bucket import NAME, TOPIC_ID, both, until
from tests.unit.broker.partition.late_work.test_late_closing import recovered
from tests.unit.broker.partition.late_work.test_late_threads import AGAIN, expiring


async def test_a_copy_of_a_deleted_topic_that_ends_late_takes_the_next_one_s_copy_out_of_no_table() -> None:
    """Its retention unlinks for 20 s; the next topic of the name is copied here too, and stays known."""
    pair = await both(internal_segment_bytes="1000")
    await expiring(pair, 2)
    pair.note(TopicDeleted(TOPIC_ID))
    pair.publish()
    await asyncio.sleep(0.2)
    pair.note(TopicCreated(AGAIN, NAME, (Row((1, 2), 1, 0, 0, (1, 2), 0),), {}))
    pair.publish()
    await asyncio.sleep(40.0)
    copy = pair.followed(2)
    assert copy is not None and str(copy.topic_id) == AGAIN
    for _ in range(5):
        assert (await pair.lives[1].produce(NAME, b"acked")).error_code == 0
    assert pair.bytes_of(1) == pair.bytes_of(2)
    await pair.stop()


async def test_who_leads_again_after_its_cut_was_refused_leads_a_log_that_is_whole() -> None:
    """It resigned, its disk refused the cut that its next role asked for, and it leads again before that was tried
    again: what it acknowledges then is there after a restart."""
    pair = await both("thermocline.flush=os", internal_segment_bytes="1000")
    first, second = pair.lives[1], pair.lives[2]
    for number in range(5):
        assert (await first.produce(NAME, b"%d" % number)).error_code == 0
    pair.elect(2, (2, 1))
    pair.publish(2)
    await until(lambda: pair.leads(2), "the copy leads")
    for _ in range(12):
        assert (await first.produce(NAME, b"tail" * 30, acks=1)).error_code == 0
    for number in range(3):
        assert (await second.produce(NAME, b"of two %d" % number, acks=1)).error_code == 0
    refused = pair.places[1].disk.inject("truncate", errno.EIO, suffix=".log", times=-1)
    pair.publish(1)
    await until(lambda: refused.struck > 0, "the cut is refused")
    pair.places[1].disk.heal()
    pair.elect(1, (1, 2))
    pair.publish()
    await asyncio.sleep(20.0)
    if not pair.leads(1):  # it may say that it cannot: then another one leads
        await pair.lives[1].crash()
        await pair.lives[2].crash()
        return
    acked = 0
    for number in range(10):
        acked += (await first.produce(NAME, b"again %d" % number)).error_code == 0
    opened = first.partition(NAME).opened
    assert not opened.is_torn, "it is checkpointed no more, and another one is opened over its directory"
    assert pair.bytes_of(1) == pair.bytes_of(2)
    end = first.partition(NAME).log.log_end_offset
    await first.crash()
    await second.crash()
    assert recovered(pair, 1).log_end_offset == end
