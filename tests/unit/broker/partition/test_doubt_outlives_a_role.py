"""What a process did not settle of a log's tail stays in doubt: no offset that somebody saw is given again."""

from __future__ import annotations

import asyncio

from broker.metadata.records import NO_LEADER, Row, TopicCreated
from tests.support.broker_kit import play
from tests.support.shared_bucket import NAME, TOPIC_ID, Pair, until


def test_a_log_that_nobody_led_since_the_power_was_cut_is_not_vouched_for() -> None:
    """One broker held the log alone, with the page cache as its word (`os`). The power was cut, the next process was
    stopped in order before it was elected, and its marker said that the log is whole: five offsets that a consumer had
    seen were given to other records."""

    async def scenario() -> None:
        pair = Pair("thermocline.flush=os")
        await pair.start(1)
        await pair.start(2)
        pair.note(TopicCreated(TOPIC_ID, NAME, (Row((2,), 2, 0, 0, (2,), 0),), {}))
        pair.publish()
        await until(lambda: pair.leads(2), "it leads")
        for number in range(5):
            assert (await pair.lives[2].produce(NAME, b"%d" % number)).error_code == 0
        assert len(await pair.lives[2].read_all(NAME)) == 5
        await asyncio.sleep(2.0)
        await pair.lives.pop(2).crash()
        pair.places[2].power_cut()
        pair.elect(NO_LEADER, (2,))
        await pair.start(2)
        pair.publish()
        await until(lambda: pair.followed(2) is not None, "it waits to be elected")
        await pair.lives.pop(2).stop()
        assert pair.places[2].disk.stat("/data/a/.kafka_cleanshutdown") is None
        await pair.start(2)
        pair.elect(2, (2,))
        pair.publish()
        await until(lambda: pair.leads(2), "it leads again")
        answer = await pair.lives[2].produce(NAME, b"new")
        assert answer.error_code == 0 and answer.base_offset >= 5
        await pair.stop()

    play(scenario())
