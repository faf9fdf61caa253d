"""A fetch that waits outlives the role that it reads from: it is answered that the role is over, not from closed
files."""

from __future__ import annotations

import asyncio

import pytest

from broker.error_codes import ErrorCode
from hotstore.host.lease import LeaseOver
from hotstore.host.open_log import OpenLog
from tests.support.brokers.broker_kit import Life, Place

WAIT_S = 20.0


async def _two_logs() -> Life:
    life = await Place().start()
    for name in ("log", "second"):
        await life.create(name)
    await life.produce("log", b"value")
    return life


def _slow_to_close(life: Life, topic: str) -> asyncio.Event:
    """The stop closes the log of `topic` after the event is set: it is the last of a thousand."""
    replicas, go_on = life.replicas, asyncio.Event()
    close = replicas._logs.close

    async def slow_close(opened: OpenLog, *, clean: bool) -> bool:
        if opened.place.topic == topic:
            await go_on.wait()
        return await close(opened, clean=clean)

    replicas._logs.close = slow_close  # type: ignore[method-assign]
    return go_on


async def test_a_long_poll_is_answered_when_its_role_ends() -> None:
    """It waited on, and at its time-out it was answered with a range of a file that was closed."""
    life = await _two_logs()
    poll = asyncio.ensure_future(life.fetch("log", 0, max_wait_ms=int(WAIT_S * 1000), min_bytes=1 << 20))
    await asyncio.sleep(0.1)
    go_on, loop = _slow_to_close(life, "second"), asyncio.get_running_loop()
    began_s = loop.time()
    stop = asyncio.ensure_future(life.stop())
    assert (await poll).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert loop.time() - began_s < WAIT_S / 2 and not stop.done()
    go_on.set()
    await stop


async def test_a_sealed_segment_of_a_closed_log_is_refused() -> None:
    """The read raised a TypeError in a long poll's callback, and the poll got no answer (seed 10421, three brokers,
    late work)."""
    life = await _two_logs()
    partition = life.partition("log")
    assert partition.lease.roll()
    go_on = _slow_to_close(life, "second")
    stop = asyncio.ensure_future(life.stop())
    async with asyncio.timeout(WAIT_S):
        while partition.opened.at.occupant is not None:
            await asyncio.sleep(0.01)
    with pytest.raises(LeaseOver):
        partition.local.read(life.context.residency, 0, 1000, 1, min_one=True)
    with pytest.raises(LeaseOver):
        await partition.local.batch_ranges(0, 1)
    go_on.set()
    await stop
