"""A stop at which one of several logs cannot be synced, or the disk hangs, leaves no marker that is not true."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.brokers.broker_kit import Life, Place


@pytest.mark.parametrize("failing", range(4))
async def test_a_failed_close_beside_others_leaves_no_clean_marker(failing: int) -> None:
    """Seed 4028 of three brokers, late: `self._stops_clean &= await …` read the flag before the wait, so a log that was
    closed in order made the stop clean again. After a power cut the log was empty and was believed to be whole: its
    broker was elected, though the bucket held more."""
    place = Place("thermocline.flush=os")
    life = await place.start()
    await life.create("log", 4)
    for index in range(4):
        await life.produce("log", b"a", index=index)
    fault = place.disk.inject("sync", errno.EIO, ".log", below=f"/data/a/log-{failing}")
    await life.stop()
    assert fault.struck == 1
    assert place.disk.stat("/data/a/.kafka_cleanshutdown") is None


@pytest.mark.parametrize("fails", [False, True])
async def test_a_marker_that_a_hung_disk_writes_late_is_not_the_next_process_s(*, fails: bool) -> None:
    """The stop gave the marker as long as an upload, then released the directory; the thread wrote it all the same. The
    next process served by then: after a power cut its logs were believed to be whole, and an offset that a consumer had
    seen showed another record."""
    place = Place("thermocline.flush=os", "thermocline.store.upload.timeout.ms=5000")
    life = await place.start()
    await life.create("log", remote_storage_enable="false")
    assert (await life.produce("log", b"a")).base_offset == 0
    if fails:
        place.disk.inject("rename", errno.EIO, ".kafka_cleanshutdown")
    slow_marker(life)
    await life.stop()
    life = await place.start()
    assert (await life.produce("log", b"b")).base_offset == 1
    assert dict(await life.read_all("log"))[1] == b"b"
    await asyncio.sleep(120)
    await life.crash()
    place.power_cut()
    life = await place.start()
    assert (await life.produce("log", b"c")).error_code == 0
    assert dict(await life.read_all("log")).get(1) != b"c"
    await life.crash()


def slow_marker(life: Life) -> None:
    """The disk hangs for a minute when the marker is written. As with a thread, it is written whoever waits."""
    run = life.workers.run

    async def late(function: Callable[..., Any], *args: Any, **how: Any) -> Any:
        if getattr(function, "__name__", "") != "mark_clean":
            return await run(function, *args, **how)

        async def work() -> Any:
            await asyncio.sleep(60)
            return function(*args)

        return await asyncio.shield(asyncio.get_running_loop().create_task(work()))

    life.workers.run = late  # type: ignore[method-assign]
