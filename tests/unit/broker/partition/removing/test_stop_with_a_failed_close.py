"""A stop at which one of several logs cannot be synced leaves no clean-shutdown marker."""

from __future__ import annotations

import errno

import pytest

from tests.support.brokers.broker_kit import Place, play


@pytest.mark.parametrize("failing", range(4))
def test_a_failed_close_beside_others_leaves_no_clean_marker(failing: int) -> None:
    """Seed 4028 of three brokers, late: `self._stops_clean &= await …` read the flag before the wait, so a log that was
    closed in order made the stop clean again. After a power cut the log was empty and was believed to be whole: its
    broker was elected, though the bucket held more."""

    async def scenario() -> None:
        place = Place("thermocline.flush=os")
        life = await place.start()
        await life.create("log", 4)
        for index in range(4):
            await life.produce("log", b"a", index=index)
        fault = place.disk.inject("sync", errno.EIO, ".log", below=f"/data/a/log-{failing}")
        await life.stop()
        assert fault.struck == 1
        assert place.disk.stat("/data/a/.kafka_cleanshutdown") is None

    play(scenario())
