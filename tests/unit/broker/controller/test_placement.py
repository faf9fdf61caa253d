"""Where new partitions lie: as asked, or striped; never on a broker nobody knows."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.config.resolve import resolve
from broker.controller.decisions import placement, topics
from broker.errors import ApiError
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.rebuilt import unknown_replica
from broker.metadata.records import FORGOTTEN, Node, Row
from broker.metadata.rows import new_rows
from tests.support.brokers.cluster_kit import id_of, session

NODES = st.lists(st.integers(0, 50), min_size=1, max_size=9, unique=True).map(sorted)


def cluster(*nodes: int, racks: dict[int, str] | None = None, ended: tuple[int, ...] = ()) -> ClusterImage:
    known = {}
    for node_id in nodes:
        node = session(node_id=node_id, active=node_id not in ended)
        known[node_id] = replace(node, boot_id=f"boot-{node_id}", rack=(racks or {}).get(node_id))
    return ClusterImage(nodes=known, next_broker_epoch=2)


def with_topic(image: ClusterImage, replicas: list[placement.Replicas], rows: tuple[Row, ...] = ()) -> ClusterImage:
    """One topic more, or the last one grown."""
    number = len(image.topics) + (not rows)
    topic = Topic(id_of(number), f"t{number}", (*rows, *new_rows(image, replicas)), {}, False)
    return ClusterImage(
        topics={**image.topics, topic.topic_id: topic}, nodes=image.nodes, next_broker_epoch=image.next_broker_epoch
    )


def leads(image: ClusterImage) -> Counter[int]:
    found = Counter(dict.fromkeys(image.nodes, 0))
    found.update(row.leader for topic in image.topics.values() for row in topic.rows)
    return found


def is_even(counts: Counter[int]) -> bool:
    return max(counts.values()) - min(counts.values()) <= 1


@given(NODES, st.integers(1, 60), st.integers(1, 9), st.integers(0, 40))
def test_what_is_spread_is_even_and_distinct(nodes: list[int], count: int, factor: int, more: int) -> None:
    """Nobody leads two partitions more than another, nobody holds one twice; what is added later goes on evenly."""
    image = cluster(*nodes)
    if factor > len(nodes):
        with pytest.raises(ApiError, match=f"only {len(nodes)} broker"):
            placement.spread(image, count, factor)
        return
    found = placement.spread(image, count, factor)
    assert len(found) == count
    assert all(len(set(replicas)) == factor and set(replicas) <= set(nodes) for replicas in found)
    image = with_topic(image, found)
    assert is_even(leads(image))
    rows = image.topics[id_of(1)].rows
    assert is_even(leads(with_topic(image, placement.spread(image, more, factor, rows), rows)))


@given(NODES, st.lists(st.integers(1, 12), min_size=1, max_size=20))
def test_small_topics_do_not_all_begin_at_one_broker(nodes: list[int], counts: list[int]) -> None:
    """They did: a hundred topics of one partition were all led by the first broker."""
    image = cluster(*nodes)
    for count in counts:
        image = with_topic(image, placement.spread(image, count, 1))
        spare = max(leads(image).values()) - min(leads(image).values())
        assert spare <= (1 if max(counts) == 1 or len(nodes) == 1 else 2), leads(image)


def test_replicas_lie_in_other_racks_while_there_are_some() -> None:
    """A rack that fails takes one replica of each; with fewer racks than replicas each has one at least."""
    racks = {1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "c"}
    image = cluster(*racks, racks=racks)
    for replicas in placement.spread(image, 60, 3):
        assert {racks[node_id] for node_id in replicas} == {"a", "b", "c"}
    for replicas in placement.spread(image, 60, 5):
        assert {racks[node_id] for node_id in replicas} == {"a", "b", "c"} and len(set(replicas)) == 5
    followed = {replicas[1] for replicas in placement.spread(cluster(1, 2, 3), 6, 2) if replicas[0] == 1}
    assert followed == {2, 3}, "who fails is not followed by one broker alone"


def test_processes_of_one_machine_are_one_domain() -> None:
    """Where no rack is told: its boot id says which machine it is."""
    image = cluster(1, 2, 3, 4)
    image.nodes[2] = replace(image.nodes[2], boot_id="boot-1")
    image.nodes[4] = replace(image.nodes[4], boot_id="boot-3")
    for replicas in placement.spread(image, 20, 2):
        assert len({node_id in (1, 2) for node_id in replicas}) == 2


def test_one_broker_gets_everything() -> None:
    """The cluster of one."""
    image = cluster(4)
    assert placement.spread(image, 3, 1) == [(4,)] * 3
    assert placement.assigned(image, [(1, [4]), (0, [4])]) == [(4,)] * 2
    assert placement.added(image, [[4]], 1, new_rows(image, [(4,)])) == [(4,)]


def test_an_assignment_keeps_its_order() -> None:
    """The first replica is the one to lead."""
    assert placement.assigned(cluster(1, 2, 3), [(1, [3, 1]), (0, [2, 3])]) == [(2, 3), (3, 1)]


def test_an_assignment_gives_every_partition_as_many_replicas() -> None:
    """In the words of Apache Kafka 4.3.1; ours took any mixture."""
    image = cluster(1, 2, 3)
    text = "includes a partition with 1 replica.s., but this is not consistent with previous partitions, which have 2 "
    with pytest.raises(ApiError, match=text):
        placement.assigned(image, [(0, [1, 2]), (1, [3])])
    with pytest.raises(ApiError, match=text):
        placement.added(image, [[2, 3], [3]], 2, new_rows(image, [(1, 2)]))


@given(NODES, st.integers(1, 20), st.integers(1, 9), st.data())
def test_a_broker_that_restarts_gets_replicas_only_where_the_others_are_too_few(
    nodes: list[int], count: int, factor: int, data: st.DataObject
) -> None:
    """As in Kafka: a topic of replication factor 3 can be created while one of three brokers restarts. Until then it
    was refused, and internal topics got fewer replicas for ever."""
    ended = data.draw(st.sets(st.sampled_from(nodes)))
    image = cluster(*nodes, ended=tuple(ended))
    if factor > len(nodes) or len(ended) == len(nodes):
        with pytest.raises(
            ApiError, match=f"only {len(nodes)} broker" if factor > len(nodes) else "are currently fenced"
        ):
            placement.spread(image, count, factor)
        return
    for replicas in placement.spread(image, count, factor):
        assert len(set(replicas)) == len(replicas) == factor and set(replicas) <= set(nodes)
        in_session = min(factor, len(nodes) - len(ended))
        assert ended.isdisjoint(replicas[:in_session]) and ended.issuperset(replicas[in_session:])
        row = new_rows(image, [replicas])[0]
        assert (row.leader, row.in_sync) == (replicas[0], replicas[:in_session])


def test_a_broker_that_restarts_is_of_another_rack_while_there_is_one() -> None:
    """Half of the partitions had both replicas in the rack of the one broker that was there."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    image = cluster(*racks, racks=racks, ended=(2, 3, 4))
    assert {node_id for _, node_id in placement.spread(image, 20, 2)} == {3, 4}
    assert {replicas[1] for replicas in placement.spread(image, 20, 3)} == {3, 4}


def test_an_internal_topic_counts_brokers_that_restart() -> None:
    """It got one replica for ever if a group came first while two of three brokers restarted."""
    wanted = topics.NewTopic(id_of(1), "__consumer_offsets", 2, {}, 3, internal=True)
    config = resolve({"log.dirs": "/data"}, (), {}, None)
    created = topics.create(cluster(1, 2, 3, ended=(1, 3)), wanted, config, 0).answer
    assert [row.replicas for row in created.rows] == [(2, 1, 3), (2, 3, 1)]
    assert [row.in_sync for row in created.rows] == [(2,), (2,)]
    created = topics.create(cluster(2), wanted, config, 0).answer
    assert [row.replicas for row in created.rows] == [(2,), (2,)]


@pytest.mark.parametrize(
    "away", [unknown_replica(2), replace(session(node_id=2, active=False), directory_id=FORGOTTEN)]
)
def test_a_node_that_may_never_come_back_gets_no_replicas(away: Node) -> None:
    """The placeholder of a rebuilt cluster, and a broker that was given up: they leave the cluster when they have no
    replicas any more."""
    image = cluster(1)
    image.nodes[away.node_id] = away
    with pytest.raises(ApiError, match="only 1 broker"):
        placement.spread(image, 1, 2)
    with pytest.raises(ApiError, match=f"broker {away.node_id}, but no such broker is registered"):
        placement.assigned(image, [(0, [1, away.node_id])])
    wanted = topics.NewTopic(id_of(1), "__consumer_offsets", 2, {}, 3, internal=True)
    created = topics.create(image, wanted, resolve({"log.dirs": "/data"}, (), {}, None), 0).answer
    assert [row.replicas for row in created.rows] == [(1,), (1,)]


def test_an_assignment_needs_one_broker_with_a_session() -> None:
    image = cluster(1, 2, 3, ended=(2,))
    assert placement.assigned(image, [(0, [2, 1])]) == [(2, 1)]
    assert new_rows(image, [(2, 1)])[0].leader == 1
    with pytest.raises(ApiError, match="assignment for partition 5 are fenced or in controlled shutdown"):
        placement.added(image, [[1], [2]], 2, new_rows(image, [(1,)] * 4))
