"""What a broker's file says about data is the cluster's, or is told to have no effect: `min.insync.replicas`."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.config.topic.topic_config import resolve_topic
from broker.error_codes import ErrorCode
from broker.metadata.data_configs import effective_min, is_unclean_election_allowed, min_in_sync_set
from tests.support.brokers.broker_kit import Life, Place
from tests.support.fast_loop import HOUR_S, run_fast


def minimum(life: Life) -> tuple[int, int]:
    """What DescribeConfigs tells of the topic, and what counts when a write is acknowledged."""
    image = life.context.metadata.image
    topic = image.topic_named("log")
    assert topic is not None
    told = resolve_topic(life.context.config, topic.configs, internal=False).min_insync_replicas
    return told, min_in_sync_set(topic, image)


async def settled(life: Life) -> None:
    async with asyncio.timeout(60):
        while "min.insync.replicas" not in life.context.metadata.image.cluster_configs:
            await asyncio.sleep(0.1)


def test_what_the_file_of_the_first_broker_says_counts_for_the_cluster(caplog: pytest.LogCaptureFixture) -> None:
    """A topic was told to have a minimum of 2, and writes were acknowledged with one replica: only what stands in
    cluster.json counts. Set once: the next start changes nothing, and one whose file says otherwise says so."""

    async def scenario() -> None:
        place = Place("min.insync.replicas=2")
        life = await place.start()
        await life.create("log")
        await settled(life)
        assert minimum(life) == (2, 2)
        position = life.context.images.position
        await life.stop()
        life = await place.start()
        assert minimum(life) == (2, 2)
        assert life.context.images.position <= position + 2, "a session, and no config again"
        await life.stop()
        place.settings = ("min.insync.replicas=3",)
        life = await place.start()
        assert minimum(life) == (2, 2)
        await life.stop()

    run_fast(scenario(), timeout_s=HOUR_S)
    (line,) = [record.getMessage() for record in caplog.records if "cluster_defaults" in record.name]
    assert line == (
        "min.insync.replicas=3 of this broker's configuration has no effect: the cluster's is 2; change it with "
        "kafka-configs.sh --entity-type brokers --entity-default, or on the topic"
    )


async def test_a_file_that_says_nothing_of_it_sets_nothing() -> None:
    """A start is one commit."""
    life = await Place().start()
    await life.create("log")
    assert life.context.metadata.image.cluster_configs == {} and minimum(life) == (1, 1)
    await life.stop()


async def test_who_may_lead_without_all_is_the_cluster_s_too() -> None:
    """unclean.leader.election.enable of a file: what decides an election is the image's, the same on every broker."""
    life = await Place("unclean.leader.election.enable=true").start()
    await life.create("log")
    async with asyncio.timeout(60):
        while "unclean.leader.election.enable" not in life.context.metadata.image.cluster_configs:
            await asyncio.sleep(0.1)
    image = life.context.metadata.image
    topic = image.topic_named("log")
    assert topic is not None and is_unclean_election_allowed(topic, image)
    await life.stop()


async def test_no_coordinator_of_transactions_begins_without_their_decisions() -> None:
    """Regression: with `unclean.leader.election.enable=true` for the cluster, a replica that lacked an answered commit
    could coordinate it, and aborted what other partitions had committed. Kafka makes `__transaction_state` without."""
    life = await Place("unclean.leader.election.enable=true").start()
    async with asyncio.timeout(60):
        while "unclean.leader.election.enable" not in life.context.metadata.image.cluster_configs:
            await asyncio.sleep(0.1)
    assert life.context.transactions is not None
    await life.context.transactions.find("tx")
    await life.context.groups.find("group")
    image = life.context.metadata.image
    decisions, offsets = image.topic_named("__transaction_state"), image.topic_named("__consumer_offsets")
    assert decisions is not None and not is_unclean_election_allowed(decisions, image)
    assert offsets is not None and is_unclean_election_allowed(offsets, image), "as in Kafka: commits are read again"
    await life.stop()


async def test_decisions_of_transactions_need_two_replicas_as_soon_as_there_are_three() -> None:
    """Regression: `__transaction_state` of a cluster that began as one broker had a minimum of 1 for ever, also with
    three replicas, and an answered commit was lost with one machine."""
    life = await Place().start()
    assert life.context.transactions is not None
    await life.context.transactions.find("tx")
    assert (await life.context.transactions.init_producer_id("tx", 1_000, None)).error is ErrorCode.NONE
    image = life.context.metadata.image
    topic = image.topic_named("__transaction_state")
    assert topic is not None
    (row,) = {*topic.rows}
    assert effective_min(topic, row, image) == 1
    assert effective_min(topic, replace(row, replicas=(1, 2, 3)), image) == 2
    await life.stop()
