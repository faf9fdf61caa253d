"""Who gets a session, whose ends, and which in-sync sets become rows: decisions on an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from broker.controller.broker_rpc import ProposalsRequest, SessionRequest
from broker.controller.decisions.alter_partition import decide
from broker.controller.decisions.elections import ElectionType, elect
from broker.controller.decisions.registrations import (
    claim_records,
    end_records,
    forget,
    lost_logs,
    register,
    unregister,
)
from broker.error_codes import ErrorCode
from broker.errors import ApiError
from broker.metadata.image import ClusterImage, check
from broker.metadata.records import FORGOTTEN, NO_LEADER, ConfigsSet, Row, RowsSet, TopicCreated
from broker.replication.isr_policy import PartitionProposal
from tests.support.brokers.cluster_kit import CLUSTER, id_of, row, session

T = id_of(1)
WHOLE = Row((1, 2, 3), 1, 5, 7, (1, 2), 5)


def cluster(*rows: Row) -> ClusterImage:
    sessions = [session(f"i{n}", node_id=n, broker_epoch=n, directory_id=f"d{n}") for n in (1, 2, 3)]
    return ClusterImage().with_records([*sessions, TopicCreated(T, "t", rows or (row(2), WHOLE), {})])


def asked(node_id: int = 2, incarnation: str = "new", **how: object) -> SessionRequest:
    of = SessionRequest(node_id, CLUSTER, incarnation, f"d{node_id}", "boot", (), previous_broker_epoch=node_id)
    return replace(of, **how)  # type: ignore[arg-type]


def code_of(image: ClusterImage, who: SessionRequest, *, is_live: bool = False) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        register(image, who, CLUSTER, is_live=is_live, is_silent=True)
    return refused.value.code


def test_a_new_node_gets_the_next_broker_epoch() -> None:
    """And its answer is that epoch, once the records are committed."""
    decided = register(cluster(), asked(4, previous_broker_epoch=-1), CLUSTER, is_live=False, is_silent=True)
    after = cluster().with_records(decided.records)
    assert decided.answer == after.nodes[4].broker_epoch == 4 and after.nodes[4].active


def test_cluster_d42_the_last_session_ends_in_the_same_commit() -> None:
    """What it led goes on in a new leader epoch: the old process's leaderships are over with this record."""
    decided = register(cluster(), asked(), CLUSTER, is_live=False, is_silent=True)
    after = cluster().with_records(decided.records)
    check(after)
    assert (after.nodes[2].broker_epoch, after.nodes[2].incarnation) == (4, "new")
    assert (after.topics[T].rows[0].leader, after.topics[T].rows[0].leader_epoch) == (2, 1)


def test_cluster_d40_a_live_session_is_not_given_to_another_process() -> None:
    """A copied data directory, a node id given twice; an operator's word takes it."""
    assert code_of(cluster(), asked(), is_live=True) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert register(cluster(), asked(take_over=True), CLUSTER, is_live=True, is_silent=True).answer == 4
    ended = cluster().with_records(end_records(cluster(), [(2, 2)]))
    assert register(ended, asked(), CLUSTER, is_live=True, is_silent=True).answer == 4


def test_a_request_asked_again_gets_the_session_it_has() -> None:
    """The answer to the first one was lost."""
    decided = register(cluster(), asked(incarnation="i2"), CLUSTER, is_live=True, is_silent=True)
    assert (decided.records, decided.answer) == ((), 2)


def test_cluster_d75_a_registration_is_conditional_on_the_last_broker_epoch() -> None:
    """R22: who decided on an older image looks again; nor does another cluster's broker come in."""
    assert code_of(cluster(), asked(previous_broker_epoch=1)) is ErrorCode.STALE_BROKER_EPOCH
    assert code_of(cluster(), asked(4, previous_broker_epoch=4)) is ErrorCode.STALE_BROKER_EPOCH
    assert code_of(cluster(), asked(cluster_id="another")) is ErrorCode.INCONSISTENT_CLUSTER_ID


def test_cluster_d47_no_broker_epoch_is_given_twice() -> None:
    """Producer ids are made of it: two that register with one commit have two."""
    image, epochs = cluster(), []
    for node_id in (2, 3, 2):
        who = asked(node_id, f"new{len(epochs)}", previous_broker_epoch=image.nodes[node_id].broker_epoch)
        decided = register(image, who, CLUSTER, is_live=False, is_silent=True)
        image = image.with_records(decided.records)
        epochs.append(decided.answer)
    assert epochs == [4, 5, 6]


def test_only_the_session_that_was_meant_ends() -> None:
    """Silence of an earlier life says nothing of this one; an ended one does not end again."""
    image = cluster()
    assert end_records(image, [(2, 1), (9, 9)]) == []
    after = image.with_records(end_records(image, [(2, 2), (1, 1)]))
    check(after)
    assert end_records(after, [(2, 2)]) == []
    assert (after.topics[T].rows[0].leader, after.topics[T].rows[1].leader) == (NO_LEADER, NO_LEADER)
    one = image.with_records(end_records(image, [(1, 1)]))
    assert one.topics[T].rows[1].leader == 2


def test_a_claim_ends_the_session_of_who_is_replaced() -> None:
    """Unless it released the lease; and begins the claimant's own where it has none."""
    image = cluster()
    who = asked(2, "i2")
    after = image.with_records(claim_records(image, who, 1))
    check(after)
    assert not after.nodes[1].active and after.nodes[2] == image.nodes[2] and after.topics[T].rows[1].leader == 2
    assert claim_records(image, who, None) == []
    both = image.with_records(claim_records(image, asked(), 1))
    check(both)
    assert not both.nodes[1].active and both.nodes[2].broker_epoch == 4


@pytest.mark.parametrize("lost", [{"directory_id": "another"}, {"lost_logs": ((T, 1),)}])
def test_a_claim_from_a_directory_that_lacks_records_leaves_the_seat_to_whom_it_replaces(lost: dict[str, Any]) -> None:
    """Its machine was replaced and the controller restarts: that one has all of it. Its session ended first, in the
    same commit, so that the seat went to a directory that was gone, then to nobody (seed 254 of three brokers)."""
    image = cluster()
    after = image.with_records(claim_records(image, asked(**lost), 1))
    check(after)
    row = after.topics[T].rows[1]
    assert row.in_sync == (1,) and row.leader == NO_LEADER and row.clean


@pytest.mark.parametrize(
    ("proposal", "code"),
    [
        (PartitionProposal((T, 1), 5, 7, ((1, 1), (2, 2), (3, 3))), ErrorCode.NONE),
        (PartitionProposal((T, 1), 5, 7, ((1, 1), (2, 2))), ErrorCode.NONE),
        (PartitionProposal((T, 1), 5, 7, ((1, 1),)), ErrorCode.NONE),
        (PartitionProposal((id_of(2), 1), 5, 7, ((1, 1),)), ErrorCode.UNKNOWN_TOPIC_ID),
        (PartitionProposal((T, 2), 5, 7, ((1, 1),)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PartitionProposal((T, 1), 6, 7, ((1, 1),)), ErrorCode.NOT_CONTROLLER),
        (PartitionProposal((T, 1), 5, 8, ((1, 1),)), ErrorCode.NOT_CONTROLLER),
        (PartitionProposal((T, 1), 4, 7, ((1, 1),)), ErrorCode.FENCED_LEADER_EPOCH),
        (PartitionProposal((T, 0), 0, 0, ((1, 1),)), ErrorCode.INVALID_REQUEST),
        (PartitionProposal((T, 1), 5, 6, ((1, 1),)), ErrorCode.INVALID_UPDATE_VERSION),
        (PartitionProposal((T, 1), 5, 7, ((2, 2),)), ErrorCode.INVALID_REQUEST),
        (PartitionProposal((T, 1), 5, 7, ((1, 1), (1, 1))), ErrorCode.INVALID_REQUEST),
        (PartitionProposal((T, 1), 5, 7, ((1, 1), (9, 9))), ErrorCode.INVALID_REQUEST),
        (PartitionProposal((T, 1), 5, 7, ((1, 1), (2, 2), (3, 2))), ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_a_proposal_is_judged_as_kafka_does(proposal: PartitionProposal, code: ErrorCode) -> None:
    """KIP-497, KIP-841, KIP-903, in Kafka's order."""
    decided = decide(cluster(), ProposalsRequest(1, 1, (proposal,)))
    assert decided.answer == (code,)
    assert len(decided.records) == (code is ErrorCode.NONE)


def test_cluster_d05_who_joins_has_the_session_it_reported_in() -> None:
    """Node 3 registered again since its report: the empty replica it may be now is not let in (D68)."""
    image = cluster().with_records([session("again", node_id=3, broker_epoch=4, directory_id="other")])
    joins = PartitionProposal((T, 1), 5, 7, ((1, 1), (2, 2), (3, 3)))
    assert decide(image, ProposalsRequest(1, 1, (joins,))).answer == (ErrorCode.INELIGIBLE_REPLICA,)
    ended = cluster().with_records(end_records(cluster(), [(3, 3)]))
    assert decide(ended, ProposalsRequest(1, 1, (joins,))).answer == (ErrorCode.INELIGIBLE_REPLICA,)


def test_nobody_leaves_a_set_below_the_minimum_for_another() -> None:
    """A replaced directory left it at two of three: one may join, none may go, not in one proposal either."""
    least = replace_topic(cluster(), "3")
    swap, join = ((1, 1), (3, 3)), ((1, 1), (2, 2), (3, 3))
    for in_sync, code in ((swap, ErrorCode.INVALID_REQUEST), (join, ErrorCode.NONE)):
        assert decide(least, ProposalsRequest(1, 1, (PartitionProposal((T, 1), 5, 7, in_sync),))).answer == (code,)


def test_proposals_of_a_topic_make_one_record() -> None:
    """Each record copies the rows of its topic: 10 000 of them held the loop for half a second."""
    image = cluster(WHOLE, WHOLE, WHOLE)
    joins = [PartitionProposal((T, index), 5, 7, ((1, 1), (2, 2), (3, 3))) for index in range(3)]
    decided = decide(image, ProposalsRequest(1, 1, tuple(joins)))
    assert len(decided.records) == 1
    assert [row.in_sync for row in image.with_records(decided.records).topics[T].rows] == [(1, 2, 3)] * 3


def test_a_partition_proposed_twice_in_one_request_is_taken_once() -> None:
    """The first one's row is newer than what the second one was made from."""
    join, leave = PartitionProposal((T, 1), 5, 7, ((1, 1), (2, 2), (3, 3))), PartitionProposal((T, 1), 5, 7, ((1, 1),))
    decided = decide(cluster(), ProposalsRequest(1, 1, (join, leave)))
    assert decided.answer == (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION)
    assert cluster().with_records(decided.records).topics[T].rows[1].in_sync == (1, 2, 3)


def test_elections_of_a_topic_make_one_record() -> None:
    """Of 10 000 partitions, which a client may name in one request."""
    image = cluster(*[Row((1, 2, 3), 2, 5, 7, (1, 2), 5)] * 3)
    decided = elect(image, ElectionType.PREFERRED, [("t", index) for index in range(3)])
    assert len(decided.records) == 1
    assert [row.leader for row in image.with_records(decided.records).topics[T].rows] == [1] * 3


def replace_topic(image: ClusterImage, minimum: str) -> ClusterImage:
    return image.with_records([ConfigsSet({"min.insync.replicas": minimum}, topic_id=T)])


def test_a_proposal_of_another_session_is_none() -> None:
    """Of the asker's, as a whole."""
    with pytest.raises(ApiError) as refused:
        decide(cluster(), ProposalsRequest(1, 2, ()))
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def refused(act: Callable[[ClusterImage, int], object], image: ClusterImage, node_id: int) -> ErrorCode:
    with pytest.raises(ApiError) as why:
        act(image, node_id)
    return why.value.code


def test_a_node_that_is_given_up_returns_as_one_that_lost_everything() -> None:
    """Its sets go on without it, below the minimum too; said twice it changes nothing."""
    image = cluster(Row((1, 2, 3), 1, 5, 7, (1, 2), 5), Row((2, 3), 2, 5, 7, (2,), 5))
    away = image.with_records(end_records(image, [(2, 2)]))
    after = away.with_records(forget(away, 2).records)
    check(after)
    assert after.nodes[2].directory_id == FORGOTTEN and not after.nodes[2].active
    assert [(r.leader, r.in_sync) for r in after.topics[T].rows] == [(1, (1,)), (NO_LEADER, ())]
    assert forget(after, 2).records == forget(after, 2, 2).records == ()
    with pytest.raises(ApiError) as stale:
        forget(away, 2, 1)
    assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH, "somebody agreed when its last session was another one"
    again = after.with_records(register(after, asked(), CLUSTER, is_live=False, is_silent=True).records)
    assert again.nodes[2].directory_id == "d2" and again.nodes[2].active
    assert [(r.leader, r.in_sync) for r in again.topics[T].rows] == [(1, (1,)), (NO_LEADER, ())]


def test_only_a_stopped_broker_that_nothing_is_assigned_to_leaves() -> None:
    """UnregisterBroker: refused while rows name it (R19), or it lives; forgetting one without rows is the same."""
    image = cluster(row(2))
    assert refused(unregister, image, 9) is refused(forget, image, 9) is ErrorCode.BROKER_ID_NOT_REGISTERED
    assert refused(unregister, image, 3) is refused(forget, image, 3) is ErrorCode.INVALID_REQUEST
    away = image.with_records(end_records(image, [(2, 2), (3, 3)]))
    assert refused(unregister, away, 2) is ErrorCode.INVALID_REQUEST
    for act in (unregister, forget):
        after = away.with_records(act(away, 3).records)
        check(after)
        assert 3 not in after.nodes


def test_a_node_that_a_move_names_does_not_leave() -> None:
    """The one that replicas move to holds none yet, the one that they leave holds the last (R19)."""
    sessions = [session(node_id=n, broker_epoch=n, active=n == 1) for n in (1, 2, 3)]
    moves = Row((1, 2), 1, 5, 7, (1,), 5, target=(1, 3))
    image = ClusterImage().with_records([*sessions, TopicCreated(T, "t", (moves,), {})])
    for node_id in (2, 3):
        assert refused(unregister, image, node_id) is ErrorCode.INVALID_REQUEST
    moved = image.with_records([RowsSet(T, ((0, Row((1, 3), 1, 5, 8, (1,), 5)),))])
    assert refused(unregister, moved, 3) is ErrorCode.INVALID_REQUEST
    assert set(moved.with_records(unregister(moved, 2).records).nodes) == {1, 3}


def test_cluster_d70_a_log_lost_while_running_counts_for_the_session_that_says_so() -> None:
    """A late word of the process before changes nothing."""
    image = cluster(WHOLE)
    assert lost_logs(image, (2, 1), [(T, 0)]).records == ()
    decided = lost_logs(image, (2, 2), [(T, 0)])
    assert decided.answer == {(T, 0)}
    alone = cluster(Row((1, 2, 3), 2, 5, 7, (2,), 5))
    assert lost_logs(alone, (2, 2), [(T, 0)]).answer == frozenset(), "asked again when somebody else has all of it"
    after = image.with_records(decided.records)
    assert (after.topics[T].rows[0].in_sync, after.topics[T].rows[0].leader_epoch) == ((1,), 6)


def test_the_last_seat_is_given_up_when_its_process_was_silent_for_a_lease() -> None:
    """An empty directory under the id of a broker that is merely cut off (R22): it waits, or an operator takes over."""
    image = cluster(Row((1, 2, 3), 2, 5, 7, (2,), 5))
    away = image.with_records(end_records(image, [(2, 2)]))
    empty = asked(directory_id="another")
    with pytest.raises(ApiError) as refused_so:
        register(away, empty, CLUSTER, is_live=False, is_silent=False)
    assert refused_so.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    for decided in (
        register(away, empty, CLUSTER, is_live=False, is_silent=True),
        register(away, replace(empty, take_over=True), CLUSTER, is_live=False, is_silent=False),
    ):
        assert away.with_records(decided.records).topics[T].rows[0].in_sync == ()
    assert register(away, asked(), CLUSTER, is_live=False, is_silent=False).records, (
        "its own directory waits for nobody"
    )
    others = cluster(WHOLE)
    assert register(others, empty, CLUSTER, is_live=False, is_silent=False).records, "others have all of it"
