"""A move of a partition, as the rows it makes: begun, over, called off, sent elsewhere (R16, R19; KIP-455)."""

from __future__ import annotations

from msgspec.structs import replace

from broker.metadata.image import ClusterImage, check
from broker.metadata.records import NO_LEADER, Row, TopicCreated
from broker.metadata.rows import (
    begun_uncleanly,
    cancelled,
    elected,
    ended,
    proposed,
    reassigned,
    rows_set,
    session_began,
    sessions_ended,
)
from tests.support.brokers.cluster_kit import id_of, session

T = id_of(1)


def cluster(row: Row, *, minimum: int = 1, ended: tuple[int, ...] = ()) -> ClusterImage:
    """Nodes 1 to 5 in broker epochs of their numbers, and one partition with this row."""
    sessions = [session(node_id=n, broker_epoch=n, active=n not in ended) for n in range(1, 6)]
    configs = {"min.insync.replicas": str(minimum)}
    return ClusterImage().with_records([*sessions, TopicCreated(T, "t", (row,), configs)])


def full(leader: int = 1, in_sync: tuple[int, ...] = (1, 2, 3)) -> Row:
    return Row((1, 2, 3), leader, 5, 7, in_sync, 5)


def row_of(image: ClusterImage) -> Row:
    check(image)
    return image.topics[T].rows[0]


def after(image: ClusterImage, row: Row | None) -> ClusterImage:
    assert row is not None
    check(found := image.with_records(rows_set({(T, 0): row})), image)
    return found


def move(image: ClusterImage, *target: int) -> ClusterImage:
    return after(image, reassigned(image, image.topics[T], 0, target))


def propose(image: ClusterImage, *in_sync: int) -> ClusterImage:
    return after(image, proposed(image, image.topics[T], 0, in_sync, is_done=True))


def cancel(image: ClusterImage) -> ClusterImage:
    return after(image, cancelled(image, image.topics[T], 0))


def test_a_move_begins_with_who_is_to_hold_it() -> None:
    """Leader, epoch and set stay; the replicas are as Kafka lists them, target first."""
    row = row_of(move(cluster(full()), 3, 4, 5))
    assert row == replace(full(), target=(3, 4, 5), partition_epoch=8)
    assert (row.assigned, row.adding, row.removing) == ((3, 4, 5, 1, 2), (4, 5), (1, 2))


def test_the_row_that_has_all_of_the_target_in_sync_ends_the_move() -> None:
    """Who was to go goes with the leader change, in one row and one leader epoch (R16, D62)."""
    moving = move(cluster(full()), 3, 4)
    assert row_of(propose(moving, 1, 2, 3)).target == (3, 4)
    row = row_of(propose(moving, 1, 2, 3, 4))
    assert row == Row((3, 4), 3, 6, 9, (3, 4), 6)


def test_a_leader_that_stays_begins_a_new_epoch_where_somebody_goes() -> None:
    """So that no report of who went outlives its log (D81); where nobody goes, the epoch stands."""
    row = row_of(propose(move(cluster(full()), 1, 4), 1, 2, 3, 4))
    assert (row.leader, row.leader_epoch, row.in_sync) == (1, 6, (1, 4))
    alone = Row((1,), 1, 5, 7, (1,), 5)
    row = row_of(propose(move(cluster(alone), 1, 2, 3), 1, 2, 3))
    assert row == Row((1, 2, 3), 1, 5, 9, (1, 2, 3), 5)


def test_cluster_d71_nothing_is_complete_on_nothing() -> None:
    """[1, 2, 3] to [3] while 3 is out of the set: it waits until 3 is in sync."""
    moving = move(cluster(full(in_sync=(1, 2))), 3)
    assert row_of(moving).target == (3,)
    row = row_of(propose(moving, 1, 2, 3))
    assert (row.replicas, row.leader, row.in_sync, row.target) == ((3,), 3, (3,), ())


def test_who_is_in_sync_without_a_session_is_waited_for() -> None:
    """It holds everything, and cannot lead: in its next session the move ends."""
    image = cluster(full(in_sync=(1, 2)), minimum=2, ended=(2,))
    moving = move(image, 2, 1)
    assert (row_of(moving).replicas, row_of(moving).target) == ((1, 2, 3), (2, 1))
    began = moving.with_records([session("2b", node_id=2, broker_epoch=moving.next_broker_epoch)])
    began = began.with_records(session_began(began, 2, is_other_directory=False))
    assert row_of(began).target, "what a session says of its log comes after it"
    row = row_of(after(began, ended(began, began.topics[T], 0)))
    assert (row.replicas, row.target, row.leader, row.leader_epoch, row.in_sync) == ((2, 1), (), 1, 6, (2, 1))


def test_fewer_replicas_are_there_at_once() -> None:
    """Three to one, all in sync: one row."""
    row = row_of(move(cluster(full()), 2))
    assert row == Row((2,), 2, 6, 8, (2,), 6)


def test_who_stays_and_is_away_holds_no_move_up() -> None:
    """As many as have to acknowledge are there, and as many as before are to be: as in Kafka 4.3.1. With fewer than
    that writes with acks=all would be refused by the move's end, so it waits."""
    for minimum, in_sync, over in ((1, (1, 2), True), (2, (1, 2), True), (3, (1, 2, 3), False)):
        moving = move(cluster(full(in_sync=in_sync), minimum=minimum, ended=(3,)), 2, 3, 4)
        row = row_of(propose(moving, *in_sync, 4))
        assert (row.target == ()) is over, row
        assert not over or (row.replicas, row.in_sync, row.leader) == ((2, 3, 4), (2, 4), 2)


def test_another_order_is_there_at_once() -> None:
    """Whoever is in sync: nobody comes or goes, the leader stays; the same order is no change."""
    image = cluster(full(in_sync=(1, 2)))
    row = row_of(move(image, 3, 1, 2))
    assert row == replace(full(in_sync=(1, 2)), replicas=(3, 1, 2), partition_epoch=8)
    assert reassigned(image, image.topics[T], 0, (1, 2, 3)) is None


def test_a_cancelled_move_is_as_if_it_had_not_been() -> None:
    """The replicas of before, in their order; who joined is out, in a new leader epoch; who leads there leads on."""
    moving = propose(move(cluster(full()), 3, 4, 5), 1, 2, 3, 4)
    row = row_of(cancel(moving))
    assert row == replace(full(), leader_epoch=6, served_epoch=6, partition_epoch=10)


def test_a_cancelled_move_takes_a_joiner_s_leadership() -> None:
    """The first that held it before, in sync and in session, leads."""
    moving = propose(move(cluster(full()), 3, 4, 5), 2, 1, 3, 4)
    ended = moving.with_records([session(node_id=n, broker_epoch=n, active=False) for n in (1, 3)])
    led_by_four = ended.with_records(sessions_ended(ended, (1, 3)))
    assert row_of(led_by_four).leader == 4
    assert row_of(cancel(led_by_four)).leader == 2


def test_another_target_goes_on_from_where_the_move_began() -> None:
    """Who joined for the first target alone is out at once; the same target again is no change."""
    joined = propose(move(cluster(full()), 1, 4, 5), 1, 2, 3, 4)
    assert reassigned(joined, joined.topics[T], 0, (1, 4, 5)) is None
    row = row_of(move(joined, 5, 1))
    assert (row.replicas, row.target, row.in_sync) == ((1, 2, 3), (5, 1), (1, 2, 3))
    assert (row.leader, row.leader_epoch) == (1, 6)
    back = row_of(move(joined, 2, 1, 3))
    assert (back.replicas, back.target, back.leader_epoch) == ((2, 1, 3), (), 6)


def test_while_it_moves_the_first_of_the_target_is_preferred() -> None:
    """As in Kafka, where replicas are listed so."""
    joined = propose(move(cluster(full()), 4, 5), 1, 2, 3, 4)
    row = elected(joined, joined.topics[T], 0)
    assert row is not None and (row.leader, row.target) == (4, (4, 5))


def test_an_unclean_start_is_done_before_the_move_is() -> None:
    """What the one that begins lacks is not known until then."""
    image = move(cluster(full(leader=NO_LEADER, in_sync=())), 2)
    begun = after(image, begun_uncleanly(image, image.topics[T], 0, 2))
    row = row_of(begun)
    assert (row.clean, row.target, row.in_sync) == (False, (2,), (2,))
    done = row_of(propose(begun, 2))
    assert (done.replicas, done.clean, done.target, done.leader_epoch) == ((2,), True, (), 7)


def test_a_move_of_what_nobody_leads_goes_when_its_target_is_in_sync() -> None:
    """The row that ends it has a leader again where there can be one."""
    away = cluster(full(leader=NO_LEADER, in_sync=(1, 2)), minimum=2, ended=(1, 2))
    moving = move(away, 2)
    assert (row_of(moving).target, row_of(moving).leader) == ((2,), NO_LEADER)
    began = moving.with_records([session("2b", node_id=2, broker_epoch=moving.next_broker_epoch)])
    began = began.with_records(session_began(began, 2, is_other_directory=False))
    assert row_of(began).target, "what a session says of its log comes after it"
    row = row_of(after(began, ended(began, began.topics[T], 0)))
    assert (row.replicas, row.leader, row.in_sync, row.target) == ((2,), 2, (2,), ())
