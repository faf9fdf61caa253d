"""`thermocline.flush` is another one after a power cut: what the process before left in the page cache is gone."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.brokers.shared_bucket import until
from tests.support.brokers.three_machines import NODES, VALUES, Three
from tests.support.disk.crash_disk import CrashDisk

MODES = pytest.mark.parametrize("after", ["os", "sync"])


@MODES
async def test_a_member_that_lost_power_with_os_flush_does_not_lead_under_sync_without_what_was_acknowledged(
    after: str,
) -> None:
    """The third one is off, so the set is at its minimum and nobody leaves it. A follower loses power, its leader dies,
    the follower's operator starts it again with `sync`: its seat promises what it does not have (D6, R18)."""
    three = Three("thermocline.flush=os")
    leader = await three.fill()
    third, one = sorted(set(NODES) - {leader})
    await three.lives[third].stop()
    await until(lambda: set(three.row(leader).in_sync) == {leader, one}, "the third one left")
    for value in (b"5", b"6"):
        assert (await three.lives[leader].produce("log", value)).error_code == 0
    await asyncio.gather(three.lives[leader].crash(), three.lives[one].crash())
    place = three.places[one]
    three.places[leader].kill()
    place.power_cut()
    place.settings = (f"thermocline.flush={after}", f"node.id={one}")
    await three.start(one)
    for _ in range(60):
        await asyncio.sleep(1.0)
        if ("log", 0) in three.lives[one].context.registry.partitions:
            row, found = three.row(one), await three.lives[one].read_all("log")
            assert found == [*VALUES, (5, b"5"), (6, b"6")], f"it leads, cleanly as far as is said: {row}; {found}"
    await three.lives[one].crash()


@MODES
async def test_no_offset_shows_two_records_where_all_lost_power_with_os_flush_and_go_on_with_sync(after: str) -> None:
    """What `os` loses then is lost as told; but what consumers saw at an offset no other record may take (G2)."""
    three = Three("thermocline.flush=os")
    leader = await three.fill()
    assert await three.lives[leader].read_all("log") == VALUES, "consumers saw these"
    await asyncio.gather(*(life.crash() for life in three.lives.values()))
    for node_id, place in three.places.items():
        place.power_cut()
        place.settings = (f"thermocline.flush={after}", f"node.id={node_id}")
    await asyncio.gather(*(three.start(node_id) for node_id in NODES))
    await until(lambda: three.row(1).leader in NODES, "somebody leads")
    await until(lambda: ("log", 0) in three.lives[three.row(1).leader].context.registry.partitions, "it serves")
    life = three.lives[three.row(1).leader]
    async with asyncio.timeout(60.0):
        while (await life.produce("log", b"other")).error_code:  # until enough are in sync
            await asyncio.sleep(0.5)
    found = dict(await life.read_all("log"))
    twice = {offset: (value, found[offset]) for offset, value in VALUES if found.get(offset, value) != value}
    assert not twice, f"seen, and shown now: {twice}"
    for each in three.lives.values():
        await each.crash()


async def test_a_process_that_flushes_vouches_for_nothing_of_the_one_before_until_a_clean_stop() -> None:
    """A member was killed under `os`, and started again with `sync`; the power went before its logs were opened. The
    directory said that whoever wrote there flushes: it led, cleanly, without seven acknowledged records."""
    three = Three("thermocline.flush=os")
    leader = await three.fill()
    third, one = sorted(set(NODES) - {leader})
    await three.lives[third].stop()
    await until(lambda: set(three.row(leader).in_sync) == {leader, one}, "the third one left")
    for value in (b"5", b"6"):
        assert (await three.lives[leader].produce("log", value)).error_code == 0
    place = three.places[one]
    await asyncio.gather(three.lives[leader].crash(), three.lives[one].crash())
    three.places[leader].kill()
    place.kill()
    place.settings = ("thermocline.flush=sync", f"node.id={one}")
    before: list[CrashDisk] = []
    disk = place.disk

    def opens(kind: str, path: str) -> None:
        if not before and "/log-0" in path and kind in ("write", "sync", "rename", "unlink", "truncate"):
            before.append(disk.kill())

    disk.on_effect = opens
    await three.start(one)
    await until(lambda: bool(before), "its log is about to be opened")
    await three.lives[one].crash()
    place.kill()
    place.disk = before[0]
    place.power_cut()
    await three.start(one)
    for _ in range(60):
        await asyncio.sleep(1.0)
        assert ("log", 0) not in three.lives[one].context.registry.partitions, "it lacks what was acknowledged"
    await three.lives[one].crash()
