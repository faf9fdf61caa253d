"""One damaged partition of `__consumer_offsets` is its own groups' trouble, nobody else's."""

from __future__ import annotations

import asyncio

from broker.error_codes import ErrorCode as E
from broker.groups.records import partition_of
from broker.internal_topics.shard_life import ShardState
from logformat.errors import Retryable
from tests.support.groups.group_world import GroupWorld
from tests.support.groups.memory_offsets_log import MemoryOffsetsLog


def groups_of(partition: int) -> str:
    return next(f"g{i}" for i in range(100) if partition_of(f"g{i}", 2) == partition)


async def test_an_offline_partition_is_given_up_and_not_waited_for() -> None:
    """It is not led, and it should be: its clients come back later; those of the others are served."""
    w = GroupWorld(MemoryOffsetsLog(2))
    w.log.offline.add(0)
    await w.ready()
    assert [w.groups.log.state_of(i) for i in range(2)] == [ShardState.ABSENT, ShardState.READY]
    assert await w.commit(groups_of(0), 1) is E.COORDINATOR_NOT_AVAILABLE
    assert await w.commit(groups_of(1), 1) is E.NONE
    error, listed = await w.groups.admin.listed((), ())
    assert error is E.NONE and [row.group_id for row in listed] == [groups_of(1)]
    await w.kill()


async def test_groups_of_a_partition_that_is_led_elsewhere_are_sent_there() -> None:
    """NOT_COORDINATOR: every client looks for the coordinator then."""
    w = GroupWorld(MemoryOffsetsLog(2))
    await w.ready()
    assert await w.commit(groups_of(0), 1) is E.NONE
    w.groups.log.resign(0)
    assert await w.commit(groups_of(0), 2) is E.NOT_COORDINATOR
    assert await w.fetch(groups_of(0)) is E.NOT_COORDINATOR
    assert await w.commit(groups_of(1), 1) is E.NONE
    await w.kill()


async def test_a_partition_that_is_tried_again_keeps_no_other_waiting() -> None:
    """Shards were loaded one after the other: a snapshot that the store refused kept all behind it from their groups,
    until the store gave it."""
    w = GroupWorld(MemoryOffsetsLog(2))
    w.log.fail_replay = [Retryable("the store is away")]
    w.start()
    for _ in range(10):
        await asyncio.sleep(0)
    assert await w.commit(groups_of(1), 1) is E.NONE
    assert await w.commit(groups_of(0), 1) is E.COORDINATOR_LOAD_IN_PROGRESS
    await w.groups.log.wait_loaded()
    assert await w.commit(groups_of(0), 1) is E.NONE
    await w.kill()


async def test_looking_for_a_coordinator_waits_for_no_other_groups_shard() -> None:
    """It would hold up what follows on the connection, for as long as that shard cannot be loaded."""
    w = GroupWorld(MemoryOffsetsLog(2))
    w.log.offline.add(0)
    w.log.fail_replay = [Retryable("the store is away")] * 100
    w.start()
    began_s = asyncio.get_running_loop().time()
    assert await w.groups.find(groups_of(0)) is E.NONE
    assert asyncio.get_running_loop().time() == began_s
    await w.kill()
