"""Who begins a partition that nobody who has all of it can lead, and how long the others are waited for (R20)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.controller.decisions.registrations import end_records, forget
from broker.controller.unclean_recovery import Candidate, Question, UncleanRecovery, begin, best
from broker.metadata.image import ClusterImage, check
from broker.metadata.records import NO_LEADER, ConfigsSet, Row, RowsSet, TopicCreated, TopicDeleted
from tests.support.brokers.cluster_kit import id_of, session

T = id_of(1)
EMPTY = Row((1, 2, 3), NO_LEADER, 6, 7, (), 5)
MEMBER_AWAY = replace(EMPTY, in_sync=(3,))
ALLOWED = ConfigsSet({"unclean.leader.election.enable": "true"}, topic_id=T)


def cluster(row: Row = EMPTY, *, ended: tuple[int, ...] = ()) -> ClusterImage:
    sessions = [session(f"i{n}", node_id=n, broker_epoch=n, directory_id=f"d{n}") for n in (1, 2, 3)]
    image = ClusterImage().with_records([*sessions, TopicCreated(T, "t", (row,), {})])
    return image.with_records([replace(image.nodes[node_id], active=False) for node_id in ended])


def watching(image: ClusterImage, now_s: float = 0.0) -> UncleanRecovery:
    machine = UncleanRecovery(9.0)
    machine.follow(image, now_s)
    return machine


def say(machine: UncleanRecovery, node_id: int, candidate: Candidate | None, *, epoch: int | None = None) -> None:
    machine.answered(node_id, node_id if epoch is None else epoch, Question((T, 0), "t", 6), candidate)


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
    machine.answered(2, 2, Question((T, 0), "t", 5), Candidate(5, 10, 20))
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
    assert set(machine.questions()) == {2, 3} and machine.choose(9.0) == [], "3 is asked again, and not waited for"
    say(machine, 2, None)
    assert [chosen.node_id for chosen in machine.choose(9.0)] == [1]
    machine = watching(cluster())
    for node_id in (1, 2, 3):
        say(machine, node_id, None if node_id == 3 else Candidate(5, 10, 20))
    assert set(machine.questions()) == {3} and machine.choose(1_000.0) == []
    say(machine, 3, None)
    assert machine.choose(1_000.0) == []
    say(machine, 3, Candidate(5, 10, 30))
    assert machine.questions() == {} and [chosen.node_id for chosen in machine.choose(1_000.0)] == [3]


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


class EveryTime:
    """What is to be done, by going through every row each time: the rule that `UncleanRecovery` keeps without."""

    def __init__(self) -> None:
        self.since: dict[tuple[str, int], tuple[int, float]] = {}
        self.said: dict[tuple[str, int, int, int, int], Candidate | None] = {}

    def look(
        self, image: ClusterImage, now_s: float
    ) -> tuple[dict[int, set[Question]], dict[int, int], set[tuple[tuple[str, int], int]]]:
        questions: dict[int, set[Question]] = {}
        missing: dict[int, int] = {}
        chosen: set[tuple[tuple[str, int], int]] = set()
        waiting = set()
        for topic_id, topic in image.topics.items():
            allowed = topic.configs.get("unclean.leader.election.enable") == "true"
            for index, row in enumerate(topic.rows):
                place = topic_id, index
                if row.leader != NO_LEADER or (row.in_sync and not allowed):
                    continue
                waiting.add(place)
                if self.since.get(place, (-1, 0.0))[0] != row.leader_epoch:
                    self.since[place] = row.leader_epoch, now_s
                heard, silent, away, failed = dict[int, Candidate](), set(), set(), set()
                for node_id in row.replicas:
                    node = image.nodes[node_id]
                    key = (*place, row.leader_epoch, node_id, node.broker_epoch)
                    if not node.active:
                        away |= {node_id} if node.directory_id else set()
                    elif key not in self.said:
                        silent.add(node_id)
                        questions.setdefault(node_id, set()).add(Question(place, topic.name, row.leader_epoch))
                    elif (candidate := self.said[key]) is None:
                        failed.add(node_id)
                        questions.setdefault(node_id, set()).add(Question(place, topic.name, row.leader_epoch))
                    else:
                        heard[node_id] = candidate
                if not row.in_sync:
                    for node_id in away:
                        missing[node_id] = missing.get(node_id, 0) + 1
                is_time = allowed and now_s - self.since[place][1] >= 9.0
                others = silent if is_time else silent | away | failed
                if heard and not others and (is_time or not row.in_sync):
                    chosen.add((place, best(row, heard)))
        self.since = {place: since for place, since in self.since.items() if place in waiting}
        self.said = {key: said for key, said in self.said.items() if key[:2] in waiting}
        return questions, missing, chosen


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("failed"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.sampled_from(["ends", "begins", "forget"]), st.just(0), st.integers(1, 3)),
        st.tuples(st.sampled_from(["epoch", "led", "member"]), st.integers(0, 2), st.just(0)),
        st.tuples(st.sampled_from(["allow", "deny", "later", "delete"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(_STEPS)
def test_what_is_to_be_done_is_that_of_looking_at_every_row(steps: list[tuple[str, int, int]]) -> None:
    """Whatever was said, by sessions that come and go, of rows that change, and however long all of it takes."""
    sessions = [session(f"i{n}", node_id=n, broker_epoch=n, directory_id=f"d{n}") for n in (1, 2, 3)]
    made = [TopicCreated(T, "t", (EMPTY, MEMBER_AWAY), {}), TopicCreated(id_of(2), "u", (EMPTY,), {})]
    image, now_s = ClusterImage().with_records([*sessions, *made]), 0.0
    machine, every = watching(image), EveryTime()
    every.look(image, now_s)
    places = [(T, 0), (T, 1), (id_of(2), 0)]
    for step, at, node_id in steps:
        topic_id, index = places[at]
        topic = image.topics.get(topic_id)
        row = EMPTY if topic is None else topic.rows[index]
        node = image.nodes.get(node_id)
        match step:
            case "say" | "failed" if node is not None and topic is not None and node.active:
                said = None if step == "failed" else Candidate(5, 10, 10 * at + node_id)
                machine.answered(
                    node_id, node.broker_epoch, Question((topic_id, index), topic.name, row.leader_epoch), said
                )
                if (topic_id, index) in every.since:
                    every.said[topic_id, index, row.leader_epoch, node_id, node.broker_epoch] = said
            case "ends" if node is not None:
                image = image.with_records(end_records(image, [(node_id, node.broker_epoch)]))
            case "forget" if node is not None and not node.active:
                image = image.with_records(forget(image, node_id).records)
            case "begins":
                epoch = image.next_broker_epoch
                image = image.with_records(
                    [session(f"j{epoch}", node_id=node_id, broker_epoch=epoch, directory_id="d")]
                )
            case "epoch" | "led" | "member" if topic is not None:
                leader = row.replicas[0] if step == "led" else NO_LEADER
                in_sync = (3,) if step == "member" else ()
                changed = replace(
                    row,
                    leader=leader,
                    in_sync=in_sync,
                    leader_epoch=row.leader_epoch + 1,
                    partition_epoch=row.partition_epoch + 1,
                )
                image = image.with_records([RowsSet(topic_id, ((index, changed),))])
            case "allow" | "deny":
                image = image.with_records([ALLOWED if step == "allow" else ConfigsSet({}, topic_id=T)])
            case "delete":
                image = image.with_records([TopicDeleted(id_of(2))])
            case "later":
                now_s += 5.0
        machine.follow(image, now_s)
        questions, missing, chosen = every.look(image, now_s)
        assert {node: set(asked) for node, asked in machine.questions().items()} == questions
        assert machine.missing() == missing
        assert {(one.place, one.node_id) for one in machine.choose(now_s)} == chosen
