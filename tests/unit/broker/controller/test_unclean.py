"""Who begins a partition that nobody who has all of it can lead, and how long the others are waited for (R20)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.controller.registrations import end_records, forget
from broker.controller.unclean import Candidate, Question, Unclean, begin, best
from broker.metadata.image import ClusterImage, check
from broker.metadata.records import NO_LEADER, ConfigsSet, Row, TopicCreated
from tests.support.cluster_kit import id_of, session

T = id_of(1)
EMPTY = Row((1, 2, 3), NO_LEADER, 6, 7, (), 5)
MEMBER_AWAY = replace(EMPTY, in_sync=(3,))
ALLOWED = ConfigsSet({"unclean.leader.election.enable": "true"}, topic_id=T)


def cluster(row: Row = EMPTY, *, ended: tuple[int, ...] = ()) -> ClusterImage:
    sessions = [session(f"i{n}", node_id=n, broker_epoch=n, directory_id=f"d{n}") for n in (1, 2, 3)]
    image = ClusterImage().with_records([*sessions, TopicCreated(T, "t", (row,), {})])
    return image.with_records([replace(image.nodes[node_id], active=False) for node_id in ended])


def watching(image: ClusterImage, now_s: float = 0.0) -> Unclean:
    machine = Unclean(9.0)
    machine.follow(image, now_s)
    return machine


def say(machine: Unclean, node_id: int, candidate: Candidate | None, *, epoch: int | None = None) -> None:
    machine.heard(node_id, node_id if epoch is None else epoch, Question((T, 0), "t", 6), candidate)


def test_cluster_d50_every_other_replica_is_waited_for() -> None:
    """A machine that is only off may hold a longer tail; it is waited for until an operator gives it up."""
    image = cluster(ended=(3,))
    machine = watching(image)
    assert {node: [q.leader_epoch for q in asked] for node, asked in machine.questions().items()} == {1: [6], 2: [6]}
    say(machine, 1, Candidate(5, 10, 20))
    say(machine, 2, Candidate(5, 10, 30))
    assert machine.questions() == {} and machine.choose(1_000.0) == []
    machine.follow(image.with_records(forget(image, 3).records), 1_000.0)
    (chosen,) = machine.choose(1_000.0)
    assert (chosen.node_id, chosen.leader_epoch, chosen.broker_epoch) == (2, 6, 2)


def test_a_partition_with_a_member_is_nobodys_business() -> None:
    """Nor is one that has a leader: a member that is away comes back with all of it."""
    assert watching(cluster(MEMBER_AWAY, ended=(3,))).questions() == {}
    assert watching(cluster(replace(EMPTY, leader=1, in_sync=(1,)))).questions() == {}


def test_answers_are_of_one_session_and_one_leader_epoch() -> None:
    """A replica whose session ended is asked again in the next one; what was said of an older row says nothing."""
    image = cluster()
    machine = watching(image)
    say(machine, 1, Candidate(5, 10, 20), epoch=9)
    machine.heard(2, 2, Question((T, 0), "t", 5), Candidate(5, 10, 20))
    assert set(machine.questions()) == {1, 2, 3}
    for node_id in (1, 2, 3):
        say(machine, node_id, Candidate(5, 10, 20))
    assert machine.questions() == {} and len(machine.choose(0.0)) == 1
    machine.follow(image.with_records(end_records(image, [(1, 1)])), 1.0)
    assert machine.choose(1.0) == [] and machine.questions() == {}
    back = machine._image.with_records([session("again", node_id=1, broker_epoch=9, directory_id="d1")])
    machine.follow(back, 2.0)
    assert set(machine.questions()) == {1}


def test_an_allowed_election_waits_one_session_and_takes_who_is_there() -> None:
    """The member that is away is not waited for longer; members that come back lead as ever."""
    image = cluster(MEMBER_AWAY, ended=(3,)).with_records([ALLOWED])
    machine = watching(image, 100.0)
    say(machine, 2, Candidate(5, 10, 20))
    assert machine.choose(110.0) == [], "broker 1 lives and was not heard"
    say(machine, 1, Candidate(5, 10, 10))
    assert machine.choose(108.9) == []
    (chosen,) = machine.choose(109.0)
    assert chosen.node_id == 2
    assert watching(image.with_records([ConfigsSet({}, topic_id=T)])).questions() == {}
    everywhere = image.with_records([replace(ALLOWED, topic_id=None), ConfigsSet({}, topic_id=T)])
    assert set(watching(everywhere).questions()) == {1, 2}


def test_an_election_that_is_allowed_no_more_is_not_held() -> None:
    """Who chose did so on an older image: an operator who was told that it is off loses nothing to it any more."""
    image = cluster(MEMBER_AWAY, ended=(3,)).with_records([ALLOWED])
    machine = watching(image)
    for node_id in (1, 2):
        say(machine, node_id, Candidate(5, 10, 20))
    chosen = machine.choose(9.0)
    assert begin(image, chosen).answer == 1
    assert begin(image.with_records([ConfigsSet({}, topic_id=T)]), chosen).records == ()


def test_whose_log_failed_does_not_begin_and_is_passed_over_where_that_is_allowed() -> None:
    """Chosen for what it kept, it led for a moment, and was chosen again. With nobody in the set it is waited for."""
    machine = watching(cluster(MEMBER_AWAY).with_records([ALLOWED]))
    say(machine, 3, None)
    say(machine, 1, Candidate(5, 10, 20))
    assert set(machine.questions()) == {2} and machine.choose(9.0) == []
    say(machine, 2, None)
    assert [chosen.node_id for chosen in machine.choose(9.0)] == [1]
    machine = watching(cluster())
    for node_id in (1, 2, 3):
        say(machine, node_id, None if node_id == 3 else Candidate(5, 10, 20))
    assert machine.questions() == {} and machine.choose(1_000.0) == []


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        pytest.param({1: Candidate(5, 0, 20), 2: Candidate(5, 0, 30)}, 2, id="longest"),
        pytest.param({1: Candidate(5, 0, 20), 2: Candidate(4, 0, 30)}, 1, id="tail of an older epoch does not count"),
        pytest.param({1: Candidate(5, 0, 20), 2: Candidate(4, 25, 30)}, 2, id="what was committed counts in any epoch"),
        pytest.param({1: Candidate(4, 20, 20), 2: Candidate(5, 0, 20)}, 2, id="of equals who saw the last epoch"),
        pytest.param({1: Candidate(4, 7, 20), 2: Candidate(4, 9, 15)}, 2, id="none saw it: by high watermarks"),
        pytest.param({1: Candidate(-1, 0, 0), 2: Candidate(-1, 0, 0)}, 1, id="nothing anywhere: as assigned"),
        pytest.param({1: Candidate(4, 30, 20), 2: Candidate(5, 0, 21)}, 2, id="a high watermark above the end"),
        pytest.param({1: Candidate(6, 0, 40), 2: Candidate(5, 0, 21)}, 1, id="of an unclean start that did not end"),
    ],
)
def test_cluster_d32_who_keeps_most_begins(heard: dict[int, Candidate], expected: int) -> None:
    """A tail counts where it cannot have been overwritten since."""
    assert best(EMPTY, heard) == expected


def test_rows_are_made_for_what_is_as_it_was() -> None:
    """Between the choice and its commit the image moves: another epoch, a session that ended, a topic deleted."""
    image = cluster()
    machine = watching(image)
    for node_id in (1, 2, 3):
        say(machine, node_id, Candidate(5, 10, 20 + node_id))
    chosen = machine.choose(0.0)
    after = image.with_records(begin(image, chosen).records)
    check(after, image)
    row = after.topics[T].rows[0]
    assert (row.leader, row.leader_epoch, row.unclean_epoch, row.clean, row.in_sync) == (3, 7, 7, False, (3,))
    assert begin(after, chosen).records == ()
    assert begin(image.with_records(end_records(image, [(3, 3)])), chosen).records == ()
    machine.follow(after, 1.0)
    assert machine.choose(1.0) == [] and machine.questions() == {}
