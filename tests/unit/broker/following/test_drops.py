"""What this broker held and holds no more, from one image to the next, and whether it saw that in one session."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.following.changes import changes
from broker.metadata.image import ClusterImage
from broker.metadata.records import Row, RowsSet, TopicCreated, TopicDeleted
from tests.support.brokers.cluster_kit import id_of, session

T = id_of(1)
HELD = Row((1, 2), 1, 5, 7, (1, 2), 5)
GONE = replace(HELD, replicas=(2,), leader=2, leader_epoch=6, partition_epoch=8, in_sync=(2,))
MOVING = replace(HELD, replicas=(2, 3), target=(2, 1), leader=2, in_sync=(2, 3))


def image(row: Row, *, broker_epoch: int = 1, active: bool = True) -> ClusterImage:
    nodes = [session(node_id=1, broker_epoch=broker_epoch, active=active)]
    nodes += [session(node_id=n, broker_epoch=broker_epoch + n) for n in (2, 3)]
    return ClusterImage().with_records([*nodes, TopicCreated(T, "t", (row, HELD), {})])


def dropped(before: ClusterImage, after: ClusterImage) -> tuple[list[tuple[int, ...]], bool]:
    found = changes(before, after, 1)
    return [share.indexes for share in found.drop], found.is_seen


def test_a_row_that_names_the_broker_no_more_lets_its_log_go() -> None:
    """Led, followed, or on its way to it; also where several rows came between."""
    for row in (HELD, replace(HELD, leader=2), MOVING):
        assert dropped(image(row), image(GONE)) == ([(0,)], True)
    assert dropped(image(HELD), image(MOVING)) == ([], True)
    assert dropped(image(GONE), image(GONE)) == ([], True)


def test_what_a_deleted_topic_or_nobody_gave_is_not_dropped() -> None:
    """A deleted topic goes its own way; at the start nothing was held before (D43)."""
    before = image(HELD)
    assert dropped(before, before.with_records([TopicDeleted(T)])) == ([], True)
    assert dropped(ClusterImage(), image(GONE)) == ([], False)


@pytest.mark.parametrize("epochs", [(1, 9), (1, 1)])
def test_what_changed_hands_without_a_session_was_not_seen(epochs: tuple[int, int]) -> None:
    """It ended, and perhaps another began: what the broker obeyed is no proof (R8, R24)."""
    was, now = epochs
    found = dropped(image(HELD, broker_epoch=was), image(GONE, broker_epoch=now, active=now > was))
    assert found == ([(0,)], False)
    ended = image(HELD, active=False)
    assert dropped(ended, ended.with_records([RowsSet(T, ((0, GONE),))])) == ([(0,)], False)
