"""The checker sees: a history with one anomaly each gives exactly that finding, a good one gives none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.sim.checks.checker import check
from tests.sim.checks.history import Batch, Commit, Delete, Epoch, Event, Final, Loss, Outcome, Place, Poll, Send

P: Place = ("t", 0)


def send(number: int, offset: int, at_s: float = 1.0, outcome: Outcome = Outcome.OK, node: str = "a") -> Send:
    """One record, named after its number."""
    return Send("s", number, P, (f"v{number}",), at_s, at_s + 0.1, outcome, offset, node)


def batch(base: int, *numbers: int) -> Batch:
    return Batch(base, base + len(numbers), f"d{base}{numbers}", tuple(f"v{number}" for number in numbers))


def poll(offset: int, *batches: Batch, at_s: float = 5.0, high: int = 100, start: int = 0, who: str = "final") -> Poll:
    return Poll(who, P, offset, at_s, at_s + 0.1, batches, high, start, "a")


GOOD: tuple[Event, ...] = (
    send(0, 0),
    send(1, 1),
    send(2, 2),
    poll(0, batch(0, 0), batch(1, 1), batch(2, 2)),
    Final(P, 0, 3, 5.5),
)

GAP = Batch(1, 50, "gap", ())

CASES: dict[str, Sequence[Event]] = {
    "inconsistent-offsets": (send(0, 0), poll(0, batch(0, 0), who="early"), send(3, 0, at_s=2.0)),
    "tier-divergence": (*GOOD, poll(0, replace(batch(0, 0), digest="other"), at_s=6.0)),
    "duplicate": (*GOOD, poll(3, Batch(3, 4, "again", ("v0",)), at_s=6.0, who="tail")),
    "invented": (*GOOD, poll(3, batch(3, 77), at_s=6.0)),
    "aborted-read": (*GOOD, send(3, -1, outcome=Outcome.FAIL), poll(3, batch(3, 3), at_s=6.0)),
    "lost-write": (send(0, 0), send(1, 1), poll(0, batch(0, 0), Batch(1, 2, "x", ())), Final(P, 0, 2)),
    "unseen": (send(0, 0), send(1, 1), poll(0, batch(0, 0)), Final(P, 0, 1)),
    "lost-read": (
        *GOOD,
        send(3, -1, outcome=Outcome.INFO),
        poll(3, batch(3, 3), at_s=4.0, who="tail"),
    ),
    "nonmonotonic-send": (send(1, 0), send(0, 1), poll(0, batch(0, 1), batch(1, 0)), Final(P, 0, 2)),
    "seam-gap": (send(0, 0), send(2, 2), poll(0, batch(0, 0), batch(2, 2))),
    "seam-overlap": (send(0, 0), poll(0, batch(0, 0), batch(0, 0))),
    "above-watermark": (send(0, 0), poll(0, batch(0, 0), high=0)),
    "watermark-regression": (poll(0, high=9), poll(0, high=8, at_s=6.0)),
    "log-start-regression": (Delete(P, 5, 1.0, 1.1, Outcome.OK), poll(5, start=5), poll(5, start=4, at_s=6.0)),
    "resurrected-offset": (
        send(0, 0),
        Delete(P, 1, 1.0, 1.1, Outcome.OK),
        poll(0, batch(0, 0), start=1, at_s=6.0),
    ),
    "premature-delete": (Delete(P, 2, 1.0, 1.1, Outcome.OK), poll(5, start=3)),
    "offset-regression": (
        Commit("g", P, 7, 1.0, 1.1, Outcome.OK),
        Commit("g", P, 3, 0.5, 0.6, Outcome.OK),
        Commit("g", P, 3, 2.0, 2.1, Outcome.OK, read=True),
    ),
    "zombie-visible": (send(0, 0, at_s=9.0, node="old"), Epoch("new", "old", 5.0)),
}


def test_a_good_history_has_no_findings() -> None:
    """Also one with an unanswered send that happened, and one that did not."""
    assert check(GOOD) == []
    assert check([*GOOD, send(3, -1, outcome=Outcome.INFO)]) == []


@pytest.mark.parametrize("kind", CASES)
def test_each_anomaly_is_seen(kind: str) -> None:
    """And nothing else is claimed."""
    assert {finding.kind for finding in check(CASES[kind])} == {kind}


def test_a_lost_tail_excuses_what_was_in_it_and_nothing_below() -> None:
    """A disk loss above the remote end: gone and sent again is fine; below it, it is a lost write."""
    lost = (send(0, 0), send(1, 1), poll(0, batch(0, 0), GAP), Final(P, 0, 50))
    assert {finding.kind for finding in check(lost)} == {"lost-write"}
    assert check([*lost, Loss(P, 1, 3.0, "disk")]) == []
    assert {finding.kind for finding in check([*lost, Loss(P, 2, 3.0, "disk")])} == {"lost-write"}
    assert {finding.kind for finding in check([*lost, Loss(P, 1, 0.5, "disk")])} == {"lost-write"}


def test_a_lost_tail_never_excuses_another_record_at_a_seen_offset() -> None:
    """Offsets are not given twice, whatever is lost (C6, C30)."""
    events = (
        send(0, 0),
        poll(0, batch(0, 0), at_s=2.0, who="early"),
        Loss(P, 0, 3.0, "disk"),
        send(1, 0, at_s=4.0),
        poll(0, batch(0, 1)),
        Final(P, 0, 1),
    )
    assert "inconsistent-offsets" in {finding.kind for finding in check(events)}


def test_a_gap_where_nothing_was_lost_is_divergence() -> None:
    """Control batches may replace records only where a loss is allowed."""
    events = (*GOOD, poll(1, GAP, at_s=6.0))
    assert "tier-divergence" in {finding.kind for finding in check(events)}
