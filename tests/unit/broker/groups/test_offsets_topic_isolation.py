"""One damaged partition of `__consumer_offsets` is its own groups' trouble, nobody else's."""

from __future__ import annotations

from typing import cast
from uuid import UUID

import pytest

from broker.config.resolve import resolve
from broker.controller.door import ControllerDoor
from broker.groups.coordinator import GroupCoordinator
from broker.metadata.image import Topic
from broker.offsets_topic import TOPIC, OffsetsTopic
from broker.partition.partition import Partition
from broker.partition.registry import Registry
from logformat.errors import InvalidRequest, StorageFailed
from seams.workers import Workers
from tests.support.fast_loop import FastClock, run_fast

TOPIC_ID = UUID("0190a8c0-0000-7000-8000-0000000000bb")


class Tier:
    def __init__(self) -> None:
        self.snapshots: list[int] = []

    async def commit_snapshot(self, end_offset: int, data: bytes) -> None:
        self.snapshots.append(end_offset)


class Led:
    def __init__(self, index: int) -> None:
        self.index = index
        self.tier = Tier()


class Groups:
    """All partitions changed long ago; partition 0 has no snapshot to give."""

    partitions = 3

    def __init__(self) -> None:
        self.written: list[int] = []

    def dirty_since(self, partition: int) -> float:
        return 0.0

    async def snapshot(self, partition: int) -> tuple[int, bytes]:
        if partition == 0:
            raise InvalidRequest("older than the one named")
        return 10 * partition, b"state"

    def snapshot_written(self, partition: int, end_offset: int) -> None:
        self.written.append(partition)


def offsets_topic(led: list[Led]) -> OffsetsTopic:
    registry = Registry()
    registry.publish(Topic(str(TOPIC_ID), TOPIC, 3, {}, True), cast("list[Partition]", led))
    config = resolve({"log.dirs": "/data"}, [], {}, None)
    return OffsetsTopic(cast(ControllerDoor, None), registry, config, FastClock(), cast(Workers, None))


def test_an_offline_partition_is_given_up_and_not_waited_for() -> None:
    """Shards load one after the other: one that tries for ever would keep all behind it from their groups."""

    async def scenario() -> None:
        offsets = offsets_topic([Led(1), Led(2)])
        with pytest.raises(StorageFailed, match="offline"):
            async for _ in offsets.replay(0):
                pass

    run_fast(scenario())


def test_a_snapshot_that_fails_does_not_keep_the_others_from_the_bucket() -> None:
    """A lost disk must lose 10 s of commits at most, also while another partition's snapshot cannot be written."""

    async def scenario() -> None:
        led = [Led(0), Led(1), Led(2)]
        groups = Groups()
        with pytest.raises(InvalidRequest):
            await offsets_topic(led).write_snapshots(cast(GroupCoordinator, groups))
        assert groups.written == [1, 2] and [p.tier.snapshots for p in led] == [[], [10], [20]]

    run_fast(scenario())
