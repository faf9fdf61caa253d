"""What makes a move of a partition right, in Kafka's codes and words; which are under way (KIP-455, R19)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.controller.broker_rpc import ProposalsRequest
from broker.controller.decisions.alter_partition import decide
from broker.controller.decisions.fitness import FIT, Fitness
from broker.controller.decisions.reassignments import DONE, Move, OngoingReassignment, over, reassign, under_way
from broker.controller.decisions.registrations import unregister
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage, check
from broker.metadata.records import NO_LEADER, Row, TopicCreated
from broker.replication.isr_policy import PartitionProposal
from tests.support.brokers.cluster_kit import id_of, session

WRONG = ErrorCode.INVALID_REPLICA_ASSIGNMENT
T = id_of(1)
FULL = Row((1, 2, 3), 1, 5, 7, (1, 2, 3), 5)


def cluster(*rows: Row, minimum: int = 1, ended: tuple[int, ...] = ()) -> ClusterImage:
    sessions = [session(node_id=n, broker_epoch=n, active=n not in ended) for n in range(1, 6)]
    topic = TopicCreated(T, "t", rows, {"min.insync.replicas": str(minimum)})
    return ClusterImage().with_records([*sessions, topic])


def one(image: ClusterImage, *replicas: int, partition: int = 0, topic: str = "t") -> tuple[ErrorCode, str | None]:
    """The answer; what is refused changes nothing, what is not makes an image that can be."""
    decision = reassign(image, [Move(topic, partition, replicas)])
    (outcome,) = decision.answer
    assert outcome == DONE or not decision.records
    check(image.with_records(decision.records), image)
    return outcome


def cancel(image: ClusterImage) -> tuple[ErrorCode, str | None]:
    decision = reassign(image, [Move("t", 0, None)])
    assert decision.answer[0] == DONE or not decision.records
    check(image.with_records(decision.records), image)
    return decision.answer[0]


def test_what_can_hold_no_partition_is_refused_in_kafkas_words() -> None:
    """Nobody, somebody unknown, somebody twice; a topic and a partition that are not there."""
    image = cluster(FULL)
    words = "The manual partition assignment includes "
    assert one(image) == (WRONG, words + "an empty replica list.")
    assert one(image, 1, 9) == (WRONG, words + "broker 9, but no such broker is registered.")
    assert one(image, 1, -1) == (WRONG, words + "broker -1, but no such broker is registered.")
    assert one(image, 2, 1, 2) == (WRONG, words + "the broker 2 more than once.")
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert one(image, 1, topic="x") == (missing, "Unable to find a topic named x.")
    assert one(image, 1, partition=1) == (missing, "Unable to find partition t:1.")
    assert one(image, 1, partition=-1) == (missing, "Unable to find partition t:-1.")
    assert cancel(image) == (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)


def test_each_of_a_request_is_answered_by_itself() -> None:
    """Right ones come true beside wrong ones; named twice, the last right one counts; what is so makes no row."""
    image = cluster(FULL, FULL, FULL)
    wanted = [
        Move("t", 0, (3, 4)),
        Move("t", 1, (9,)),
        Move("t", 0, (4, 5)),
        Move("t", 2, (1, 2, 3)),
        Move("t", 1, None),
    ]
    decision = reassign(image, wanted)
    assert [outcome.error for outcome in decision.answer] == [
        ErrorCode.NONE,
        WRONG,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ]
    after = image.with_records(decision.records)
    assert [row.target for row in after.topics[T].rows] == [(4, 5), (), ()]
    assert [row.partition_epoch for row in after.topics[T].rows] == [8, 7, 7]


def test_a_broker_that_is_away_may_be_moved_to() -> None:
    """It is registered, so it joins when it is back; as in Kafka."""
    assert one(cluster(FULL, ended=(4,)), 4) == DONE


def test_another_number_of_replicas_only_where_that_is_allowed() -> None:
    """KIP-860: as many as the partition has, or is to have when a move is under way."""
    image = cluster(FULL, replace(FULL, target=(3, 4)))
    for partition, replicas, words in (
        (0, (1, 2), "The replication factor is changed from 3 to 2"),
        (1, (1, 2, 3), "The replication factor is changed from 2 to 3"),
    ):
        (refused,) = reassign(image, [Move("t", partition, replicas)], allows_factor_change=False).answer
        assert refused == (ErrorCode.INVALID_REPLICATION_FACTOR, words)
        assert one(image, *replicas, partition=partition) == DONE
    (same,) = reassign(image, [Move("t", 0, (4, 5, 1))], allows_factor_change=False).answer
    assert same == DONE


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_who_leaves_at_once_leaves_enough_behind(is_cancelled: bool) -> None:
    """A cancel, or another target, that keeps fewer in sync than have to acknowledge: refused (R19, D71)."""

    def ask(image: ClusterImage) -> tuple[ErrorCode, str | None]:
        return cancel(image) if is_cancelled else one(image, 1, 2)

    moving = replace(FULL, leader=4, in_sync=(4, 5), target=(4, 5))
    code, words = ask(cluster(moving))
    assert code is WRONG and words is not None and "0 in-sync replicas of 2, and at least 1" in words
    moving = replace(FULL, leader=4, in_sync=(3, 4, 5), target=(4, 5))
    assert ask(cluster(moving)) == DONE
    code, words = ask(cluster(moving, minimum=2))
    assert code is WRONG and words is not None and "1 in-sync replicas of 3, and at least 2" in words
    assert ask(cluster(replace(moving, in_sync=(2, 3, 4, 5)), minimum=2)) == DONE


def test_who_leaves_at_once_leaves_somebody_to_lead() -> None:
    """In Kafka's words: what would end a partition that is led is refused; what nobody leads is nobody's loss."""
    moving = replace(FULL, leader=4, in_sync=(3, 4), target=(4, 5))
    words = "Unable to revert partition assignment for t:0 because it would require an unclean leader election."
    assert cancel(cluster(moving, ended=(3,))) == (WRONG, words)
    away = replace(moving, leader=NO_LEADER)
    assert cancel(cluster(away, ended=(3, 4))) == DONE


ALL_FIT = dict.fromkeys(range(1, 6), FIT)
UNFIT = Fitness(unfit_all=True)
FAILED, LOST = Fitness(unfit=((T, 0),)), Fitness(lost_logs=((T, 0),))


def joined(image: ClusterImage, told: dict[int, Fitness]) -> Row:
    """After its leader, 1, proposed everybody that the partition names."""
    row = image.topics[T].rows[0]
    everybody = tuple((node, node) for node in sorted({*row.replicas, *row.target}))
    proposal = PartitionProposal((T, 0), row.leader_epoch, row.partition_epoch, everybody)
    decided = decide(image, ProposalsRequest(1, 1, (proposal,)), told)
    assert decided.answer == (ErrorCode.NONE,)
    check(after := image.with_records(decided.records), image)
    assert not over(after, told).records, "what is not over by the proposal is not over after it"
    row = after.topics[T].rows[0]
    if row.target and all(image.nodes[node].active for node in row.target):
        check(well := after.with_records(over(after, ALL_FIT).records), after)
        assert (well.topics[T].rows[0].replicas, well.topics[T].rows[0].target) == (row.target, ())
    return row


@pytest.mark.parametrize("bad", [FAILED, LOST, None])
def test_a_move_does_not_end_on_a_log_that_failed(bad: Fitness | None) -> None:
    """In the set, and not there: it reports nothing, or lacks what was acknowledged. Nor on one that has said nothing
    to this controller: it may be one of these. Who stays and is not needed holds no move up (R19)."""

    def ends(target: tuple[int, ...], ill: int, minimum: int = 1) -> bool:
        told = {node: (bad if node == ill else FIT) for node in ALL_FIT}
        said = {node: fitness for node, fitness in told.items() if fitness is not None}
        return not joined(cluster(replace(FULL, target=target), minimum=minimum), said).target

    assert not ends((4,), 4) and ends((4,), 1)
    assert not ends((3, 4, 5), 4) and ends((3, 4, 5), 3) and not ends((3, 4, 5), 3, minimum=3)
    assert not ends((2, 3), 3), "fewer than before: all of them"


def test_a_move_ends_with_somebody_fit_to_lead() -> None:
    """Its leadership would go from a fit broker to one that stops, or whose disk is full; who leads leads on."""
    moving = cluster(replace(FULL, target=(4, 5)))
    assert joined(moving, ALL_FIT | {4: UNFIT, 5: UNFIT}).target == (4, 5)
    assert joined(moving, ALL_FIT | {4: UNFIT}).target == ()
    assert joined(cluster(replace(FULL, target=(1, 4))), ALL_FIT | {1: UNFIT, 4: UNFIT}).target == ()


@pytest.mark.parametrize("bad", [FAILED, LOST, UNFIT])
def test_a_move_ends_with_the_first_that_is_well_as_the_leader(bad: Fitness) -> None:
    """The first assigned led for one commit, though its log had failed, or it was about to stop."""
    assert joined(cluster(replace(FULL, target=(3, 4, 5))), ALL_FIT | {3: bad}).leader == 4
    assert joined(cluster(replace(FULL, target=(3, 1, 5))), ALL_FIT | {3: bad}).leader == 1, "who leads leads on"


def test_fewer_replicas_are_not_there_at_once_where_a_log_failed() -> None:
    """One of those that are to stay is waited for; called off, they are not needed."""
    image = cluster(FULL)
    decided = reassign(image, [Move("t", 0, (2, 3))], ALL_FIT | {3: FAILED})
    assert decided.answer == (DONE,) and image.with_records(decided.records).topics[T].rows[0].target == (2, 3)
    decided = reassign(image, [Move("t", 0, (2, 3))], ALL_FIT)
    assert image.with_records(decided.records).topics[T].rows[0].replicas == (2, 3)


def test_a_cancel_keeps_logs_that_are_sound() -> None:
    """Those that stay are counted without the ones that failed, and one of them can lead."""

    def answer(minimum: int, told: dict[int, Fitness]) -> ErrorCode:
        moving = replace(FULL, leader=4, in_sync=(2, 3, 4), target=(4, 5))
        return reassign(cluster(moving, minimum=minimum), [Move("t", 0, None)], told).answer[0].error

    assert answer(2, ALL_FIT) == answer(1, ALL_FIT | {3: LOST}) == answer(2, {}) == ErrorCode.NONE
    assert answer(2, ALL_FIT | {3: LOST}) == answer(1, ALL_FIT | {2: UNFIT, 3: UNFIT}) == WRONG
    assert answer(1, ALL_FIT | {2: UNFIT, 3: FAILED}) == WRONG


def test_moves_are_listed() -> None:
    """All, by name, or those that are named; what does not move, or is not there, is left out."""
    image = cluster(FULL, replace(FULL, target=(5, 3)), replace(FULL, target=(2,)))
    first, second = OngoingReassignment(1, (5, 3, 1, 2), (5,), (1, 2)), OngoingReassignment(2, (2, 1, 3), (), (1, 3))
    assert under_way(image) == [("t", [first, second])]
    assert under_way(image, [("x", [0]), ("t", [2, 0, 9, -1])]) == [("t", [second])]
    assert under_way(image, []) == under_way(cluster(FULL)) == []


def test_a_node_that_a_move_names_stays_in_the_cluster() -> None:
    """Whether it is to hold the partition, or held it before (R19)."""
    image = cluster(replace(FULL, target=(1, 4)), ended=(3, 4, 5))
    for node_id in (3, 4):
        with pytest.raises(ApiError) as refused:
            unregister(image, node_id)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert unregister(image, 5).records
