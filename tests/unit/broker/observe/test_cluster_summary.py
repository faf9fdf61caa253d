"""What one broker tells of its cluster: each thing once over all brokers, as conditions and as figures."""

from __future__ import annotations

import asyncio
from collections import Counter

from broker.metadata.image import ClusterImage
from broker.metadata.records import Row
from broker.observe.cluster_findings import OF_IMAGE
from broker.observe.cluster_status import AnsweringBroker, cluster_status
from broker.observe.cluster_summary import ClusterSummaries, ClusterSummary, summarize
from broker.observe.conditions import Facts, conditions
from tests.unit.broker.observe.test_cluster_status import image, topic

LACKING = image(
    topic(
        Row((1, 2, 3), 1, 0, 0, (1, 2, 3), 0),  # 3 is away: under-replicated
        Row((2, 3), 2, 0, 0, (2, 3), 0),  # and below the minimum
        Row((3,), -1, 0, 0, (3,), 0),  # nobody leads
        Row((1, 2), 2, 1, 1, (2,), 0, (), 1, False),  # begun uncleanly
        Row((1,), 1, 0, 0, (1,), 0),
        min_insync_replicas="2",
    ),
    away=(3,),
)


def told(seen: ClusterImage, node_id: int, *, decides: bool = False) -> ClusterSummary:
    return summarize(seen, node_id, decides=decides)


def test_each_partition_is_counted_by_one_broker() -> None:
    """So that a sum over brokers is right; the controller adds what nobody leads and how many are there."""
    one, two = told(LACKING, 1, decides=True), told(LACKING, 2)
    assert (one.leaders, one.replicas, two.leaders, two.replicas) == (2, 3, 2, 3)
    assert (one.under_replicated, two.under_replicated) == (1, 2)
    assert (one.below_min, two.below_min) == (0, 2)
    assert (one.starting, two.starting) == (0, 1)
    assert (one.leaderless, two.leaderless) == (1, 0)
    assert (one.sessions, two.sessions) == (2, 0)


def test_a_partition_that_moves_is_counted_and_lacks_nothing() -> None:
    """While all that held it before are in sync; what is to hold it counts for nothing yet, as in Kafka."""
    moving = image(topic(Row((1, 2), 1, 0, 0, (1, 2), 0, (2, 3)), Row((1, 2), 1, 0, 0, (1, 3), 0, (1, 3))), away=())
    looked = told(moving, 1)
    assert (looked.moving, looked.under_replicated, looked.replicas, told(moving, 3).replicas) == (2, 0, 2, 2)
    assert looked.findings() == []


def test_conditions_of_all_brokers_are_what_cluster_status_finds() -> None:
    """Nothing is told twice, nothing is left out: the same function makes both."""
    names = [finding.name for node in (1, 2) for finding in told(LACKING, node, decides=node == 1).findings()]
    assert Counter(names) == dict.fromkeys(OF_IMAGE, 1)
    held = conditions(Facts("/data", cluster=tuple(told(LACKING, 1, decides=True).findings())))
    assert [one.name for one in held] == ["no_leader", "broker_away", "under_replicated"]
    assert held[0].says.endswith(": start broker 3 again, on the same data directory")


def test_an_image_is_gone_through_once() -> None:
    """However often /metrics is asked; a new image, or another controller, is looked at anew."""

    async def scenario() -> None:
        looks = ClusterSummaries(1)
        first = await looks.of(LACKING, decides=True)
        assert await looks.of(LACKING, decides=True) is first
        assert (await looks.of(LACKING, decides=False)).leaderless == 0
        well = image(topic(Row((1,), 1, 0, 0, (1,), 0)), away=())
        assert (await looks.of(well, decides=True)).findings() == []

    asyncio.run(scenario())


def test_counts_agree_with_the_rows_of_get_cluster() -> None:
    shown = asyncio.run(cluster_status(LACKING, AnsweringBroker("c", None, 0.0, 9, "BROKERS")))
    looks = [told(LACKING, node, decides=node == 1) for node in (1, 2, 3)]
    assert sum(one.leaders for one in looks) == sum(row.leader is not None for row in shown.partitions)
    assert sum(one.leaderless for one in looks) == sum(row.offline for row in shown.partitions)
    assert sum(one.under_replicated for one in looks) == sum(
        row.under_replicated and not row.offline for row in shown.partitions
    )
    assert [one.replicas for one in looks] == [broker.replicas for broker in shown.brokers]


def test_how_silent_a_controller_may_be() -> None:
    """Three heartbeats; a parked one is answered within 1.5 s."""
    assert conditions(Facts("/data", silent_ms=4_900, controller=2)) == []
    (held,) = conditions(Facts("/data", silent_ms=61_400, controller=2))
    assert held.name == "controller_silent" and held.says.startswith(
        "the controller, broker 2, has not answered for 1m1s: this broker keeps leading its partitions"
    )
    (held,) = conditions(Facts("/data", copies_stopped=("log-0 (I/O error)",)))
    stopped = "log-0 (I/O error): no longer copied; check the disk and the log, then restart"
    assert held.says == f"{stopped} unless it is retried automatically"
