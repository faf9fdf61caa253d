"""Decided transactions in a cluster whose `cluster.json` was rebuilt (R29): the image may lack topics."""

from __future__ import annotations

import asyncio
from uuid import UUID

from broker.error_codes import ErrorCode
from broker.metadata.rebuilt import UNKNOWN_REPLICA, unknown_replica
from broker.transactions.interfaces import TransactionalPartition
from broker.transactions.transaction import TV_2, TransactionState
from tests.support.brokers.broker_kit import Place


async def test_a_marker_waits_for_a_topic_that_a_rebuild_did_not_name() -> None:
    """Regression: the topic counted as deleted, and its transaction was complete without the marker. A second rebuild
    brought the topic back: its leader aborted the transaction later, since no coordinator knew the outcome."""
    life = await Place().start()
    await life.create("t")
    coordinator = life.context.transactions
    assert coordinator is not None and await coordinator.find("x") is ErrorCode.NONE
    await asyncio.sleep(1)
    image = life.context.metadata.image
    begun = await coordinator.init_producer_id("x", 60_000, None)
    topic_id = next(topic_id for topic_id, topic in image.topics.items() if topic.name == "t")
    at = TransactionalPartition("t", UUID(topic_id), 0)
    assert await coordinator.add_partitions("x", begun.producer_id, 0, [at], TV_2) is ErrorCode.NONE
    image.nodes[UNKNOWN_REPLICA] = unknown_replica(2)
    left_out = image.topics.pop(topic_id)
    assert (await coordinator.end("x", begun.producer_id, 0, TV_2, is_commit=True)).error is ErrorCode.NONE
    await asyncio.sleep(60)
    _, found = coordinator.describe("x")
    assert found is not None and found.state is TransactionState.PREPARE_COMMIT
    image.topics[topic_id] = left_out
    coordinator.sender.image_changed()
    await asyncio.sleep(10)
    _, found = coordinator.describe("x")
    assert found is not None and found.state is TransactionState.COMPLETE_COMMIT
    assert life.partition("t").log.log_end_offset == 1
    await life.stop()
