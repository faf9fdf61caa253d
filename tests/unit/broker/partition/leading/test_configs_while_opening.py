"""A leader's tier begins with its topic's newest configs and row, however long its log opened."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.metadata.records import Row, RowsSet, TopicCreated
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.leading.leader_role import LeaderRole
from tests.support.brokers.cluster_kit import id_of
from tests.support.brokers.shared_bucket import both, until
from tests.support.store.faulty_store import FaultPlan
from tests.unit.broker.partition.test_compacted_and_tiered_again import COMPACT, switch
from tiering.partition_tier import PartitionTier


async def test_a_tier_does_not_begin_with_the_configs_of_before_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it began with those from before the bucket's answer, until the partition was published. A pass could
    compact the objects of a topic that keeps every record by then."""
    pair = await both(**COMPACT)
    begun: list[str] = []
    start = PartitionTier.start

    def starting(tier: PartitionTier) -> None:
        if tier.partition_state.epoch == pair.row.leader_epoch:
            begun.append(tier.partition_state.config.configs["cleanup.policy"])
        start(tier)

    monkeypatch.setattr(PartitionTier, "start", starting)
    pair.places[2].store.plan = FaultPlan(latency_s=(2.0, 2.0))
    pair.renew(2)
    pair.elect(2, (2, 1))
    pair.publish()
    await asyncio.sleep(1.0)
    assert not pair.leads(2) and not begun, "it waits for the bucket"
    switch(pair, on=True, cleanup_policy="delete")
    await until(lambda: pair.leads(2), "it leads")
    assert begun == ["delete"]
    await pair.stop()


async def test_a_tier_does_not_begin_alone_after_a_replica_was_assigned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: until the partition was published, with the topic's other partitions, its tier worked as that of the
    only replica: it could withdraw objects from the root, or move the log start on its disk alone."""
    pair = await both(replicas=(2,))
    begun: list[bool] = []
    start = PartitionTier.start

    def starting(tier: PartitionTier) -> None:
        if tier.partition_state.epoch == pair.row.leader_epoch:
            begun.append(tier.partition_state.is_alone)
        start(tier)

    monkeypatch.setattr(PartitionTier, "start", starting)
    pair.places[2].store.plan = FaultPlan(latency_s=(2.0, 2.0))
    pair.elect(2, (2,))
    pair.publish()
    await asyncio.sleep(1.0)
    assert not pair.leads(2) and not begun, "it waits for the bucket"
    pair.change(target=(2, 1))
    pair.publish()
    await until(lambda: pair.leads(2), "it leads")
    assert begun == [False]
    await pair.stop()


async def test_a_replica_that_is_assigned_before_the_publication_counts_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tier of the first partition works already, while the second one opens."""
    pair = await both(replicas=(2,))
    tiers: dict[int, PartitionTier] = {}
    open_one, start, goes_on = LeaderRole._opened, PartitionTier.start, asyncio.Event()

    async def opened(role: LeaderRole) -> LeaderReplica:
        if role.index == 1:
            await goes_on.wait()
        return await open_one(role)

    def starting(tier: PartitionTier) -> None:
        tiers[tier.partition_state.partition] = tier
        start(tier)

    monkeypatch.setattr(LeaderRole, "_opened", opened)
    monkeypatch.setattr(PartitionTier, "start", starting)
    row = Row((2,), 2, 0, 0, (2,), 0)
    pair.note(TopicCreated(id_of(78), "two", (row, row), {}))
    pair.publish()
    await until(lambda: 0 in tiers, "the tier of the first partition works")
    assert tiers[0].partition_state.is_alone
    pair.note(RowsSet(id_of(78), ((0, replace(row, partition_epoch=1, target=(2, 1))),)))
    pair.publish()
    assert ("two", 0) not in pair.lives[2].context.registry.partitions
    assert not tiers[0].partition_state.is_alone
    goes_on.set()
    await pair.stop()
