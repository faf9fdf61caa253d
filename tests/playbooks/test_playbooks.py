"""The failure scenarios that the core's machines decide, each written out (cluster-cases 1).

After every event the oracle looks: an acknowledged record is in the log of every later clean leader, and flushed on
every member of the committed set. What a playbook asserts beside that is why the scenario ends well.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.metadata.records import NO_LEADER
from broker.replication.follower import Phase
from tests.playbooks.play import Play, broken


def test_cluster_d01_a_raised_minimum_counts_with_the_row_it_came_in() -> None:
    """D1: the minimum goes to 2, and the leader's proposal to go on alone, made by the minimum it knew, comes after it.
    Alone it would acknowledge what only it has, while the controller says that two hold everything."""
    play = Play((1, 2))
    play.write(1)
    assert play.propose(1, end_before=1)
    play.set_minimum(2)
    assert not play.decide() and play.row.in_sync == (1, 2), "refused: the set would be below the minimum"
    play.obeyed()
    assert play.leader_at(1).in_sync.row.min_in_sync == 2 and play.acknowledged == 0
    play.rounds(2)
    assert play.acknowledged == 1

    play = Play((1, 2))
    play.write(1)
    assert play.propose(1, end_before=1) and play.decide() and play.row.in_sync == (1,)
    play.set_minimum(2)
    play.obey(1, only_next=True)
    assert play.acknowledged == 1, "by a row and a minimum of one image: it was lawful when that was committed"
    play.obey(1)
    play.write(1)
    assert not play.leader_at(1).takes_all and play.acknowledged == 1


def test_cluster_d02_who_is_only_proposed_to_leave_holds_the_high_watermark() -> None:
    """D2: the proposal is on its way, the leader's session ends, and the one it would have dropped is elected."""
    play = Play((1, 2))
    play.write(1)
    assert play.propose(1, end_before=1)
    assert play.acknowledged == 0
    play.end_session(1)
    assert play.row.leader == 2
    assert not play.decide(), "an older leader epoch"
    play.obey(2)
    play.write(2)
    assert play.acknowledged == 1


def test_cluster_d03_a_candidate_of_unknown_outcome_holds_the_high_watermark() -> None:
    """D3: the commit stood, its answer was lost, the leader's image lags. Were the candidate not counted, the leader
    would acknowledge with the old set what the candidate, elected, does not have."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2)
    play.set_by_leader(1, end_before=1)
    assert play.row.in_sync == (1, 2)
    play.rounds(3)
    assert play.propose(1) and play.decide() and play.row.in_sync == (1, 2, 3)
    before = play.acknowledged
    play.write(1)
    play.rounds(2)
    assert play.acknowledged == before
    play.hand_over(1)
    play.end_session(2)
    play.end_session(1)
    assert play.row.leader == 3


def test_cluster_d04_a_fetch_of_a_process_that_is_gone_says_nothing() -> None:
    """D4: it asked for what follows record 0, lost its disk, came back empty; then that question arrives. Counted as a
    report of the new session it would acknowledge what two of three have lost, and let an empty replica join."""
    play = Play()
    play.write(1)
    play.rounds(2, 3, times=1)
    play.late_fetch(2)
    play.fetch(3)
    play.serve(1)
    play.lose_disk(2)
    play.begin_session(2)
    play.obeyed()
    assert play.row.in_sync == (1, 3)
    play.serve()
    assert not play.leader_at(1).may_join(2), "the one it is about is gone"
    assert not play.propose(1)
    play.end_session(3)
    play.obey(1)
    play.end_session(1)
    assert play.row.leader == NO_LEADER
    play = Play((1, 2))
    play.write(1)
    play.rounds(2, times=1)
    play.late_fetch(2)
    play.lose_disk(2)
    play.ask_for_session(2)
    play.serve()
    play.register()
    assert play.acknowledged == 1 and play.row.in_sync == (1,), "it came before the registration: then it was true"


def test_cluster_d05_a_proposal_names_the_life_that_reported() -> None:
    """D5, D68: 3 caught up and was proposed; it came back on an empty disk before that was decided. Proposed again by
    whatever session the image has, the empty one would join."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2)
    play.set_by_leader(1, end_before=1)
    play.rounds(3)
    assert play.propose(1)
    play.lose_disk(3)
    play.begin_session(3)
    assert not play.decide(), "the session of that proposal is over"
    play.write(1)
    play.obey(1, only_next=True)
    assert play.propose(1), "it settles the doubt"
    assert play.core.proposals[0].proposals[0].in_sync == ((1, 1), (2, 2))
    play.decide()
    play.obeyed()
    assert not play.leader_at(1).may_join(3) and play.row.in_sync == (1, 2)
    play.rounds(2, 3)
    assert play.propose(1) and play.decide() and play.row.in_sync == (1, 2, 3), "now it has everything"


def test_cluster_d05_who_has_no_session_does_not_join() -> None:
    """KIP-841: 3 caught up, its session ended, and the leader's image lags: it may not take part in what follows. Were
    it taken in, it would be elected when it comes back, whatever happened to its disk meanwhile."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2)
    play.set_by_leader(1, end_before=1)
    play.rounds(3)
    assert play.propose(1)
    play.end_session(3)
    assert not play.decide() and play.row.in_sync == (1, 2)
    assert not play.core.image.nodes[3].active
    play.obeyed(1, 2)
    assert play.propose(1) and play.decide(), "the doubt is settled by the set as it is"
    play.obeyed(1, 2)
    assert play.leader_at(1).in_sync.union == {1, 2} and not play.leader_at(1).may_join(3)


def test_cluster_d07_a_lowered_minimum_lets_the_dead_go_at_once() -> None:
    """D7: with a minimum of two, one of two is dead and stays. Lowered, the same commit drops it, and what waited is
    acknowledged; no later event has to remember it."""
    play = Play((1, 2), minimum=2)
    play.write(1)
    play.end_session(2)
    play.obey(1)
    assert play.row.in_sync == (1, 2) and not play.leader_at(1).takes_all and play.acknowledged == 0
    commits = len(play.core.images)
    play.set_minimum(1)
    assert play.row.in_sync == (1,) and len(play.core.images) == commits + 1
    play.obey(1)
    assert play.acknowledged == 1


def test_cluster_d18_a_leader_cut_off_from_the_controller_acknowledges_nothing_more() -> None:
    """D18: its session is over, it does not know; the set it goes by holds the new leader, who fetches from it no
    more."""
    play = Play()
    play.write(1)
    play.rounds(2, 3)
    play.end_session(1)
    play.obeyed(2, 3)
    before = play.acknowledged
    play.write(1, 2)
    assert play.row.leader == 2 and play.acknowledged == before
    play.write(2)
    play.rounds(3)
    assert play.acknowledged == before + 1
    play.obey(1)
    assert play.wants_session(1)
    play.begin_session(1)
    play.obey(2)
    play.rounds(1, times=4)
    assert play.core.disks[1].log == play.core.disks[2].log, "what it wrote alone is cut"


def test_cluster_d19_a_minority_at_the_floor_goes_on_and_nobody_else_leads() -> None:
    """D19: {1, 2} are cut off from 3 and the controller. Both sessions end; 3 is not in the set any more, so it does
    not lead, while the two acknowledge, lawfully, what only they may lead with."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2)
    play.set_by_leader(1, end_before=1)
    play.end_session(1)
    play.end_session(2)
    assert play.row.leader == NO_LEADER and play.row.in_sync == (1, 2)
    before = play.acknowledged
    play.write(1)
    play.rounds(2)
    assert play.acknowledged == before + 1
    play.obey(3)
    play.obeyed(1, 2)
    play.begin_session(2)
    assert play.row.leader == 2


def test_cluster_d22_epochs_without_a_record_part_logs_neither_unseen_nor_for_ever() -> None:
    """D22, KIP-279: 2 was elected and wrote nothing, 1 leads again, over a record that 2 never had. Neither leader
    copied from the other in between."""
    play = Play((1, 2))
    play.write(1)
    play.rounds(2)
    play.write(1)
    for leader in (1, 2, 1):
        play.hand_over(leader)
        play.obey(play.row.leader)
    assert play.row.leader == 2 and play.core.disks[2].lineage.latest is not None
    play.hand_over(2)
    play.obeyed()
    assert play.row.leader == 1
    play.rounds(2, times=4)
    assert play.core.disks[2].log == play.core.disks[1].log and play.acknowledged == 2
    assert len(play.core.disks[2].lineage.entries) == 1, "of no record, no epoch"


def test_cluster_d23_who_follows_the_same_leader_again_asks_where_they_part() -> None:
    """D23, KAFKA-7164: the leader lost power, and with it a record that its follower had; the same one leads again, in
    the next epoch. Whoever went on where it was would keep another record at that offset."""
    play = Play((1, 2))
    play.append(1)
    play.copy(2)
    assert play.end_of(2) == 1 and play.core.disks[1].flushed == 0
    play.restart(1, is_power_cut=True)
    play.begin_session(1)
    assert play.row.leader == 1 and play.row.leader_epoch == 1
    play.write(1)
    play.obey(2)
    assert play.follower_at(2).phase is Phase.RECONCILING
    play.rounds(2, times=4)
    assert play.core.disks[2].log == play.core.disks[1].log == ((1, 1),) and play.acknowledged == 1


def test_cluster_d24_nothing_is_shown_before_the_first_answer_without_divergence() -> None:
    """D24, KAFKA-14704: 1 has two records of its own that nobody copied; the next leader has committed two others
    there. Its high watermark is 2: shown at once, the follower would show what it is about to cut."""
    play = Play(minimum=1)
    play.write(1)
    play.rounds(2, 3)
    play.write(1, 2)
    play.end_session(1)
    play.obeyed(2, 3)
    play.write(2, 2)
    play.rounds(3)
    assert play.acknowledged == 3
    play.obey(1)
    play.begin_session(1)
    play.obey(2)
    assert play.processes[1].high_watermark == 1 and play.end_of(1) == 3
    play.fetch(1)
    play.serve()
    assert play.core.answers[0].diverging is not None and play.core.answers[0].high_watermark == 3
    play.take()
    assert play.processes[1].high_watermark == 1 and play.end_of(1) == 1, "cut, nothing shown"
    play.rounds(1, times=3)
    assert play.processes[1].high_watermark == 3


def test_cluster_d25_what_was_shown_is_not_cut() -> None:
    """D25: somebody put an older lineage in a leader's place, as no rule of ours does. Its follower knows two records
    to be committed: it goes offline and says so, whatever epoch comes next, instead of cutting them."""
    play = Play((1, 2))
    play.write(1, 2)
    play.rounds(2)
    core = play.core
    assert core.processes[2].high_watermark == 2
    core.disks[1].cut(1)
    core.restart(1)
    core.begin_session(1)
    core.append(1)
    core.flush(1)
    core.obey(2)
    core.copy(2)
    assert core.follower_at(2).phase is Phase.OFFLINE and core.disks[2].end == 2
    assert "offline" in broken(lambda: play.oracle._look_at_role(core, core.processes[2]))
    core.hand_over(1)
    assert core.row.leader == 2


def test_cluster_d41_a_replaced_disk_leads_nothing_it_does_not_have() -> None:
    """D41: 1 led, its machine is replaced under the same node id: the registering commit takes its seats."""
    _copies_anew(lambda play: play.lose_disk(1))


def test_cluster_d42_a_quick_restart_ends_the_leadership_that_was() -> None:
    """D42: the session did not end by silence; registering again ends it, and begins the next leader epoch in one
    commit, so that what was said to the process before counts nothing."""
    play = Play((1, 2))
    play.write(1)
    play.rounds(2, times=1)
    play.late_fetch(2)
    play.restart(1)
    commits = len(play.core.images)
    play.begin_session(1)
    assert (play.row.leader, play.row.leader_epoch, len(play.core.images)) == (1, 1, commits + 1)
    play.serve()
    assert play.acknowledged == 0, "a question of the epoch before"
    play.obey(2)
    play.rounds(2)
    assert play.acknowledged == 1


def test_cluster_d63_who_hears_and_is_not_heard_leaves_by_lag() -> None:
    """D63: answers reach the follower, its questions do not reach the leader. Its session stands, so the leader has to
    propose it out; nothing it got meanwhile counts."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2, 3)
    play.write(1)
    play.rounds(2)
    assert play.acknowledged == 1
    play.set_by_leader(1, end_before=2)
    assert play.row.in_sync == (1, 2) and play.core.image.nodes[3].active and play.acknowledged == 2


def test_cluster_d65_a_tail_is_durable_before_the_first_question() -> None:
    """D65: an old leader wrote what it never flushed, and asks the next one for what follows. Its question says that it
    holds that: a power cut right after must not take it."""
    play = Play((1, 2))
    play.write(1)
    play.rounds(2)
    play.append(1)
    play.copy(2)
    play.hand_over(1)
    play.obeyed()
    assert play.end_of(2) == 2 and play.row.leader == 2
    play.fetch(1)
    play.serve()
    assert play.acknowledged == 2
    play.restart(1, is_power_cut=True)
    assert play.end_of(1) == 2
    play.begin_session(1)
    play.end_session(2)
    assert play.row.leader == 1


def test_cluster_d68_a_dead_incarnation_is_neither_counted_nor_proposed() -> None:
    """D68: 3 reported the end, lost its log, came back under another session. Its report is void from the image on in
    which that session stands, also for the proposal the leader was about to make."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2)
    play.set_by_leader(1, end_before=1)
    play.rounds(3)
    assert play.leader_at(1).may_join(3)
    play.lose_log(3)
    play.begin_session(3)
    assert play.propose(1) and not play.decide(), "in the session that is over, while the image lags"
    play.obey(1)
    led = play.leader_at(1)
    assert not led.may_join(3) and play.row.in_sync == (1, 2)


def test_cluster_d69_all_that_was_proposed_counts_until_a_row_settles_it() -> None:
    """D69: "with 3" is unanswered, "as it is" is sent; then the first lands. Had the second one dropped it, the high
    watermark would have passed 3, which now is in the set without what was acknowledged."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2)
    play.set_by_leader(1, end_before=1)
    play.rounds(3)
    assert play.propose(1) and play.propose(1)
    assert [len(asked.proposals[0].in_sync) for asked in play.core.proposals] == [3, 2]
    before = play.acknowledged
    play.write(1)
    play.rounds(2)
    assert play.acknowledged == before
    assert play.decide() and play.row.in_sync == (1, 2, 3)
    assert not play.decide(), "the other one was made on the row before"
    play.end_session(2)
    play.hand_over(1)
    play.end_session(1)
    assert play.row.leader == 3


def test_cluster_d69_a_dead_candidate_does_not_freeze_the_high_watermark() -> None:
    """D69: the outcome is unknown and the candidate dead: a row, also of the same set, ends the waiting for it."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2)
    play.set_by_leader(1, end_before=1)
    play.rounds(3)
    assert play.propose(1)
    play.core.proposals.clear()
    play.end_session(3)
    play.obeyed(1, 2)
    play.write(1)
    play.rounds(2)
    assert play.acknowledged == 1
    play.set_by_leader(1)
    assert play.row.in_sync == (1, 2) and play.acknowledged == 2


def test_cluster_d70_a_log_moved_away_is_told_and_copied_anew() -> None:
    """D70: the same directory id, so nothing but the registration says that the log is gone."""
    _copies_anew(lambda play: play.lose_log(1))


def _copies_anew(loses: Callable[[Play], object]) -> None:
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2, 3)
    loses(play)
    play.begin_session(1)
    assert play.row.leader == 2 and play.row.in_sync == (2, 3)
    play.obeyed()
    play.rounds(1)
    play.rounds(3)
    play.set_by_leader(2)
    assert play.row.in_sync == (1, 2, 3) and play.end_of(1) == 1


def test_what_is_committed_and_not_yet_heard_to_be_is_not_cut() -> None:
    """KIP-101: 1 acknowledged a record that 2 has, and lost power with the next one, which 2 has too. 2 cuts that one,
    where the lineages part, not down to the high watermark that it heard last: it may be elected before it asks
    again."""
    play = Play((1, 2))
    play.write(1)
    play.copy(2)
    play.append(1)
    play.copy(2)
    assert play.acknowledged == 1 and play.processes[2].high_watermark == 1
    play.restart(2, is_power_cut=True)
    assert (play.processes[2].mark, play.end_of(2)) == (0, 2)
    play.begin_session(2)
    play.restart(1, is_power_cut=True)
    play.begin_session(1)
    assert play.row.leader == 1
    play.obeyed()
    play.copy(2)
    play.end_session(1)
    assert play.row.leader == 2 and play.end_of(2) == 1


def test_who_lacks_what_came_before_the_epoch_does_not_join() -> None:
    """KIP-841: 1 acknowledged with 2, which never heard so, and leads next. What lies between its high watermark and
    the start of its epoch may be acknowledged: a replica that lacks it does not join, though it has all that the leader
    knows to be committed. Taken in, it would lead when 2 is away, too."""
    play = Play(minimum=2)
    play.write(1)
    play.rounds(2, 3)
    play.write(1)
    play.copy(2)
    play.fetch(2)
    play.serve()
    play.core.answers.clear()
    assert play.propose(1, end_before=2) and play.decide() and play.row.in_sync == (1, 2)
    play.obey(1)
    assert play.acknowledged == 2
    play.end_session(1)
    play.obeyed(2, 3)
    led = play.leader_at(2)
    assert (led.high_watermark, led.epoch_start) == (1, 2) and play.row.in_sync == (1, 2)
    play.fetch(3)
    play.serve()
    assert not led.may_join(3) and not play.propose(2)
    play.take()
    play.flush(3)
    play.fetch(3)
    play.serve()
    assert led.may_join(3) and play.propose(2) and play.decide() and play.row.in_sync == (2, 3)
    play.end_session(2)
    assert play.row.leader == 3
