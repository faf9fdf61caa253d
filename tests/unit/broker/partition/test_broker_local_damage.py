"""A batch whose base offset the disk changed, in a segment nobody has read since a clean stop: nobody is told it."""

from __future__ import annotations

from broker.error_codes import ErrorCode
from logformat.record_batch import walk
from seams.files.disk import read_file
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Place, batches_of

_INDEXED = {"internal_segment_bytes": "1500", "index_interval_bytes": "1"}
"""Entries so near each other that a start looks at the last batch of a segment only."""
_KEPT_LOCALLY = SMALL_SEGMENTS | {"local_retention_bytes": "-2"} | _INDEXED
_BATCHES = 12


async def _written(place: Place, **configs: str) -> list[tuple[int, bytes | None]]:
    """Twelve batches in several local segments, a clean stop; what readers are to find."""
    life = await place.start()
    await life.create("log", 1, **configs)
    for number in range(_BATCHES):
        await life.produce("log", b"%d" % number + b"x" * 200)
    truth = await life.read_all("log")
    await life.stop()
    return truth


def _move_second_batch(place: Place) -> int:
    """Flip one bit of the base offset of the second batch of the first segment; that offset."""
    path = "/data/a/log-0/00000000000000000000.log"
    at, header = list(walk(read_file(place.disk, path)))[1]
    place.disk.flip_bit(path, at + 6, 2)
    return header.base_offset


async def test_a_moved_batch_is_read_from_the_bucket() -> None:
    """Both tiers have it: the whole one answers (G11)."""
    place = Place("thermocline.seal.on.shutdown=true")
    truth = await _written(place, **_KEPT_LOCALLY)
    _move_second_batch(place)
    life = await place.start()
    assert life.partition("log").log.local_log_start_offset == 0
    assert await life.read_all("log") == truth
    await life.stop()


async def test_a_moved_batch_that_only_the_disk_has_is_refused_and_those_before_it_are_served() -> None:
    """Not skipped, not told at another offset; what follows the damage is readable for who asks for it."""
    place = Place()
    truth = await _written(place, remote_storage_enable="false", **_INDEXED)
    moved = _move_second_batch(place)
    life = await place.start()
    before = await life.fetch("log", 0, max_wait_ms=500)
    assert before.error_code == ErrorCode.NONE and len(batches_of(before)) == 1
    assert (await life.fetch("log", moved, max_wait_ms=500)).error_code == ErrorCode.CORRUPT_MESSAGE
    assert life.partition("log").log.sound_end_offset == moved, "what an unclean start would keep"
    behind = life.partition("log").log.sealed_segments()[1].base_offset
    assert await life.read_all("log", start=behind) == truth[behind:]
    await life.crash()
