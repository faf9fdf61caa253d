"""An idle log's start moves too, by retention, and the next checkpoint says so."""

from __future__ import annotations

import asyncio

from logformat.checkpoints import decode_offsets
from logformat.values import TopicPartition
from seams.files.disk import read_file
from tests.support.brokers.broker_kit import SMALL_SEGMENTS, Place, play


def test_a_start_that_retention_moved_in_the_bucket_is_in_the_next_checkpoint() -> None:
    """Nothing is appended and no local segment goes: a broker killed later must not show the older start until it has
    read the root."""

    async def scenario() -> None:
        place = Place()
        life = await place.start()
        await life.create("log", **SMALL_SEGMENTS)
        for _ in range(30):
            await life.produce("log", b"x" * 200)
        await asyncio.sleep(300.0)
        log = life.partition("log").log
        assert log.log_start_offset == 0 < log.local_log_start_offset
        configs = {**life.context.registry.topics["log"].configs, "retention.bytes": "1500"}
        await life.context.controller.set_configs("log", lambda _: configs)
        await asyncio.sleep(300.0)
        assert 0 < log.log_start_offset < log.local_log_start_offset
        starts = decode_offsets(read_file(place.disk, "/data/a/log-start-offset-checkpoint"), "")
        assert starts[TopicPartition("log", 0)] == log.log_start_offset
        await life.stop()

    play(scenario(), timeout_s=7200.0)
