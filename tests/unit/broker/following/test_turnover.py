"""What became of partitions from one image to the next: counted by one broker each, one line of log an image."""

from __future__ import annotations

import logging

import pytest

from broker.following.turnover import Some, Turnover, turned
from broker.metadata.cluster_content import ControllerAt
from broker.metadata.cluster_root import ImageAt
from broker.metadata.image import ClusterImage
from broker.metadata.records import Node, Row, RowsSet, TopicCreated
from broker.metadata.rows import session_began, sessions_ended
from tests.support.brokers.cluster_kit import id_of, session


def cluster(*rows: Row) -> ClusterImage:
    nodes = [session(f"i{node}", node_id=node, broker_epoch=node, directory_id=f"d{node}") for node in (1, 2, 3)]
    return ClusterImage().with_records([*nodes, TopicCreated(id_of(1), "log", rows, {})])


BEFORE = cluster(*(Row((1, 2, 3), 1, 0, 0, (1, 2, 3), 0) for _ in range(5)), Row((3, 1), 3, 0, 0, (3, 1), 0))


def ended(image: ClusterImage, node_id: int) -> ClusterImage:
    """The session of `node_id` is over, and rows as the controller makes them."""
    over = Node(node_id, node_id, f"d{node_id}", f"i{node_id}", "boot", image.nodes[node_id].listeners, None, False)
    away = image.with_records([over])
    return away.with_records(sessions_ended(away, [node_id]))


def test_whoever_is_elected_counts_the_election_and_the_smaller_set() -> None:
    after = ended(BEFORE, 1)
    two, three, one = (turned(BEFORE, after, node) for node in (2, 3, 1))
    assert two.led.count == two.shrunk.count == 5 and not two.resigned.count
    assert three.led == Some() and three.shrunk == Some(1, ("log-5",))
    assert one.resigned.count == 5 and not one.led.count and not one.shrunk.count
    assert turned(after, after, 2) == turned(BEFORE, BEFORE, 1)


def test_a_set_that_grows_again_and_an_unclean_start() -> None:
    after = ended(BEFORE, 3)
    row = next(iter(after.topics.values())).rows[0]
    assert turned(BEFORE, after, 1).shrunk.count
    grown = after.with_records([RowsSet(id_of(1), ((0, Row((1, 2, 3), 1, 0, row.partition_epoch + 1, (1, 2, 3), 0)),))])
    assert turned(after, grown, 1).grown.names == ("log-0",)
    alone = cluster(Row((1,), 1, 0, 0, (1,), 0))
    other = session("new", node_id=1, broker_epoch=9, directory_id="other")
    began = alone.with_records([other])
    lost = began.with_records(session_began(began, 1, is_other_directory=True))
    found = turned(alone, lost, 1)
    assert found.unclean == found.led == Some(1, ("log-0",))


def test_one_line_an_image_however_many_partitions(caplog: pytest.LogCaptureFixture) -> None:
    """The first image is no change: a start leads what it leads."""
    counted = Turnover(2)
    with caplog.at_level(logging.INFO):
        counted.apply_image(ImageAt(1, BEFORE))
        assert not caplog.records
        counted.apply_image(ImageAt(2, ended(BEFORE, 1)))
    assert [record.getMessage() for record in caplog.records] == [
        "the session of broker 1 ended",
        "this broker leads in a new leader epoch: log-0, log-1, log-2 and 2 more",
        "fewer in-sync replicas: log-0, log-1, log-2 and 2 more",
    ]
    assert (counted.elections, counted.shrinks, counted.expansions, counted.unclean_elections) == (5, 5, 0, 0)


def test_who_decides_is_told_by_those_who_do_not(caplog: pytest.LogCaptureFixture) -> None:
    """An operator who looks at any broker's log learns it; the controller tells why a session ended, and is the only
    one to, but where its claim ended it."""
    one, two = ControllerAt(1, "i1", 4), ControllerAt(2, "i2", 5)
    follower, decider = Turnover(3), Turnover(2)
    with caplog.at_level(logging.INFO):
        for turnover in (follower, decider):
            turnover.apply_image(ImageAt(1, BEFORE, one))
        follower.apply_image(ImageAt(2, ended(BEFORE, 1), two))
        assert [record.getMessage() for record in caplog.records][:2] == [
            "broker 2 is the controller now: controller epoch 5",
            "the session of broker 1 ended",
        ]
        caplog.clear()
        decider.apply_image(ImageAt(2, ended(BEFORE, 1), two))
        assert caplog.records[0].getMessage() == "the session of broker 1 ended"
        caplog.clear()
        decider.apply_image(ImageAt(3, ended(ended(BEFORE, 1), 3), two))
        assert not any("session" in record.getMessage() for record in caplog.records)
