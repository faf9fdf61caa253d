"""What a read-only broker shows of its owner's image."""

from __future__ import annotations

from broker.following.changes import changes
from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import NO_LEADER, Endpoint, Node, Row
from broker.read_only.archive import ArchiveImages

ME = Node(9, 0, "", "", "", (Endpoint("PLAINTEXT", "here", 9092),))
OWNERS = {node_id: Node(node_id, node_id, "d", "i", "b", ()) for node_id in (1, 2, 9)}


def topic(name: str, *rows: Row, internal: bool = False, **configs: str) -> Topic:
    return Topic(f"id of {name}", name, rows, configs, internal)


def row(leader: int, epoch: int) -> Row:
    return Row((1, 2), leader, epoch, 3, (1, 2), epoch)


OWN = ClusterImage(
    topics={
        found.topic_id: found
        for found in (
            topic("a", row(1, 4), row(NO_LEADER, 7), row(9, 4), retention_ms="1"),
            topic("__consumer_offsets", row(1, 1), internal=True),
        )
    },
    deleted={"id of gone": topic("gone", row(1, 1))},
    nodes=OWNERS,
    next_broker_epoch=10,
    cluster_configs={"log.retention.ms": "5", "max.connections": "7"},
    node_configs={9: {"max.connections": "8"}},
)


def test_this_broker_leads_everything_in_the_owners_epochs() -> None:
    """It is the only node, whatever the owner's under its id is; what nobody leads is readable too."""
    shown = ArchiveImages(ME).of(OWN)
    assert shown.nodes == {9: ME}
    assert [found.name for found in shown.topics.values()] == ["a"]
    (found,) = shown.topics.values()
    assert [(one.leader, one.leader_epoch) for one in found.rows] == [(9, 4), (9, 7), (9, 4)]
    assert all(one.replicas == one.in_sync == (9,) and one.clean and not one.target for one in found.rows)
    assert found.configs == {"retention_ms": "1"} and found.topic_id == "id of a"
    assert list(shown.deleted) == ["id of gone"]


def test_only_defaults_of_topics_are_taken_of_what_was_set_on_brokers() -> None:
    """`max.connections` is a matter of the owner's processes, whichever ids they have."""
    shown = ArchiveImages(ME).of(OWN)
    assert (shown.cluster_configs, shown.node_configs) == ({"log.retention.ms": "5"}, {})


def test_what_did_not_change_costs_nothing() -> None:
    """The same topic is the same object; the change of a leader that is no change of an epoch asks for nothing."""
    images = ArchiveImages(ME)
    before = images.of(OWN)
    same = images.of(OWN.with_records(()))
    assert same.topics["id of a"] is before.topics["id of a"]
    other = ClusterImage(
        topics={**OWN.topics, "id of a": topic("a", row(2, 4), row(1, 7), row(9, 4), retention_ms="1")}
    )
    after = changes(before, images.of(other), 9)
    assert not (after.lead or after.resign or after.withdraw or after.follow)
    newer = ClusterImage(
        topics={**OWN.topics, "id of a": topic("a", row(2, 5), row(1, 7), row(9, 4), retention_ms="1")}
    )
    (led,) = changes(before, images.of(newer), 9).lead
    assert led.indexes == (0,)
