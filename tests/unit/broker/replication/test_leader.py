"""The leader machine: what counts as committed, and when that stands still. Conversations named by their scenario."""

from __future__ import annotations

from msgspec.structs import replace

from broker.replication.in_sync import AppliedRow, InSync
from broker.replication.leader import Leader, Report
from seams.rng import SeededRng

SESSIONS = {0: 10, 1: 11, 2: 12}
ROW = AppliedRow(5, 1, frozenset((0, 1, 2)), 2, frozenset((0, 1, 2)), SESSIONS)


def leader(row: AppliedRow = ROW, *, high_watermark: int = 0, own_end: int = 0, epoch_start: int = 0) -> Leader:
    return Leader(0, row, epoch_start=epoch_start, high_watermark=high_watermark, own_end=own_end)


def test_a_leader_alone_counts_its_own_flushed_end() -> None:
    """The machine with a set of one is what a broker alone runs on."""
    alone = Leader(
        7, AppliedRow(3, 0, frozenset((7,)), 1, frozenset((7,)), {7: 10}), epoch_start=4, high_watermark=2, own_end=4
    )
    assert (alone.high_watermark, alone.is_end_known, alone.takes_all) == (4, True, True)
    assert alone.flushed(9) and alone.high_watermark == 9
    assert not alone.flushed(9) and not alone.flushed(8) and alone.high_watermark == 9


def test_the_high_watermark_is_the_least_flushed_end_of_the_set() -> None:
    """Nobody is skipped, and it never falls, also when somebody reports less than before."""
    led = leader(own_end=9)
    assert led.high_watermark == 0
    assert not led.reported(1, Report(5, 11), 5)
    assert led.reported(2, Report(7, 12), 5) and led.high_watermark == 5
    assert not led.reported(1, Report(3, 11), 5) and led.high_watermark == 5
    assert led.reported(1, Report(20, 11), 5) and led.high_watermark == 7
    assert led.reported(2, Report(20, 12), 5) and led.high_watermark == 9


def test_what_the_bucket_holds_is_committed() -> None:
    """A new leader may know less of it than the leader before, who copied it: its remote end would lie above what it
    shows, for as long as a member of the set is silent (simulated seed 26 of several brokers)."""
    led = leader(high_watermark=3, own_end=9)
    assert led.held(7) and led.high_watermark == 7
    assert not led.held(5) and led.high_watermark == 7
    assert led.held(20) and led.high_watermark == 9, "never above what is on its disk"
    assert led.flushed(12) and led.high_watermark == 12, "and moves on with its disk"


def test_deleted_records_are_committed_while_the_set_is_too_small() -> None:
    """Below its minimum in-sync set a leader moves nothing by itself (simulated seed 92358)."""
    led = leader(replace(ROW, in_sync=frozenset((0,))), high_watermark=3, own_end=9)
    assert led.high_watermark == 3 and not led.flushed(9)
    assert led.held(7) and led.high_watermark == 7


def test_cluster_d02_a_replica_whose_removal_is_only_proposed_still_counts() -> None:
    """D2: the proposal may fail, and it be elected."""
    led = leader(own_end=9)
    led.reported(1, Report(9, 11), 5)
    at, _ = led.propose(frozenset((0, 1)))
    assert at == 1 and not led.flushed(9) and led.high_watermark == 0
    assert led.applied(replace(ROW, partition_epoch=2, in_sync=frozenset((0, 1)))) and led.high_watermark == 9


def test_cluster_d03_a_candidate_counts_before_its_joining_is_known() -> None:
    """D3, D69: the commit may stand although its answer was lost; only a row with a higher partition epoch settles it,
    also one whose set is as before."""
    row = replace(ROW, in_sync=frozenset((0, 1)))
    led = leader(row, own_end=5)
    led.reported(1, Report(5, 11), 5)
    led.reported(2, Report(5, 12), 5)
    assert led.may_join(2) and led.high_watermark == 5
    assert led.propose(frozenset((0, 1, 2))) == (1, SESSIONS)
    led.flushed(9)
    assert not led.reported(1, Report(9, 11), 5) and led.high_watermark == 5
    assert led.propose(frozenset((0, 1)))[0] == 1  # the outcome of the first is unknown: it counts all the same
    assert led.in_sync.union == {0, 1, 2} and not led.flushed(9)
    assert not led.applied(row), "the row it was proposed at says nothing"
    assert led.applied(replace(row, partition_epoch=2)) and led.high_watermark == 9 and led.in_sync.is_settled


def test_cluster_d04_d68_an_end_of_another_life_is_void() -> None:
    """D4, D68: a follower that came back on an empty disk has another broker epoch; what its old life said, also in a
    fetch that arrives late, does not count, and a proposal carries the epoch of the report, not the image's."""
    row = replace(ROW, in_sync=frozenset((0, 1)))
    led = leader(row, own_end=9)
    led.reported(1, Report(9, 11), 5)
    led.reported(2, Report(9, 12), 5)
    assert led.high_watermark == 9 and led.may_join(2)
    led.applied(replace(row, sessions={0: 10, 1: 11, 2: 13}))
    assert not led.may_join(2)
    assert not led.reported(2, Report(9, 12), 5) and not led.may_join(2)
    led.reported(2, Report(0, 13), 5)
    assert not led.may_join(2)
    led.reported(2, Report(9, 13), 5)
    assert led.may_join(2) and led.propose(frozenset((0, 1, 2)))[1] == {0: 10, 1: 11, 2: 13}


def test_a_report_of_another_leader_epoch_says_nothing() -> None:
    """The fetch passed the check for divergence under another leader's log."""
    led = leader(own_end=9)
    for epoch in (4, 6):
        assert not led.reported(1, Report(9, 11), epoch) and not led.reported(2, Report(9, 12), epoch)
    assert led.high_watermark == 0


def test_below_the_minimum_nothing_moves_and_acks_all_is_refused() -> None:
    """D1: the minimum counts active members of the committed set, from the applied row; also for acks=1 nothing becomes
    visible. A member without a session stays in the set and holds the high watermark."""
    led = leader(replace(ROW, in_sync=frozenset((0, 1)), sessions={0: 10, 2: 12}), own_end=9)
    assert not led.takes_all and not led.flushed(10) and led.high_watermark == 0
    led.applied(replace(ROW, in_sync=frozenset((0, 1)), sessions=SESSIONS))
    assert led.takes_all and led.high_watermark == 0
    assert led.reported(1, Report(8, 11), 5) and led.high_watermark == 8
    led.applied(replace(ROW, partition_epoch=2, in_sync=frozenset((0,)), sessions={0: 10}))
    assert not led.takes_all and not led.flushed(20) and led.high_watermark == 8


def test_cluster_d27_the_end_is_not_told_before_the_start_of_the_epoch_is_committed() -> None:
    """KIP-207: clients of the leader before saw a higher one; theirs would seem to fall."""
    led = leader(high_watermark=3, own_end=8, epoch_start=8)
    assert led.high_watermark == 3 and not led.is_end_known
    led.reported(1, Report(8, 11), 5)
    led.reported(2, Report(7, 12), 5)
    assert led.high_watermark == 7 and not led.is_end_known
    led.reported(2, Report(8, 12), 5)
    assert led.is_end_known


def test_who_lacks_what_came_before_the_epoch_does_not_join() -> None:
    """KIP-841: above the high watermark lies what the leader before may have acknowledged."""
    led = leader(replace(ROW, in_sync=frozenset((0, 1))), high_watermark=3, own_end=8, epoch_start=8)
    led.reported(2, Report(7, 12), 5)
    assert not led.may_join(2)
    led.reported(2, Report(8, 12), 5)
    assert led.may_join(2)
    assert not led.may_join(1), "it is in the set"


def test_a_row_of_a_lower_partition_epoch_says_nothing() -> None:
    """Images come in order, answers do not carry any: this one is late all the same."""
    found = InSync(replace(ROW, partition_epoch=4))
    found.apply(replace(ROW, partition_epoch=3, in_sync=frozenset((0,))))
    assert found.union == {0, 1, 2} and found.row.partition_epoch == 4


def test_whatever_is_acknowledged_is_on_every_disk_that_may_be_elected() -> None:
    """Random walks: proposals whose outcome is lost, late or refused, images that lag, replicas that lose their disk
    and come back as another life. At every move of the high watermark all members of the *committed* set, which the
    leader may not know yet, hold what lies below it; a replica that lost its disk left the set in that very commit."""
    moves = 0
    for seed in range(800):
        rng = SeededRng(seed)
        disk = {0: 0, 1: 0, 2: 0}
        committed = ROW
        images = [ROW]
        sent: list[tuple[int, frozenset[int], dict[int, int]]] = []
        fetches: list[tuple[int, Report]] = []
        led = leader()
        for _ in range(80):
            before = led.high_watermark
            match rng.randrange(8):
                case 0 | 1:
                    disk[0] += 1 + rng.randrange(3)
                    led.flushed(disk[0])
                case 2 | 3:
                    node = 1 + rng.randrange(2)
                    fetches.append((node, Report(disk[node], committed.sessions[node])))
                    disk[node] = max(disk[node], rng.randrange(disk[0] + 1))
                case 4 if fetches:
                    node, report = fetches.pop(rng.randrange(len(fetches)))
                    led.reported(node, report, 5)
                case 5:
                    joiners = [node for node in (1, 2) if led.may_join(node)]
                    target = led.in_sync.row.in_sync | set(joiners)
                    if not joiners and len(target) == 3:
                        target = target - {1 + rng.randrange(2)}
                    at, epochs = led.propose(frozenset(target))
                    sent.append((at, frozenset(target), epochs))
                case 6 if sent:
                    at, target, epochs = sent.pop(rng.randrange(len(sent)))
                    known = all(committed.sessions[node] == epochs[node] for node in target)
                    if at == committed.partition_epoch and known and len(target) >= 2:
                        committed = replace(committed, partition_epoch=at + 1, in_sync=target)
                        images.append(committed)
                case 7:
                    if rng.randrange(4) == 0 and len(committed.in_sync) == 3:
                        node = 1 + rng.randrange(2)
                        disk[node] = 0
                        sessions = {**committed.sessions, node: committed.sessions[node] + 100}
                        kept = committed.in_sync - {node}
                        epoch = committed.partition_epoch + 1
                        committed = replace(committed, partition_epoch=epoch, in_sync=kept, sessions=sessions)
                        images.append(committed)
                    elif images:
                        led.applied(images.pop(0))
                case _:
                    pass
            assert led.high_watermark >= before
            if led.high_watermark > before:
                moves += 1
                for node in committed.in_sync:
                    assert disk[node] >= led.high_watermark, (seed, node, disk, led.high_watermark, committed)
    assert moves > 1000, moves


def test_who_lacks_what_the_log_held_a_while_ago_is_late_since_then() -> None:
    """Judged by the last look, so that it need not reach an end that runs ahead of it; who caught up is late no more,
    and who has no session is somebody else's to tell."""
    led = leader()
    led.sample(1_000, 10)
    assert led.late_since_ms == {}, "nothing is known of before the first look"
    led.reported(1, Report(10, 11), 5)
    led.sample(1_500, 20)
    assert led.late_since_ms == {2: 1_000}, "2 said nothing, and the log held 10 then"
    led.reported(2, Report(9, 12), 5)
    led.reported(1, Report(15, 11), 5)
    led.sample(2_000, 20)
    assert led.late_since_ms == {1: 1_500, 2: 1_000} and led.reported_end(2) == 9
    led.reported(1, Report(20, 11), 5)
    led.sample(2_500, 30)
    assert led.late_since_ms == {2: 1_000}
    led.applied(replace(ROW, partition_epoch=2, sessions={0: 10, 1: 11}))
    led.sample(3_000, 30)
    assert led.late_since_ms == {1: 2_500}, "2 has no session"
