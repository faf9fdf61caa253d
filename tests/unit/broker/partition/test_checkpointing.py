"""When checkpoints are written, and what they name."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping

import pytest

from hotstore.host.log_host import LogHost
from hotstore.log.partition_log import PartitionLog
from logformat.checkpoints import decode_offsets
from logformat.values import TopicPartition
from seams.files.disk import read_file
from tests.support.brokers.broker_kit import Place

MINUTE_S = 60.0


async def test_a_full_disk_is_not_tried_every_second_nor_every_log_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt makes four files. They are tried as often as a disk with room is written to (every 5 s), with no log
    sampled again that did not change; and the first one that finds room says all of it."""
    named: list[int] = []
    whole = LogHost.checkpoint

    async def checkpoint(host: LogHost, marks: Mapping[PartitionLog, int]) -> None:
        named.append(len(marks))
        await whole(host, marks)

    monkeypatch.setattr(LogHost, "checkpoint", checkpoint)
    place = Place()
    life = await place.start()
    await life.context.controller.create_topic("still", 20, {})
    await life.context.controller.create_topic("log", 1, {})
    await asyncio.sleep(MINUTE_S)
    place.disk.inject("write", errno.ENOSPC, "-checkpoint.tmp", times=-1)
    for _ in range(3):
        await life.produce("log", b"one")
    named.clear()
    await asyncio.sleep(MINUTE_S)
    assert 10 <= len(named) <= 13, named
    assert max(named) == 1, named
    place.disk.heal()
    await asyncio.sleep(10.0)
    marks = decode_offsets(read_file(place.disk, "/data/a/replication-offset-checkpoint"), "")
    assert marks[TopicPartition("log", 0)] == 3
    await life.stop()


async def test_what_was_opened_is_noted_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that leads in another epoch says so within two seconds; the others are not sampled for it."""
    named: list[set[str]] = []
    whole = LogHost.checkpoint

    async def checkpoint(host: LogHost, marks: Mapping[PartitionLog, int]) -> None:
        named.append({log.topic for log in marks})
        await whole(host, marks)

    monkeypatch.setattr(LogHost, "checkpoint", checkpoint)
    place = Place()
    life = await place.start()
    await life.context.controller.create_topic("still", 20, {})
    await asyncio.sleep(MINUTE_S)
    named.clear()
    await life.context.controller.create_topic("log", 1, {})
    await asyncio.sleep(2.1)
    assert named and {"log"} in named and not any("still" in of for of in named)
    epochs = decode_offsets(read_file(place.disk, "/data/a/leader-epoch-seen-checkpoint"), "")
    assert epochs[TopicPartition("log", 0)] == life.partition("log").leader_epoch
    await life.stop()
