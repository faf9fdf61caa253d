"""A manifest rotted, and an earlier version of it was put back (docs/operations.md): what that does not name is no
garbage while the log here begins above it, nor where the log is lost, and begins where that manifest ends."""

from __future__ import annotations

import asyncio
import copy

import pytest

from coldstore.inspection.bucket_inspection import BucketInspector
from coldstore.inspection.orphan_safety import keep_by_manifest
from coldstore.keys import SegmentKey, parse_key
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Life, Place
from tests.support.brokers.shared_bucket import until


def segments(place: Place) -> set[str]:
    return {key for key in place.memory.objects if isinstance(parse_key(key), SegmentKey)}


async def fill(life: Life, count: int) -> None:
    for number in range(count):
        assert (await life.produce("log", b"%04d" % number * 100)).error_code == 0
    log = life.partition("log").log
    await until(lambda: log.local_log_start_offset >= log.active_info().base_offset > 0, "it left the disk")


async def test_objects_that_an_earlier_manifest_does_not_name_stay_while_the_log_begins_above_it() -> None:
    place = Place()
    life = await place.start()
    topic_id = await life.create("log", **SMALL_SEGMENTS)
    root = f"topics/{topic_id}/0/manifest.json"
    objects = place.memory.objects
    await fill(life, 20)
    earlier = copy.deepcopy(objects[root])
    await fill(life, 20)
    newest, before = copy.deepcopy(objects[root]), segments(place)
    whole = await life.read_all("log")
    await life.crash()
    place.kill()

    objects[root] = earlier
    life = await place.start()
    await asyncio.sleep(600.0)
    gone = before - segments(place)
    assert not gone, f"{len(gone)} of {len(before)} objects, the only copies, were deleted as garbage"
    await life.crash()

    objects[root] = newest
    life = await place.start()
    await asyncio.sleep(60.0)
    assert await life.read_all("log") == whole
    await life.crash()


async def test_objects_that_an_earlier_manifest_does_not_name_stay_where_the_disk_is_lost_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The runbook of a lost cluster. The log goes on where that manifest ends, so its offsets are given again."""
    place = Place()
    life = await place.start()
    topic_id = await life.create("log", **SMALL_SEGMENTS)
    root = f"topics/{topic_id}/0/manifest.json"
    objects = place.memory.objects
    await fill(life, 20)
    earlier = copy.deepcopy(objects[root])
    await fill(life, 20)
    before = segments(place)
    await life.crash()
    place.lose_disk()
    objects[root] = earlier
    for _ in range(2):  # the second time its own manifest covers the offsets
        inspector = BucketInspector(place.memory, place.workers())
        plan = await inspector.plan_gc(topic_id, 0)
        by_hand = await keep_by_manifest(place.memory, topic_id, 0, plan, place.workers())
        assert not before & {info.key for info in by_hand.deletable}, "`bucket gc --delete` would delete them"
        life = await place.start()
        await asyncio.sleep(600.0)
        gone = before - segments(place)
        assert not gone, f"{len(gone)} of {len(before)} objects, the only copies, were deleted as garbage"
        await fill(life, 20)
        await life.crash()
        place.kill()
    assert "stay" in caplog.text and "they hold records that the log lacks" in caplog.text
