"""`GET /cluster`: what an image says of brokers and partitions."""

from __future__ import annotations

import asyncio
import json

import pytest

from broker.following.metadata_cache import MetadataCache
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import ConfigsSet, Endpoint, Node, Row, TopicCreated
from broker.observe.cluster_status import AnsweringBroker, cluster_status, partition_row
from broker.observe.sources import StartupSources
from broker.observe.views import operator_views
from logformat.errors import Retryable
from tests.support.brokers.broker_kit import Place
from tests.unit.broker.observe.test_broker_observe import sources_of

CONTROLLER = ControllerAt(2, "p2", 5)
ASKED = AnsweringBroker("c", CONTROLLER, 61.5, 9, "BROKERS")


def node(node_id: int, *, active: bool = True) -> Node:
    listeners = (Endpoint("PLAINTEXT", "out", 9090 + node_id), Endpoint("BROKERS", "::1", 7000 + node_id))
    return Node(node_id, node_id + 10, f"d{node_id}", f"p{node_id}", "boot", listeners, f"r{node_id}", active)


def topic(*rows: Row, name: str = "log", number: int = 1, **configs: str) -> TopicCreated:
    found = {key.replace("_", "."): value for key, value in configs.items()}
    return TopicCreated(f"00000000-0000-0000-0000-{number:012}", name, rows, found)


def image(*topics: TopicCreated, away: tuple[int, ...] = (3,)) -> ClusterImage:
    nodes = [node(node_id, active=node_id not in away) for node_id in (1, 2, 3)]
    return ClusterImage().with_records([*nodes, *topics])


def test_brokers_and_partitions_of_one_image() -> None:
    """Sorted; a target counts for who is to hold it; where brokers reach each other is told to operators."""
    two = topic(Row((1, 2), 2, 4, 6, (1, 2), 4), name="b")
    one = topic(Row((2, 3), -1, 1, 2, (3,), 0, (1,)), Row((1,), 1, 0, 0, (1,), 0), name="a", number=2)
    found = asyncio.run(cluster_status(image(two, one), ASKED))
    assert (found.controller, found.controller_epoch, found.controller_for_ms, found.version) == (2, 5, 61_500, 9)
    assert [(each.node, each.active, each.leaders, each.replicas) for each in found.brokers] == [
        (1, True, 1, 3),
        (2, True, 1, 2),
        (3, False, 0, 1),
    ]
    first = found.brokers[0]
    assert (first.host, first.port, first.rack, first.broker_epoch) == ("out", 9091, "r1", 11)
    assert (first.brokers_at, first.machine, first.given_up) == ("[::1]:7001", "boot", False)
    assert [(each.topic, each.partition, each.leader, each.leader_epoch) for each in found.partitions] == [
        ("a", 0, None, 1),
        ("a", 1, 1, 0),
        ("b", 0, 2, 4),
    ]
    assert (found.partitions[0].replicas, found.partitions[0].target) == ((2, 3), (1,))


@pytest.mark.parametrize(
    ("row", "minimum", "away", "says"),
    [
        (Row((1, 2, 3), 1, 0, 0, (1, 2, 3), 0), "2", (), ""),
        (Row((1, 2, 3), 1, 0, 0, (1, 2, 3), 0), "2", (3,), "under_replicated"),
        (Row((1, 2, 3), 1, 0, 0, (1, 2), 0), "2", (), "under_replicated"),
        (Row((1, 2, 3), 1, 0, 0, (1, 3), 0), "2", (3,), "under_replicated below_min"),
        (Row((1,), 1, 0, 0, (1,), 0), "2", (), ""),
        (Row((3,), -1, 0, 0, (3,), 0), "1", (3,), "under_replicated below_min offline"),
        (Row((1, 2), 1, 3, 2, (1,), 2, (), 3, False), "1", (), "under_replicated starting"),
    ],
)
def test_what_a_partition_lacks(row: Row, minimum: str, away: tuple[int, ...], says: str) -> None:
    """Members whose session ended do not count; the minimum is never more than there are replicas (R2)."""
    seen = image(topic(row, min_insync_replicas=minimum), away=away)
    (found,) = [partition_row(each, 0, seen) for each in seen.topics.values()]
    flags = ("under_replicated", "below_min", "offline", "starting")
    assert " ".join(flag for flag in flags if getattr(found, flag)) == says


def test_the_minimum_of_all_brokers_counts_where_a_topic_has_none() -> None:
    row = Row((1, 2), 1, 0, 0, (1,), 0)
    seen = image(topic(row)).with_records([ConfigsSet({"min.insync.replicas": "2"})])
    assert partition_row(next(iter(seen.topics.values())), 0, seen).below_min


def test_a_broker_says_since_when_it_knows_the_controller() -> None:
    """By its own clock; a new image of the same controller changes nothing."""
    now_s = 3.0
    cache = MetadataCache("c", lambda: now_s)
    cache.swap(image(), CONTROLLER)
    now_s = 9.0
    cache.swap(image(topic(Row((1,), 1, 0, 0, (1,), 0))), CONTROLLER)
    assert cache.controller_since_s == 3.0
    cache.swap(image(), CONTROLLER._replace(epoch=6))
    assert cache.controller_since_s == 9.0


async def no_reload() -> bytes:
    return b"[]"


async def test_the_view_of_a_broker_that_serves_and_of_one_that_does_not_yet() -> None:
    life = await Place().start()
    await life.create("log", 2)
    sources = sources_of(life)
    shown = json.loads(await operator_views(sources_beginning(life), lambda: sources, no_reload).cluster())
    assert (shown["controller"], shown["version"]) == (1, sources.position())
    assert [(row["topic"], row["leader"], row["offline"]) for row in shown["partitions"]] == [("log", 1, False)] * 2
    with pytest.raises(Retryable, match="not ready"):
        await operator_views(sources_beginning(life), lambda: None, no_reload).cluster()
    await life.stop()


def sources_beginning(life: object) -> StartupSources:
    startup: StartupSources = life.broker._startup  # type: ignore[attr-defined]
    return startup
