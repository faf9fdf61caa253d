"""The claim of the design, on the machines that decide it: an acknowledged record is in the log of every later clean
leader (cluster-cases 2; D1, D2, D3, D5, D18, D19, D22, D41, D42, D65, D68, D69, D70).

`python -m tests.playbooks` does the same a hundred thousand times.
"""

from __future__ import annotations

from broker.metadata.records import NO_LEADER
from tests.playbooks.core import Core
from tests.playbooks.oracle import Oracle
from tests.playbooks.walks import walk


def test_whatever_happens_a_clean_leader_has_what_was_acknowledged() -> None:
    """Rows, leaders and followers under images that lag, fetches late and doubled, proposals late, power cuts with
    either flush, a lost disk, a lost log, minimum 1 and 2, other directories and broker epochs. The walks did get
    somewhere: hundreds of acknowledgements and elections, tens of cuts and of sets that nobody was left in."""
    did, findings = walk(1, 700)
    assert not findings, f"seed {findings[0].seed}: {findings[0].why}\n  " + "\n  ".join(findings[0].steps)
    assert did["acks"] > 1_000 and did["elections"] > 1_500 and did["cuts"] > 50, did
    assert did["unclean starts"] > 20 and did["records given up by them"] > 5, did


def test_a_walk_is_the_same_twice() -> None:
    """A finding's seed is worth something."""
    once, again = walk(5, 20), walk(5, 20)
    assert once == again and once[0]["events"] > 2_000


def test_a_lost_log_is_told_though_a_proposal_takes_it_in_meanwhile() -> None:
    """Node 3 was behind, caught up, and its leader proposed it; its process ended and its log was moved away. The next
    one reads cluster.json, where 3 is not in sync; then the proposal is decided; then it registers (R16, R18). It was
    in the set with nothing, and led (D70)."""
    core, oracle = Core(minimum=2), Oracle()
    core.append(1)
    core.flush(1)
    core.copy(2, times=2)
    assert core.propose(1, end_before=1) and core.decide() and core.row.in_sync == (1, 2)
    core.all_obey()
    core.copy(3, times=2)
    assert core.propose(1) and core.leader_at(1).in_sync.union == {1, 2, 3}
    core.lose_log(3)
    core.ask_for_session(3)
    assert core.decide() and core.row.in_sync == (1, 2, 3)
    core.register()
    oracle.look(core)
    assert core.row.in_sync == (1, 2)
    core.all_obey()
    core.end_session(2)
    core.end_session(1)
    oracle.look(core)
    assert core.row.leader == NO_LEADER, "both who have it are away"
