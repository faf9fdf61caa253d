"""Replicas that are all short of space or descriptors: leadership stays where it is."""

from __future__ import annotations

import asyncio
import errno

import pytest

from tests.support.brokers.three_machines import NODES, VALUES, Three, served
from tests.unit.broker.test_refused_openings import crash_all


@pytest.mark.parametrize(("operation", "code"), [("write", errno.ENOSPC), ("open", errno.EMFILE)])
async def test_leadership_does_not_move_in_a_circle_while_all_replicas_are_short(operation: str, code: int) -> None:
    """A log that cannot be led for lack of space or descriptors can be opened for a follower, which reports it as
    sound. So the replicas elected each other again and again, with a commit of the controller each time."""
    three = Three()
    await three.fill()
    await crash_all(three)
    for place in three.places.values():
        place.disk.inject(operation, code, "/log-0/thermocline-reservation.tmp", times=-1)
    starts = [asyncio.create_task(three.start(node_id)) for node_id in NODES]
    await asyncio.wait(starts, timeout=60.0)
    seen_by = next(iter(three.lives))
    before = three.row(seen_by).leader_epoch
    await asyncio.sleep(10.0)
    elections = three.row(seen_by).leader_epoch - before
    for place in three.places.values():
        place.disk.heal()
    await asyncio.wait(starts)
    assert elections <= 2, f"{elections} elections in ten seconds"
    led_by = await served(three, *NODES)
    assert await three.lives[led_by].read_all("log") == VALUES
    await crash_all(three)
