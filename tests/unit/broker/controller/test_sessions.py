"""Which sessions end for silence: conversations with the machine, in the seconds of one loop."""

from __future__ import annotations

from broker.config.times import ClusterTimes
from broker.controller.sessions import UNTIMED_S, ExpiredSessions, Sessions
from broker.metadata.image import ClusterImage
from tests.support.brokers.cluster_kit import session

TIMES = ClusterTimes()
SESSION_S, CLOSED_S = TIMES.session_s, TIMES.closed_s
STEP_S = 0.5


def image(*node_ids: int) -> ClusterImage:
    return ClusterImage().with_records([session(node_id=n, broker_epoch=n) for n in node_ids])


class Play:
    """Node 1 is the controller; `beating` are heard every second."""

    def __init__(self, *others: int, is_sure: bool = False) -> None:
        self.now_s = 100.0
        self.sessions = Sessions(1, self.now_s, TIMES, is_sure=is_sure)
        self.sessions.follow(image(1, *others), self.now_s)
        self.beating = set(others)

    def go(self, seconds: float) -> ExpiredSessions:
        """Until something is due, or `seconds` are over."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += STEP_S
            if self.now_s % 1 == 0:
                for node_id in self.beating:
                    assert self.sessions.heartbeat(node_id, node_id, self.now_s)
            due = self.sessions.check(self.now_s)
            if due != ExpiredSessions():
                return due
        return ExpiredSessions()


def test_who_is_heard_stays_and_who_is_silent_ends_after_a_session() -> None:
    """Not a moment before."""
    play = Play(2, 3)
    assert play.go(60) == ExpiredSessions()
    play.beating.remove(3)
    assert play.go(SESSION_S - 2 * STEP_S) == ExpiredSessions()
    assert play.go(2) == ExpiredSessions(((3, 3),))


def test_a_closed_connection_ends_it_sooner_unless_it_comes_again() -> None:
    """Two seconds, where its port does not refuse: a process that died is missed for no longer."""
    play = Play(2, 3)
    play.go(5)
    play.sessions.closed(2, 2, play.now_s)
    assert play.go(STEP_S) == ExpiredSessions(knocks=((2, 2),))
    assert play.go(CLOSED_S * 2) == ExpiredSessions(), "it beat again"
    play.beating.remove(3)
    play.sessions.closed(3, 3, play.now_s)
    assert not play.sessions.is_live(3, play.now_s) and play.sessions.is_live(2, play.now_s)
    assert play.go(STEP_S) == ExpiredSessions(knocks=((3, 3),))
    assert play.go(CLOSED_S - 2 * STEP_S) == ExpiredSessions()
    assert play.go(STEP_S * 2) == ExpiredSessions(((3, 3),))


def test_a_closed_connection_is_followed_by_one_question_at_the_port_and_a_refusal_ends_it() -> None:
    """A producer waited 3.5 s for what its leader's successor could have served after 0.5."""
    play = Play(2, 3)
    play.go(5)
    play.beating.clear()
    play.sessions.closed(3, 3, play.now_s)
    assert 0 < play.sessions.soonest_s(play.now_s) <= TIMES.knock_s < CLOSED_S / 2
    assert play.go(STEP_S) == ExpiredSessions(knocks=((3, 3),))
    play.sessions.refused(3, 2, play.now_s)
    assert play.go(STEP_S) == ExpiredSessions(), "once; and another session's port says nothing of this one"
    play.sessions.refused(3, 3, play.now_s)
    assert play.go(STEP_S) == ExpiredSessions(((3, 3),))


def test_who_is_heard_meanwhile_is_there_whatever_its_port_says() -> None:
    """Neither asked for, nor believed late: what came by its new connection is newer."""
    play = Play(2, 3)
    play.sessions.closed(3, 3, play.now_s)
    assert play.sessions.heartbeat(3, 3, play.now_s)
    assert play.go(STEP_S * 2) == ExpiredSessions()
    play.sessions.closed(3, 3, play.now_s)
    assert play.sessions.check(play.now_s + TIMES.knock_s) == ExpiredSessions(knocks=((3, 3),))
    assert play.sessions.heartbeat(3, 3, play.now_s)
    play.sessions.refused(3, 3, play.now_s)
    assert play.go(CLOSED_S * 2) == ExpiredSessions()


def test_cluster_d08_a_new_controller_gives_every_session_its_full_time_then_ends_it() -> None:
    """A broker that died during the change of controllers never beats here: its session ends all the same."""
    play = Play(2, 3)
    play.beating = {2}
    assert play.go(SESSION_S - STEP_S) == ExpiredSessions()
    assert play.go(STEP_S * 2) == ExpiredSessions(((3, 3),))


def test_a_session_that_never_spoke_to_this_controller_is_soon_not_believed_to_live() -> None:
    """Its process may come back from the same directory before the session is over: all were killed, and the new
    controller knows only that nobody beats. One that was heard is believed until its session is nearly over."""
    play = Play(2, 3)
    play.beating = {2}
    assert play.sessions.is_live(3, play.now_s)
    assert play.go(TIMES.heard_s + 1) == ExpiredSessions()
    assert not play.sessions.is_live(3, play.now_s) and play.sessions.is_live(2, play.now_s)
    play.beating = set()
    play.go(TIMES.heard_s + 1)
    assert play.sessions.is_live(2, play.now_s)


def test_cluster_d09_a_stall_of_the_own_loop_extends_every_session() -> None:
    """The controller hears nobody for 20 s because it does nothing: nobody is late."""
    play = Play(2, 3)
    play.go(5)
    play.now_s += 20
    play.beating = set()
    assert play.go(SESSION_S - 3) == ExpiredSessions()


def test_a_session_of_another_epoch_is_not_kept_alive() -> None:
    """KIP-903: what an earlier life of the broker sends says nothing of this one."""
    play = Play(2, 3)
    assert not play.sessions.heartbeat(2, 1, play.now_s)
    assert not play.sessions.heartbeat(9, 9, play.now_s)
    play.sessions.closed(2, 1, play.now_s)
    assert play.go(CLOSED_S * 2) == ExpiredSessions()


def test_cluster_d78_sessions_that_expire_one_by_one_are_counted_together() -> None:
    """Each alone would be a fifth of the cluster; the controller that hears nobody steps back before it ends one."""
    play = Play(2, 3, 4, 5)
    play.go(20)
    for node_id in (2, 3, 4, 5):
        play.beating.discard(node_id)
        if play.beating:
            assert play.go(2) == ExpiredSessions()
    assert play.go(SESSION_S) == ExpiredSessions(steps_back=True)


def test_cluster_d82_the_survivor_of_three_goes_on_once_nobody_else_claimed() -> None:
    """Two of three are dead: it steps back, claims again, and ends them in the first seconds of that epoch."""
    play = Play(2, 3)
    play.beating = set()
    assert play.go(SESSION_S + 1) == ExpiredSessions(steps_back=True)
    again = Play(2, 3, is_sure=True)
    again.beating = set()
    assert SESSION_S < UNTIMED_S
    assert again.go(SESSION_S + 1) == ExpiredSessions(((2, 2), (3, 3)))


def test_half_is_not_fewer_than_half() -> None:
    """Of two brokers one is dead: no majority is needed (D64)."""
    play = Play(2)
    play.beating = set()
    assert play.go(SESSION_S + 1) == ExpiredSessions(((2, 2),))


def test_what_the_image_ended_is_no_session() -> None:
    """And what it began has its full time."""
    play = Play(2, 3)
    play.go(3)
    play.sessions.follow(image(1, 2, 4), play.now_s)
    play.beating = {2}
    assert not play.sessions.heartbeat(3, 3, play.now_s)
    assert play.go(SESSION_S - STEP_S) == ExpiredSessions()
    assert play.go(STEP_S * 2) == ExpiredSessions(((4, 4),))


def test_who_has_no_session_is_silent_after_a_lease_of_this_controller() -> None:
    """Counted from when it was seen without one; another session starts anew."""
    play = Play(2)
    away = image(1, 2).with_records([session(node_id=2, broker_epoch=2, active=False)])
    assert not play.sessions.is_silent(2, play.now_s), "it has one"
    play.sessions.follow(away, play.now_s)
    play.beating.clear()
    play.go(TIMES.lease_s - STEP_S)
    assert not play.sessions.is_silent(2, play.now_s)
    play.go(2 * STEP_S)
    assert play.sessions.is_silent(2, play.now_s) and not play.sessions.is_silent(3, play.now_s)
    back = away.with_records([session(node_id=2, broker_epoch=9)])
    play.sessions.follow(back, play.now_s)
    assert not play.sessions.is_silent(2, play.now_s)


def test_a_long_session_is_ended_by_a_controller_that_came_back() -> None:
    """Sessions of a minute were still alive when the thirty seconds without the more-than-half rule were over: the sole
    survivor stepped back again and again, and never ended one."""
    times = ClusterTimes(session_s=60.0)
    sessions = Sessions(1, 0.0, times, is_sure=True)
    sessions.follow(image(1, 2, 3), 0.0)
    looks = (sessions.check(STEP_S * number) for number in range(1, 200))
    assert next(due for due in looks if due != ExpiredSessions()) == ExpiredSessions(((2, 2), (3, 3)))


def test_a_connection_whose_end_is_noticed_late_ends_no_session_that_beats_on_another() -> None:
    """Its last segment was lost, and sent again when the broker beat on a new connection already. That heartbeat is
    parked for broker.heartbeat.interval.ms; with 3 s of it the session was over in 2."""
    times = ClusterTimes(session_s=18.0, parked_s=3.0)
    sessions = Sessions(1, 100.0, times)
    sessions.follow(image(1, 2), 100.0)
    assert sessions.check(100.0) == ExpiredSessions()
    assert sessions.heartbeat(2, 2, 100.0), "on the new connection"
    sessions.closed(2, 2, 100.1)
    due = [sessions.check(100.0 + at * STEP_S) for at in range(1, 7)]
    assert not any(each.ended for each in due)
    assert sessions.heartbeat(2, 2, 103.1)
