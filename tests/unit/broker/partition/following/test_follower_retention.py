"""What a copy may delete: what its leader saw whole in the bucket, never what is only named there (D33, R6)."""

from __future__ import annotations

import asyncio

from broker.config.resolve import resolve
from broker.config.topic.topic_config import TopicConfig, resolve_topic
from broker.metadata.image import Topic
from broker.partition.following.follower_retention import expire, expire_all
from tests.support.scenario import by
from tests.unit.broker.partition.following.test_follower_replica import TOPIC_ID, Copy, batch_at, copying

TIERED = {"remote.storage.enable": "true", "local.retention.ms": "0", "local.retention.bytes": "0"}
CONFIG = resolve_topic(resolve({"log.dirs": "/data"}, (), {}, None), TIERED)
LONG_AFTER_MS = 10**15


@by(copying, flush_sync=False)
async def test_cluster_d33_a_copy_keeps_what_only_an_unverified_object_holds(copy: Copy, /) -> None:
    """Local retention asks for all of it. Segments of two records each: while its leader verified nothing all stay,
    then those below the end it verified go, and no other."""

    async def expired(verified_end: int) -> int:
        assert not copy.given(high_watermark=6, verified_end=verified_end)
        await asyncio.sleep(0.1)
        await expire(copy.it, CONFIG, LONG_AFTER_MS)
        return copy.it.log.local_log_start_offset

    for offset in (0, 2, 4, 6):
        assert copy.given(batch_at(offset, count=2), verified_end=-1)
        copy.it.log.roll()
    flushing = asyncio.ensure_future(copy.it.opened.flusher.flush())
    while not flushing.done():
        await asyncio.sleep(0.01)
        if copy.syncs.asked:
            copy.syncs.answer()
    assert copy.it.log.flushed_end_offset == 8
    assert [await expired(end) for end in (-1, 0, 1, 2, 3, 5, 6)] == [0, 0, 0, 2, 2, 4, 6]
    assert await expired(8) == 6, "not committed"


@by(copying, flush_sync=False)
async def test_a_look_at_many_copies_costs_what_is_sealed_and_leaves_the_loop_to_others(copy: Copy, /) -> None:
    """Of 5 000 idle copies each had its topic's configuration worked out, in one go: half a second of the loop."""
    orders = Topic(str(TOPIC_ID), "orders", (), TIERED, False)
    asked: list[Topic] = []

    def topic_config(topic: Topic) -> TopicConfig:
        asked.append(topic)
        return CONFIG

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def look(count: int) -> None:
        many = [(copy.it, orders)] * count
        await expire_all(many, topic_config, LONG_AFTER_MS)

    assert copy.given(batch_at(0, count=2), verified_end=-1)
    beside = asyncio.ensure_future(others())
    await look(5_000)
    beside.cancel()
    assert asked == [] and turns >= 45
    copy.it.log.roll()
    flushing = asyncio.ensure_future(copy.it.opened.flusher.flush())
    while not flushing.done():
        await asyncio.sleep(0.01)
        if copy.syncs.asked:
            copy.syncs.answer()
    assert not copy.given(high_watermark=2, verified_end=2)
    await look(300)
    assert asked == [orders] and copy.it.log.local_log_start_offset == 2
