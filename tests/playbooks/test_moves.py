"""A partition that moves, event by event: who leaves, leaves for good, and takes nothing acknowledged along (R16, R19).

After every event the oracle looks, as in `test_playbooks`.
"""

from __future__ import annotations

from tests.playbooks.play import Play


def joined(play: Play, *nodes: int) -> None:
    """They hold everything, and their leader proposes them; the row that follows is not obeyed yet."""
    play.rounds(*nodes)
    assert play.propose(play.row.leader) and play.decide()


def test_cluster_d62_a_leader_that_was_moved_away_proposes_and_acknowledges_nothing_more() -> None:
    """D62: the row that ended the move has another leader and a set without the old one, who does not know it yet. His
    proposals are of an older leader epoch, and who leads now does not copy from him."""
    play = Play(minimum=2, spare=(4,))
    play.write(1)
    play.rounds(2, 3)
    assert play.move(2, 3, 4)
    play.obeyed()
    joined(play, 4)
    assert (play.row.replicas, play.row.in_sync, play.row.leader) == ((2, 3, 4), (2, 3, 4), 2)
    assert play.processes[1].leader is not None
    before = play.acknowledged
    play.write(1)
    play.rounds(3, 4)
    assert play.propose(1, end_before=2) and not play.decide(), "of an older leader epoch"
    assert play.acknowledged == before
    play.obeyed(2, 3, 4)
    play.write(2)
    play.rounds(3, 4)
    assert play.acknowledged == before + 1
    play.obeyed(1)
    assert play.processes[1].leader is None and not play.disks[1].exists


def test_cluster_d71_a_move_waits_for_all_of_its_target() -> None:
    """D71: [1, 2, 3] to [3], which is behind and out of the set. Complete at once, the partition would be led by
    nobody, or by one who lacks what was acknowledged."""
    play = Play()
    play.write(1)
    play.rounds(2)
    play.set_by_leader(1, end_before=1)
    assert play.row.in_sync == (1, 2) and play.acknowledged == 1
    assert play.move(3)
    play.obeyed()
    assert play.row.target == (3,) and play.row.leader == 1
    play.end_session(2)
    assert play.row.target == (3,)
    play.obeyed(1, 3)
    joined(play, 3)
    assert (play.row.replicas, play.row.leader, play.row.in_sync) == ((3,), 3, (3,))


def test_cluster_d71_a_cancel_that_keeps_laggards_only_is_refused() -> None:
    """D71: everybody who held it before died after the joiners were in sync. Called off, it would begin with those."""
    play = Play((1, 2), spare=(3, 4))
    play.write(1)
    play.rounds(2)
    assert play.move(3, 4, 2)
    play.obeyed()
    joined(play, 3)
    play.obeyed()
    play.end_session(2)
    play.end_session(1)
    assert play.row.leader == 3 and play.row.in_sync == (3,)
    assert not play.cancel_move() and not play.move(1, 2)
    play.obey(3)
    play.write(3)
    assert play.acknowledged == 2
    assert play.move(3, 4), "a target that keeps him is another matter"


def test_cluster_d81_who_left_and_came_back_is_not_taken_for_who_he_was() -> None:
    """D81: node 2 leaves the row and removes its log, then the row names it again. The leader sees both rows at once.
    By the old report, or by a question that was on its way, it would be proposed with nothing on its disk."""
    play = Play((1, 2), spare=(3,))
    play.write(1, 2)
    play.rounds(2)
    assert play.acknowledged == 2
    late = play.late_fetch(2)
    assert late.position.offset == 2
    assert play.move(1) and play.row.in_sync == (1,)
    play.obey(2)
    assert not play.disks[2].exists
    assert play.move(1, 2)
    play.obeyed()
    assert not play.leader_at(1).may_join(2), "nothing it said of the log that is gone counts"
    play.serve()
    assert not play.leader_at(1).may_join(2), "nor what it said, and arrives now"
    assert not play.propose(1)
    joined(play, 2)
    assert play.row.in_sync == (1, 2) and play.end_of(2) == 2


def test_a_move_from_one_to_another_hands_over_everything() -> None:
    """At replication factor 1, written all the while: the joiner is in the set and leads in one row."""
    play = Play((1,), spare=(2,))
    play.write(1, 3)
    assert play.move(2)
    play.obeyed()
    play.rounds(2)
    play.write(1)
    play.rounds(2)
    assert play.propose(1)
    before = play.acknowledged
    play.write(1)
    assert play.acknowledged == before, "who was proposed is waited for"
    assert play.decide()
    assert (play.row.replicas, play.row.leader, play.row.leader_epoch) == ((2,), 2, 1)
    play.obeyed(2)
    play.write(2)
    assert play.acknowledged == before + 1, "what the old leader wrote last was never acknowledged"


def test_a_log_given_back_by_a_later_row_is_counted_as_new() -> None:
    """Obeyed one after the other, or both at once: the log that was there is gone, or stays, and joins by its own."""
    for one_by_one in (True, False):
        play = Play((1, 2), spare=(3,))
        play.write(1)
        play.rounds(2)
        assert play.move(1) and play.move(1, 2)
        play.obey(2, only_next=one_by_one)
        play.obeyed()
        assert play.disks[2].exists and play.end_of(2) == (0 if one_by_one else 1)
        joined(play, 2)
        assert play.row.in_sync == (1, 2) and play.row.target == ()
