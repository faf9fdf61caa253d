"""The one maker of rows: each event as a playbook, and all of them in any order against what must always hold (R4)."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given, settings
from msgspec.structs import replace

from broker.metadata.data_configs import effective_min
from broker.metadata.image import ClusterImage, Topic, check
from broker.metadata.records import (
    FORGOTTEN,
    NO_EPOCH,
    NO_LEADER,
    ConfigsSet,
    MetadataRecord,
    Row,
    RowsSet,
    TopicCreated,
)
from broker.metadata.rows import (
    begun_uncleanly,
    config_changed,
    elected,
    forgotten,
    handed_over,
    new_rows,
    proposed,
    rows_set,
    session_began,
    sessions_ended,
)
from broker.metadata.rows import lost as rows_lost
from tests.support.brokers.cluster_kit import id_of, session

T = id_of(1)


def cluster(*rows: Row, minimum: int = 1, ended: Sequence[int] = (), nodes: int = 3) -> ClusterImage:
    """Nodes 1, 2, 3 in broker epochs 1, 2, 3, and one topic with these rows."""
    sessions = [session(node_id=n, broker_epoch=n) for n in range(1, nodes + 1)]
    image = ClusterImage().with_records([*sessions, TopicCreated(T, "t", rows, {"min.insync.replicas": str(minimum)})])
    return image.with_records([session(node_id=n, broker_epoch=n, active=False) for n in ended])


def full(leader: int = 1, in_sync: tuple[int, ...] = (1, 2, 3)) -> Row:
    return Row((1, 2, 3), leader, 5, 7, in_sync, 5)


def end(image: ClusterImage, *node_ids: int) -> ClusterImage:
    gone = image.with_records([replace(image.nodes[node_id], active=False) for node_id in node_ids])
    return gone.with_records(sessions_ended(gone, node_ids))


def begin(image: ClusterImage, node_id: int, directory_id: str = "d", **how: object) -> ClusterImage:
    began = image.with_records(
        [session(node_id=node_id, broker_epoch=image.next_broker_epoch, directory_id=directory_id)]
    )
    is_other = directory_id != image.nodes[node_id].directory_id
    return began.with_records(session_began(began, node_id, is_other_directory=is_other, **how))  # type: ignore[arg-type]


def row_of(image: ClusterImage, index: int = 0) -> Row:
    check(image)
    return image.topics[T].rows[index]


def test_an_ended_session_moves_leaderships_in_the_order_of_assignment() -> None:
    """The first in-sync replica with a session leads, in a new epoch; the one that is gone leaves the set."""
    row = row_of(end(cluster(full()), 1))
    assert (row.leader, row.leader_epoch, row.partition_epoch) == (2, 6, 8)
    assert (row.in_sync, row.served_epoch) == ((2, 3), 6)
    row = row_of(end(cluster(full(in_sync=(1, 3))), 1))
    assert (row.leader, row.in_sync) == (3, (3,))


def test_a_follower_that_is_gone_costs_no_leader_epoch() -> None:
    """Only the set changes."""
    row = row_of(end(cluster(full()), 3))
    assert (row.leader, row.leader_epoch, row.partition_epoch, row.in_sync) == (1, 5, 8, (1, 2))


def test_at_one_replica_a_partition_waits_for_its_broker() -> None:
    """NO_LEADER while it is away, its set kept; it leads again when it is back with the same directory."""
    alone = Row((2,), 2, 3, 4, (2,), 3)
    away = end(cluster(alone), 2)
    row = row_of(away)
    assert (row.leader, row.leader_epoch, row.partition_epoch, row.in_sync) == (NO_LEADER, 4, 5, (2,))
    row = row_of(begin(away, 2))
    assert (row.leader, row.leader_epoch, row.in_sync, row.unclean_epoch) == (2, 5, (2,), NO_EPOCH)
    row = row_of(begin(away, 2, "another"))
    assert (row.leader, row.leader_epoch, row.in_sync, row.unclean_epoch) == (2, 5, (2,), 5)


def test_nobody_leaves_below_the_minimum_and_the_oldest_session_goes_first() -> None:
    """Two of three gone at a minimum of 2: one of them stays in the set, the one whose session is younger."""
    row = row_of(end(cluster(full(), minimum=2), 2, 3))
    assert (row.leader, row.in_sync) == (1, (1, 3))
    row = row_of(end(cluster(full(leader=3), minimum=3), 1))
    assert row.in_sync == (1, 2, 3), "a set at the minimum stays whole"


def test_all_gone_only_the_set_remembers_who_may_lead() -> None:
    """A set without an active leader shrinks no further; the first that comes back leads, and the rest may go then."""
    away = end(cluster(full()), 1, 2, 3)
    row = row_of(away)
    assert (row.leader, row.in_sync) == (NO_LEADER, (1, 2, 3))
    row = row_of(begin(away, 2))
    assert (row.leader, row.leader_epoch, row.in_sync) == (2, row_of(away).leader_epoch + 1, (2,))


def test_cluster_d41_another_directory_leaves_every_set_below_the_minimum_too() -> None:
    """Nothing of what was acknowledged lies there; where it was the last, nobody may lead until that is settled."""
    image = begin(cluster(full(), minimum=3), 1, "another")
    row = row_of(image)
    assert (row.leader, row.in_sync, row.leader_epoch) == (2, (2, 3), 6)
    row = row_of(begin(cluster(full(in_sync=(1,))), 1, "another"))
    assert (row.leader, row.in_sync) == (NO_LEADER, ())


def test_cluster_d42_registering_ends_what_the_last_process_led() -> None:
    """The same node, a new session: the same leader in a new epoch, so the old process's leadership is over."""
    row = row_of(begin(cluster(full()), 1))
    assert (row.leader, row.leader_epoch, row.in_sync) == (1, 6, (1, 2, 3))


def test_cluster_d70_a_lost_log_leaves_the_set_in_a_new_leader_epoch() -> None:
    """Of one partition only, also where its leader stays: no report of that log outlives it (R16, R18)."""
    image = begin(cluster(full(), full()), 3, lost_logs=[(T, 1)])
    assert row_of(image, 0) is not None and row_of(image, 0).in_sync == (1, 2, 3)
    lost = row_of(image, 1)
    assert (lost.leader, lost.leader_epoch, lost.in_sync) == (1, 6, (1, 2))
    was_out = begin(cluster(full(in_sync=(1, 2))), 3, lost_logs=[(T, 0)])
    assert row_of(was_out).leader_epoch == 6


def test_cluster_d70_a_log_lost_while_its_broker_runs_leaves_the_set() -> None:
    """As at a registration; what its broker led another leads. Where nobody else has all of it nothing changes."""
    image = cluster(full(), full(in_sync=(1,)), full(in_sync=(2, 3), leader=2), Row((1,), 1, 3, 4, (1,), 3))
    after = image.with_records(rows_lost(image, 1, [(T, index) for index in range(4)]))
    check(after)
    assert [(r.leader, r.leader_epoch, r.in_sync) for r in after.topics[T].rows] == [
        (2, 6, (2, 3)),
        (1, 5, (1,)),
        (2, 6, (2, 3)),
        (1, 3, (1,)),
    ]


def give_up(image: ClusterImage, node_id: int) -> ClusterImage:
    voided = image.with_records([replace(image.nodes[node_id], active=False, directory_id=FORGOTTEN)])
    return voided.with_records(forgotten(voided, node_id))


def test_a_node_that_is_given_up_leaves_every_set() -> None:
    """Below the minimum too: what it was the last to hold nobody may lead until that is settled; its directory returns
    as another one."""
    away = end(cluster(full(), full(in_sync=(3,)), Row((3,), 3, 3, 4, (3,), 3), minimum=3), 3)
    after = give_up(away, 3)
    assert [(r.leader, r.in_sync) for r in after.topics[T].rows] == [(1, (1, 2)), (NO_LEADER, ()), (NO_LEADER, ())]
    assert all(row_of(after, index).leader_epoch == row_of(away, index).leader_epoch for index in range(3))
    again = begin(after, 3, "d3")
    assert [r.in_sync for r in again.topics[T].rows] == [(1, 2), (), ()]


def test_cluster_d50_an_unclean_start_is_one_replica_and_not_done() -> None:
    """In a new epoch, which is the latest unclean one; until it is done no epoch serves, and it begins again in the
    next one where its leader registers anew."""
    image = cluster(full(in_sync=(), leader=NO_LEADER))
    row = begun_uncleanly(image, image.topics[T], 0, 2)
    assert (row.leader, row.leader_epoch, row.in_sync, row.partition_epoch) == (2, 6, (2,), 8)
    assert (row.unclean_epoch, row.clean, row.served_epoch) == (6, False, 5)
    begun = image.with_records(rows_set({(T, 0): row}))
    again = row_of(begin(begun, 2))
    assert (again.leader, again.leader_epoch, again.unclean_epoch, again.clean, again.served_epoch) == (
        2,
        7,
        6,
        False,
        5,
    )
    done = proposed(begun, begun.topics[T], 0, (2,), is_done=True)
    assert (done.clean, done.served_epoch, done.unclean_epoch, done.leader_epoch) == (True, 6, 6, 6)


def test_an_unclean_start_whose_leader_is_lost_too_leaves_nobody() -> None:
    """The next one is chosen anew, in a higher unclean epoch."""
    image = cluster(full(in_sync=(), leader=NO_LEADER))
    begun = image.with_records(rows_set({(T, 0): begun_uncleanly(image, image.topics[T], 0, 2)}))
    empty = begin(begun, 2, "another")
    row = row_of(empty)
    assert (row.leader, row.in_sync, row.clean, row.served_epoch) == (NO_LEADER, (), False, 5)
    row = begun_uncleanly(empty, empty.topics[T], 0, 3)
    assert (row.leader, row.unclean_epoch, row.leader_epoch) == (3, 8, 8)


def test_cluster_d07_a_lower_minimum_drops_who_only_the_minimum_kept() -> None:
    """In the row of the config's own commit."""
    image = end(cluster(full(), minimum=3), 2)
    assert row_of(image).in_sync == (1, 2, 3)
    lowered = image.with_records([ConfigsSet({"min.insync.replicas": "2"}, topic_id=T)])
    row = row_of(lowered.with_records(config_changed(lowered, T)))
    assert (row.leader, row.leader_epoch, row.in_sync) == (1, 5, (1, 3))


def test_a_proposal_always_makes_a_row() -> None:
    """Also for the set there is (R17): its partition epoch drops whatever the leader proposed before."""
    image = cluster(full())
    topic = image.topics[T]
    same = proposed(image, topic, 0, (3, 2, 1), is_done=True)
    assert same == replace(full(), partition_epoch=8)
    fewer = proposed(image, topic, 0, (1, 3), is_done=True)
    assert (fewer.in_sync, fewer.partition_epoch, fewer.leader_epoch) == ((1, 3), 8, 5)


def test_a_member_that_only_the_minimum_kept_goes_when_another_joined() -> None:
    """Every event tries again."""
    image = cluster(full(in_sync=(1, 2)), minimum=2, ended=[2])
    row = proposed(image, image.topics[T], 0, (1, 2, 3), is_done=True)
    assert row.in_sync == (1, 3)


def test_what_is_handed_over_goes_to_whom_is_chosen() -> None:
    """Asked of each partition that one of the brokers leads, with its in-sync replicas that have a session; everybody
    stays in every set."""
    image = cluster(full(), Row((1,), 1, 3, 4, (1,), 3), full(leader=2), full(in_sync=(1, 2)), ended=[3])
    asked = []

    def last(place: tuple[str, int], row: Row, candidates: Sequence[int]) -> int:
        asked.append((place, row.leader, tuple(candidates)))
        return candidates[-1] if place[1] else NO_LEADER

    after = image.with_records(handed_over(image, (1,), last))
    check(after)
    assert asked == [((T, 0), 1, (1, 2)), ((T, 1), 1, (1,)), ((T, 3), 1, (1, 2))]
    rows = after.topics[T].rows
    assert [(r.leader, r.leader_epoch, r.in_sync) for r in rows][:2] == [(NO_LEADER, 6, (1, 2, 3)), (1, 3, (1,))]
    assert (rows[3].leader, rows[3].leader_epoch, rows[3].in_sync) == (2, 6, (1, 2))


def test_the_preferred_replica_is_elected_where_it_may_lead() -> None:
    """In sync, with a session; else nothing changes."""
    image = cluster(full(leader=2))
    found = elected(image, image.topics[T], 0)
    assert found is not None and (found.leader, found.leader_epoch, found.partition_epoch) == (1, 6, 8)
    for there in (cluster(full()), cluster(full(leader=2, in_sync=(2, 3))), cluster(full(leader=2), ended=[1])):
        assert elected(there, there.topics[T], 0) is None


_EVENTS = ["end", "begin", "replace", "propose", "config", "elect", "lose", "lost", "forget", "unclean"]


class Walk:
    """Any events, in any order; `held` is what truly holds everything acknowledged: members of the set at each moment,
    but for those whose directory went."""

    def __init__(self, draw: st.DataObject) -> None:
        self._draw = draw
        self.image = ClusterImage().with_records([session(node_id=n, broker_epoch=n) for n in (1, 2, 3)])
        replicas = draw.draw(st.lists(st.permutations([1, 2, 3]).map(tuple) | st.just((2,)), min_size=1, max_size=3))
        configs = {"min.insync.replicas": draw.draw(st.sampled_from("123"))}
        self.image = self.image.with_records([TopicCreated(T, "t", new_rows(self.image, replicas), configs)])

    def step(self) -> None:
        event = self._draw.draw(st.sampled_from(_EVENTS))
        node_id = self._draw.draw(st.sampled_from([1, 2, 3]))
        image, lost, dropped = self.image, set[int](), set[int]()
        topic = image.topics[T]
        index = self._draw.draw(st.integers(0, topic.partitions - 1))
        records: Sequence[MetadataRecord] = ()
        if event == "end":
            first: MetadataRecord = replace(image.nodes[node_id], active=False)
            records = [first, *sessions_ended(image.with_records([first]), [node_id])]
        elif event in ("begin", "replace", "lose"):
            directory = image.nodes[node_id].directory_id + ("x" if event == "replace" else "")
            first = session(node_id=node_id, broker_epoch=image.next_broker_epoch, directory_id=directory)
            lost = {index} if event == "lose" and node_id in topic.rows[index].replicas else set()
            logs = [(T, index) for index in lost]
            if event == "replace":
                lost = set(range(topic.partitions))
            began = image.with_records([first])
            rows = session_began(began, node_id, is_other_directory=event == "replace", lost_logs=logs)
            records = [first, *rows]
        elif event == "lost" and image.nodes[node_id].active:
            lost_here = {index} if topic.rows[index].in_sync != (node_id,) else set()
            lost = lost_here & {i for i, row in enumerate(topic.rows) if node_id in row.replicas}
            records = rows_lost(image, node_id, [(T, index)])
        elif event == "forget":
            first = replace(image.nodes[node_id], active=False, directory_id=FORGOTTEN)
            lost = set(range(topic.partitions))
            records = [first, *forgotten(image.with_records([first]), node_id)]
        elif event == "unclean" and topic.rows[index].leader == NO_LEADER:
            if node_id in topic.rows[index].replicas and image.nodes[node_id].active:
                records = rows_set({(T, index): begun_uncleanly(image, topic, index, node_id)})
                dropped = {index}
        elif event == "config":
            first = ConfigsSet({"min.insync.replicas": self._draw.draw(st.sampled_from("123"))}, topic_id=T)
            records = [first, *config_changed(image.with_records([first]), T)]
        elif event == "propose" and topic.rows[index].leader != NO_LEADER:
            records = self._proposal(topic, index)
        elif event == "elect":
            found = elected(image, topic, index)
            records = [] if found is None else rows_set({(T, index): found})
        self._commit(records, node_id, lost, dropped)

    def _proposal(self, topic: Topic, index: int) -> Sequence[MetadataRecord]:
        row = topic.rows[index]
        least = effective_min(topic, row, self.image)
        may = [n for n in row.replicas if n in row.in_sync or self.image.nodes[n].active]
        members = {*self._draw.draw(st.sets(st.sampled_from(may))), row.leader}
        if set(row.in_sync) - members and len(members) < least:
            return ()
        return rows_set({(T, index): proposed(self.image, topic, index, tuple(members), is_done=True)})

    def _commit(self, records: Sequence[MetadataRecord], node_id: int, lost: set[int], dropped: set[int]) -> None:
        before, after = self.image, self.image.with_records(records)
        check(after, before)
        changed = {index: row for r in records if isinstance(r, RowsSet) for index, row in r.rows}
        for index, row in enumerate(after.topics[T].rows):
            old = before.topics[T].rows[index]
            assert (row is old) == (index not in changed)
            assert row.partition_epoch == old.partition_epoch + (index in changed)
            assert row.leader_epoch - old.leader_epoch in ((0, 1) if row.leader == old.leader else (1,))
            left = set(old.in_sync) - set(row.in_sync)
            least = effective_min(after.topics[T], row, after)
            if left - ({node_id} if index in lost else set()) and index not in dropped:
                assert len(row.in_sync) >= least and row.leader != NO_LEADER
            if row.leader != NO_LEADER and row.leader != old.leader and row.unclean_epoch != row.leader_epoch:
                assert row.leader in old.in_sync, "a clean leader held everything before"
                assert not (index in lost and row.leader == node_id)
            active = [n for n in row.in_sync if after.nodes[n].active]
            assert (row.leader == NO_LEADER) == (not active), "whoever may lead does"
            if not row.clean:
                assert len(row.in_sync) <= 1 and row.served_epoch < row.unclean_epoch, "none serves before it is done"
        self.image = after


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_events_in_any_order(draw: st.DataObject) -> None:
    """Leaders come out of the set alone, sets stay at the minimum, epochs move by one."""
    walk = Walk(draw)
    for _ in range(draw.draw(st.integers(1, 15))):
        walk.step()
