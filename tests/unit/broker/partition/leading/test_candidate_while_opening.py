"""A replica that opens a damaged log does not answer the controller's search for a leader before it knows what is whole
of it (R18, R20): acknowledged records were lost by the answer that it holds nothing."""

from __future__ import annotations

import asyncio

import pytest

from broker.controller.unclean_recovery import best
from broker.metadata.records import NO_LEADER
from tests.support.brokers.shared_bucket import TOPIC_ID, until
from tests.unit.broker.partition.late_work.test_late_threads import slow
from tests.unit.broker.partition.leading.test_candidate_moved_aside import logs_stay, said, stopped_with_damage  # noqa: F401
from tests.unit.broker.partition.leading.test_unclean_start import begin, done, values


@pytest.mark.parametrize("opens_s", [0.0, 20.0])
async def test_what_is_whole_of_a_log_counts_however_long_it_takes_to_be_opened(opens_s: float) -> None:
    pair = await stopped_with_damage()
    await pair.start(1)
    await pair.start(2)
    pair.elect(2, (2,))
    pair.publish(2)
    failures = pair.lives[2].context.registry.log_failures
    await until(lambda: (TOPIC_ID, 0) in failures.lost, "it refuses to be led")
    began = slow(pair.lives[2], "_recover", seconds=opens_s)
    pair.elect(NO_LEADER, ())
    pair.publish()
    await until(lambda: bool(began), "it is opened to be copied")
    await until(lambda: said(pair, 1) is not None, "1 says what it holds")
    heard = {}
    async with asyncio.timeout(60):  # as the controller does: whoever answered is asked no more
        while len(heard) < 2:
            heard |= {node_id: one for node_id in (1, 2) if node_id not in heard and (one := said(pair, node_id))}
            await asyncio.sleep(0.5)
    chosen = best(pair.row, heard)
    await begin(pair, chosen)
    done(pair)
    await until(lambda: pair.leads(chosen), "it serves")
    expected = [(number, b"%d" % number) for number in range(7)]
    assert await values(pair, chosen) == expected, f"{chosen} was chosen of {heard}"
    await pair.stop()
