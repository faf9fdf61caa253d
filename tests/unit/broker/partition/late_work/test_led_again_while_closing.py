"""A partition is led again while the attempt before still closes its log: the next role opens the log anew.

A committer found a leader that was lent a log in the middle of its closing. It served until the log was closed under
it, and refused everything from then on, until the next epoch.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from hotstore.file_names import TEMPORARY
from hotstore.flush.flush_states import FlushEvent
from seams.loop.workers import Lane
from tests.support.brokers.broker_kit import Life
from tests.support.brokers.shared_bucket import NAME, both, until
from tiering.opening.reservation import RESERVATION_FILE


def slow_syncs(life: Life) -> tuple[list[str], asyncio.Event]:
    """The syncs that began, and the event that lets them go on."""
    began, goes_on, run = list[str](), asyncio.Event(), life.workers.run

    async def held(function: Any, *args: Any, lane: Lane = Lane.FILES) -> Any:
        if lane is Lane.FLUSH and not goes_on.is_set():
            began.append(function.__name__)
            await goes_on.wait()
        return await run(function, *args, lane=lane)

    life.workers.run = held  # type: ignore[method-assign]
    return began, goes_on


@pytest.mark.parametrize("flush", ["sync", "os"])
async def test_a_leader_of_the_next_epoch_is_not_lent_a_log_that_is_being_closed(flush: str) -> None:
    pair = await both(f"thermocline.flush={flush}")
    first = pair.lives[1]
    for number in range(5):
        assert (await first.produce(NAME, b"%d" % number)).error_code == 0
    began, goes_on = slow_syncs(first)
    assert (await first.produce(NAME, b"tail", acks=1)).error_code == 0
    opened = first.partition(NAME).opened
    if flush == "os":
        opened.flusher._on(FlushEvent.FORCED)
    await until(lambda: bool(began), "a slow sync")
    refused = pair.places[1].disk.inject("write", errno.ENOSPC, suffix=RESERVATION_FILE + TEMPORARY, times=1)
    pair.renew(1)
    pair.elect(1, (1, 2))
    pair.publish()
    await until(lambda: refused.struck > 0 and opened.is_closing, "the attempt is refused, its log being closed")
    pair.elect(1, (1, 2))
    pair.publish()
    await asyncio.sleep(2.0)
    assert not pair.leads(1), "its log is not closed yet"

    goes_on.set()
    await until(lambda: pair.leads(1), "it leads, once the log was opened anew")
    assert first.partition(NAME).opened is not opened
    assert (await first.produce(NAME, b"after")).error_code == 0
    read = [value for _, value in await first.read_all(NAME)]
    assert read == [*(b"%d" % number for number in range(5)), b"tail", b"after"]
    await pair.stop()
