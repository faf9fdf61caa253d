"""What the god view of several brokers says of images, rows and copies of a log that should not be."""

from __future__ import annotations

from msgspec.structs import replace

from broker.metadata.image import ClusterImage, Topic
from broker.metadata.records import Node, Row
from tests.sim.several.copies import Copy, Seen, behind, unlike
from tests.sim.several.god import of_step

ROW = Row(replicas=(0, 1), leader=0, leader_epoch=5, partition_epoch=7, in_sync=(0, 1), served_epoch=5)


def image(row: Row, *, active: bool = True, broker_epoch: int = 3) -> ClusterImage:
    nodes = {0: Node(0, broker_epoch, "directory", "incarnation", "boot", (), active=active)}
    return ClusterImage(topics={"id": Topic("id", "log", (row,), {}, False)}, nodes=nodes)


def said(before: Row, after: Row) -> list[str]:
    return [found.removeprefix("here: ") for found in of_step(image(before), image(after), "here")]


def test_rows_that_follow_from_one_another_are_nothing_to_speak_of() -> None:
    """The same row, a new set, a new leader in a new epoch; nobody leads."""
    assert said(ROW, ROW) == []
    assert said(ROW, replace(ROW, partition_epoch=8, in_sync=(0,))) == []
    assert said(replace(ROW, leader=1), replace(ROW, partition_epoch=8, leader_epoch=6)) == []
    assert said(ROW, replace(ROW, partition_epoch=8, leader_epoch=6, leader=-1)) == []


def test_epochs_that_fall_or_stand_are_told() -> None:
    """A row changed in its partition epoch, a leader in its leader epoch, a leader epoch or a session that fell."""
    assert "no higher partition epoch" in said(ROW, replace(ROW, in_sync=(0,)))[0]
    assert "another leader in leader epoch 5" in said(replace(ROW, leader=1), replace(ROW, partition_epoch=8))[0]
    assert "leader epoch 4 after 5" in said(ROW, replace(ROW, partition_epoch=8, leader_epoch=4))[0]
    fell = list(of_step(image(ROW, broker_epoch=3), image(ROW, broker_epoch=2), "here"))
    assert fell == ["here: node 0 has broker epoch 2 after 3"]


def test_a_leader_without_a_session_is_told() -> None:
    """Ended, or never there."""
    for wrong in (image(ROW, active=False), image(replace(ROW, leader=1))):
        found = list(of_step(None, wrong, "here"))
        assert len(found) == 1 and "has no session" in found[0]


def copy(node_id: int, *digests: str, high_watermark: int, leads: int = -1, start: int = 0) -> Copy:
    batches = tuple(Seen(10 * i, 10 * i + 10, digest) for i, digest in enumerate(digests) if 10 * i >= start)
    return Copy(f"n{node_id}", node_id, start, 10 * len(digests), high_watermark, leads, batches)


def test_copies_may_differ_above_what_both_call_committed() -> None:
    """An uncommitted tail, a log that begins later, one that lags."""
    leader = copy(0, "a", "b", "c", "d", high_watermark=30, leads=5)
    assert list(unlike([leader, copy(1, "a", "b", "x", high_watermark=20)])) == []
    assert list(unlike([leader, copy(1, "z", "b", "c", high_watermark=30, start=10)])) == []
    assert list(unlike([leader, copy(1, "a", high_watermark=10), copy(2, high_watermark=0)])) == []


def test_copies_that_differ_below_it_are_told() -> None:
    """Another batch, and one that is missing."""
    leader = copy(0, "a", "b", "c", "d", high_watermark=30, leads=5)
    found = list(unlike([leader, copy(1, "a", "x", "c", high_watermark=30)]))
    assert len(found) == 1 and "n0 and n1 differ in [0, 30)" in found[0] and "'b'" in found[0] and "'x'" in found[0]
    assert len(list(unlike([leader, copy(1, "a", "b", high_watermark=30)]))) == 1


def test_members_that_have_not_flushed_what_is_committed_are_told() -> None:
    """Of the leader's epoch and its set only: others may lag, and an older leader knows less."""
    leader, lags = copy(0, "a", "b", "c", high_watermark=30, leads=5), copy(1, "a", "b", high_watermark=20)
    assert list(behind([leader, lags], (5, frozenset({0})))) == []
    assert list(behind([leader, lags], (6, frozenset({0, 1})))) == []
    found = list(behind([leader, lags], (5, frozenset({0, 1}))))
    assert len(found) == 1 and "n1" in found[0] and "flushed to 20" in found[0]
