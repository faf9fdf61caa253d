"""The model of compacted topics judges histories made by hand: what it allows, and each anomaly that it has."""

from __future__ import annotations

import pytest

from tests.sim.checks.history import Event, Loss, Outcome, Place
from tests.sim.checks.tables import Copied, Found, Put, Row, Scan, TableRules, check_tables

PLACE: Place = ("table", 0)
RULES = TableRules(tombstones_stay_s=10.0)


def row(value_id: str, *, dead: bool = False) -> Row:
    """Of the key that its id begins with."""
    return Row(value_id, value_id[:1].encode(), dead, 7)


def put(offset: int, *rows: Row, at_s: float = 1.0, outcome: Outcome = Outcome.OK) -> Put:
    ids = tuple(one.value_id for one in rows)
    return Put(ids[0], 0, PLACE, ids, at_s, at_s + 0.1, outcome, offset, "n", (), rows)


def scan(*found: tuple[int, Row], end: int, at_s: float = 5.0, start: int = 0, final: bool = True) -> Scan:
    rows = tuple(Found(*one) for one in found)
    return Scan("reader", PLACE, start, end, at_s, at_s + 0.1, rows, "n", final)


A0, A1, B1 = row("a0"), row("a1"), row("b1")
GONE = row("a9", dead=True)
PUTS = (put(0, A0), put(1, B1), put(2, A1))
OLD = put(2, GONE)

ALLOWED: dict[str, list[Event | Put | Scan | Copied]] = {
    "nothing was cleaned": [*PUTS, scan((0, A0), (1, B1), (2, A1), end=3)],
    "superseded": [*PUTS, scan((1, B1), (2, A1), end=3)],
    "a tombstone stays, what it deletes went": [put(0, A0), OLD, scan((2, GONE), end=3)],
    "a tombstone went with what it deletes": [put(0, A0), OLD, scan(end=3, at_s=20.0)],
    "deleted by one that nobody acknowledged": [
        put(0, A0), put(-1, GONE, outcome=Outcome.INFO), scan(end=3, at_s=20.0),
    ],
    "lost with its disk": [put(0, A0), Loss(PLACE, 0, 2.0, "disk"), scan(end=3)],
    "another one at the offset after a loss": [
        put(0, A0), Loss(PLACE, 0, 2.0, "disk"), put(0, B1, at_s=3.0), scan((0, B1), end=1),
    ],
    "below the log start": [*PUTS, scan(end=3, start=3), Loss(PLACE, 9, 0.0, "-")],
    "behind the end of a scan that went on elsewhere": [put(0, A0), put(7, A1), scan(end=5, final=False)],
    "a copy was away for longer than tombstones stay": [
        put(0, A0), OLD, Copied(PLACE, 0.0, ((1, 3), (2, 1))), scan((0, A0), end=3, at_s=20.0),
    ],
}  # fmt: skip
WRONG: dict[str, tuple[str, list[Event | Put | Scan | Copied]]] = {
    "the newest is not there": ("table-lost", [*PUTS, scan((0, A0), (1, B1), end=3)]),
    "none of the key is there": ("table-lost", [*PUTS, scan((1, B1), end=3)]),
    "a tombstone went too early": ("table-lost", [put(0, A0), OLD, scan(end=3, at_s=8.0)]),
    "what a tombstone deleted is back": ("table-resurrected", [put(0, A0), OLD, scan((0, A0), end=3, at_s=20.0)]),
    "at another offset": ("table-twice", [put(0, A0), scan((1, A0), end=2)]),
    "another value there": ("table-two-at-one-offset", [put(0, A0), put(-1, A1), scan((0, A1), end=1)]),
    "nobody put it": ("table-invented", [put(0, A0), scan((0, A0), (1, B1), end=2)]),
    "not as it was put": ("table-invented", [put(0, A0), scan((0, A0._replace(crc=8)), end=1)]),
    "it was refused": ("table-aborted", [put(-1, A0, outcome=Outcome.FAIL), scan((0, A0), end=1)]),
    "out of order": ("table-order", [*PUTS, scan((2, A1), (1, B1), end=3)]),
    "above the end": ("table-unseen", [*PUTS, scan((0, A0), (1, B1), end=2)]),
    "nobody asked for a deletion": ("table-premature-delete", [*PUTS, scan((2, A1), end=3, start=2)]),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_what_readers_may_see(what: str) -> None:
    assert [*check_tables(ALLOWED[what], RULES)] == []


@pytest.mark.parametrize("what", WRONG)
def test_what_readers_may_not_see(what: str) -> None:
    kind, events = WRONG[what]
    assert kind in {told for told, _ in check_tables(events, RULES)}


def test_no_tombstone_of_a_tiered_topic_goes() -> None:
    events = ALLOWED["a tombstone went with what it deletes"]
    assert {kind for kind, _ in check_tables(events, TableRules(None))} == {"table-lost"}
