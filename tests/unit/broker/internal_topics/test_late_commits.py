"""Commits that the high watermark passes long after their clients were told that the outcome is unknown."""

from __future__ import annotations

import asyncio

from broker.error_codes import ErrorCode as E
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.replication.in_sync import NO_SESSION, AppliedRow
from tests.support.brokers.broker_kit import Life, Place
from tests.unit.broker.internal_topics.test_led_partition import commit, committed, led_again, with_commits


def stand_still(life: Life, partition_epoch: int, *, stands: bool) -> None:
    """Add a member that reports nothing to the in-sync set, or remove it: the high watermark stops, or moves again."""
    partition = life.partition(OFFSETS_TOPIC)
    me = life.context.config.node_id
    members = frozenset((me, 7)) if stands else frozenset((me,))
    sessions = {me: NO_SESSION, 7: 70} if stands else {me: NO_SESSION}
    partition.applied(AppliedRow(partition.leader_epoch, partition_epoch, members, 1, members, sessions))


async def test_a_group_that_was_deleted_is_not_back_with_a_commit_from_before() -> None:
    """The high watermark stood still for longer than an append waits. Then it passed the append. The group must have
    that commit: a deletion writes tombstones for the positions of the group, and the next leader reads the log."""
    life = await with_commits(Place("offsets.topic.num.partitions=1"), count=0)
    groups = life.context.groups
    stand_still(life, 100, stands=True)
    assert await commit(life, 5) is E.COORDINATOR_NOT_AVAILABLE
    await asyncio.sleep(60)
    stand_still(life, 101, stands=False)
    await asyncio.sleep(1)
    assert await commit(life, 8, group="g2") is E.NONE
    before = await committed(life)
    assert await groups.admin.delete("g") in (E.NONE, E.GROUP_ID_NOT_FOUND)
    await led_again(life)
    await groups.log.wait_loaded()
    assert await committed(life) is None, "a deleted group is back"
    assert (before, await committed(life, "g2")) == (5, 8), "a commit in the log was not shown"
    await life.stop()
