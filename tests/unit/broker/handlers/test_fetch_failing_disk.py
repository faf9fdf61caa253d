"""A disk that fails to read what a fetch has to look at first: the client is told, as with records it cannot read."""

from __future__ import annotations

import asyncio
import errno

import pytest

from broker.error_codes import ErrorCode
from hotstore.log.locator import LogSlice
from hotstore.log.partition_log import PartitionLog
from tests.support.brokers.broker_kit import Life, Place, values_of

WAIT_MS = 1000


async def _restarted(place: Place) -> Life:
    """Thirty records in sealed segments, of which nothing is in memory."""
    life = await place.start()
    await life.create("log", internal_segment_bytes="1000")
    for number in range(30):
        await life.produce("log", b"%d" % number + b"x" * 200)
    await life.stop()
    life = await place.start()
    locator = life.partition("log").log._locator
    for segment in locator.segments:
        locator.cache.drop(segment)
    return life


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
async def test_an_index_that_cannot_be_read_is_told_to_the_client(suffix: str) -> None:
    """It was loaded again a thousand times a second until the poll's time was over, and the poll answered nothing:
    the consumer stood still and nobody told it why."""
    place = Place()
    life = await _restarted(place)
    place.disk.inject("read", errno.EIO, suffix, times=10**9)
    began = asyncio.get_running_loop().time()
    assert (await life.fetch("log", 5, max_wait_ms=WAIT_MS)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert asyncio.get_running_loop().time() - began < 0.5
    assert life.broker.metrics.unexpected_errors == 1
    place.disk.heal()
    assert values_of(await life.fetch("log", 5, max_wait_ms=WAIT_MS))[0] == b"5" + b"x" * 200
    await life.crash()


async def test_offsets_that_cannot_be_compared_are_told_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at a sealed segment's headers meets a bad sector; when the disk reads again, the records come."""
    life = await _restarted(Place())

    def failing(self: PartitionLog, found: LogSlice) -> None:
        raise OSError(errno.EIO, "made up")

    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "check", failing)
        assert (await life.fetch("log", 0, max_wait_ms=WAIT_MS)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert life.broker.metrics.unexpected_errors == 1
    assert values_of(await life.fetch("log", 0, max_wait_ms=WAIT_MS))[0] == b"0" + b"x" * 200
    await life.crash()
