"""The follower machine alone; what it says to leaders, and they to it, is in tests/playbooks."""

from __future__ import annotations

import pytest

from broker.replication.follower import Cut, FetchPosition, Follower, Phase, Take
from logformat.leader_epochs import EpochEnd, LeaderEpochs


def lineage(*starts: tuple[int, int]) -> LeaderEpochs:
    found = LeaderEpochs()
    for epoch, start in starts:
        found = found.assign(epoch, start)
    return found


def asked(follower: Follower) -> FetchPosition:
    found = follower.next_fetch()
    assert found is not None
    return found


def test_nothing_moves_before_the_first_clean_answer() -> None:
    """KAFKA-14704: a high watermark raised before the cut would show what is cut."""
    follower = Follower(lineage((1, 0)), 10, 4)
    follower.begin(2)
    assert follower.next_fetch() == FetchPosition(10, 1, 2)
    assert follower.answered(asked(follower), EpochEnd(1, 7), 9) == Cut(7)
    assert follower.high_watermark == 4 and follower.next_fetch() is None
    follower.cut(lineage((1, 0)), 7)
    assert isinstance(follower.answered(asked(follower), None, 9), Take)
    assert (follower.high_watermark, follower.phase, follower.seen_epoch) == (7, Phase.FOLLOWING, 2)
    follower.flushed(lineage((1, 0), (2, 7)), 8)
    assert follower.high_watermark == 8 and follower.next_fetch() == FetchPosition(8, 2, 2)


def test_cluster_d23_the_same_leader_in_a_new_epoch_is_asked_anew() -> None:
    """KAFKA-7164: it may have come back with less; what was agreed in the epoch before says nothing."""
    follower = Follower(lineage((1, 0)), 5, 5)
    follower.begin(1)
    follower.answered(asked(follower), None, 5)
    before = asked(follower)
    follower.begin(2)
    assert follower.phase is Phase.RECONCILING
    assert follower.answered(before, None, 9) is None, "an answer of the epoch before"


def test_an_answer_that_comes_twice_is_taken_once() -> None:
    """What it answered is flushed already: the next question is another one."""
    follower = Follower(LeaderEpochs(), 0, 0)
    follower.begin(1)
    first = asked(follower)
    assert isinstance(follower.answered(first, None, 3), Take)
    follower.flushed(lineage((1, 0)), 3)
    assert follower.answered(first, None, 3) is None


def test_cluster_d22_an_epoch_of_its_own_without_a_record_goes_before_anything_is_taken() -> None:
    """KAFKA-10706: it led, wrote nothing, and the next leader has older records where that epoch begins. The lineages
    agree below, so nothing shows divergence, and the leader's records would not follow that epoch."""
    follower = Follower(lineage((1, 0), (2, 4)), 4, 4)
    follower.begin(3)
    assert asked(follower) == FetchPosition(4, 1, 3)
    assert follower.answered(asked(follower), None, 6) == Cut(4)
    follower.cut(lineage((1, 0)), 4)
    assert isinstance(follower.answered(asked(follower), None, 6), Take) and follower.phase is Phase.FOLLOWING
    follower.flushed(lineage((1, 0), (3, 6)), 6)
    assert follower.next_fetch() == FetchPosition(6, 1, 3), "one that its leader began is not asked about again"
    assert isinstance(follower.answered(asked(follower), None, 6), Take)


@pytest.mark.parametrize(
    ("mine", "end", "leaders", "at"),
    [
        (lineage((1, 0)), 10, EpochEnd(1, 6), 6),  # KIP-101: the leader has less of our epoch
        (lineage((1, 0), (3, 6)), 10, EpochEnd(2, 8), 6),  # KIP-279: an epoch we lack; ours of before ends at 6
        (lineage((1, 0), (3, 6)), 10, EpochEnd(1, 4), 4),
        (lineage((5, 0)), 10, EpochEnd(2, 3), 0),  # nothing of ours is older
    ],
)
def test_a_log_is_cut_where_the_lineages_part(mine: LeaderEpochs, end: int, leaders: EpochEnd, at: int) -> None:
    """Never above either end of the last epoch that both may have."""
    follower = Follower(mine, end, 0)
    follower.begin(9)
    assert follower.answered(asked(follower), leaders, 0) == Cut(at)


def test_the_high_watermark_is_not_below_the_log_start() -> None:
    """Only committed records are deleted; the own flushed end still bounds it."""
    follower = Follower(lineage((1, 0)), 10, 4, seen_epoch=1)
    follower.starts_at(6)
    assert follower.high_watermark == 6
    follower.starts_at(5)
    assert follower.high_watermark == 6
    follower.starts_at(12)
    assert follower.high_watermark == 10


def test_cluster_d25_what_is_committed_is_not_cut_but_for_an_unclean_start() -> None:
    """It goes offline and says so; an unclean epoch that it has seen already is no leave to cut again."""
    for unclean, seen, phase in ((-1, 1, Phase.OFFLINE), (1, 1, Phase.OFFLINE), (2, 1, Phase.CUTTING)):
        follower = Follower(lineage((1, 0)), 10, 8, seen_epoch=seen)
        follower.begin(3, unclean)
        found = follower.answered(asked(follower), EpochEnd(1, 6), 0)
        assert follower.phase is phase and found == (Cut(6) if phase is Phase.CUTTING else None)
        assert follower.high_watermark == 8, "what is not cut yet stays committed"
        if phase is Phase.CUTTING:
            follower.cut(lineage((1, 0)), 6)
            assert follower.high_watermark == 6
        if phase is Phase.OFFLINE:
            follower.begin(4)
            assert follower.next_fetch() is None, "nobody else may clear it either"


def test_a_log_that_restarts_at_the_buckets_end_copies_a_record_before_it_is_sent_on() -> None:
    """It was sent on whenever the bucket's end had moved while it restarted, for ever where segments roll faster than
    the bucket answers (seed 96813 of three brokers, --late, `thermocline.follower.skip.bytes=0`)."""
    follower = Follower(lineage((1, 0)), 5, 5)
    follower.begin(2)
    follower.leave()
    follower.began_at(lineage((1, 0)), 50)
    assert follower.next_fetch() == FetchPosition(50, 1, 2, copies_on=True)
    asked = follower.next_fetch()
    assert asked is not None and follower.answered(asked, None, 60) == Take()
    follower.flushed(lineage((1, 0), (2, 50)), 60)
    asked = follower.next_fetch()
    assert asked == FetchPosition(60, 2, 2, copies_on=True)
    assert follower.answered(asked, None, 60) == Take()
    assert follower.next_fetch() == FetchPosition(60, 2, 2), "it has every committed record"
