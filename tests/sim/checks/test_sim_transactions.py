"""The model of transactions judges histories made by hand: what it allows, and each anomaly that it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.sim.checks.history import Batch, Delete, Loss, Outcome, Place
from tests.sim.checks.transactions import (
    ALL_MACHINES,
    FINAL,
    STRAY,
    Ended,
    GroupLook,
    Look,
    Part,
    check_transactions,
    life_of,
)

A: Place = ("a", 0)
B: Place = ("b", 0)
OLD, NEW, SOME = (life_of(B, topic_id) for topic_id in (UUID(int=1), UUID(int=2), None))


def ended(
    number: int, outcome: Outcome, *parts: Part, at_s: float = 1.0, group: int = -1, how: str = "commit"
) -> Ended:
    asked_s = at_s + 0.5 if outcome is not Outcome.FAIL else float("inf")
    return Ended("x", number, 2, parts, group, at_s, asked_s, at_s + 1.0, outcome, how)


def look(
    place: Place, *found: tuple[int, str], end: int = 9, at_s: float = 9.0, name: str = FINAL, **more: Any
) -> Look:
    batches = tuple(Batch(offset, offset + 1, value, (value,)) for offset, value in found)
    stable, is_committed = more.get("stable", end), more.get("is_committed", True)
    return Look(
        name,
        place,
        more.get("start", 0),
        end,
        is_committed,
        at_s,
        at_s + 0.1,
        batches,
        stable,
        9,
        "n",
        more.get("log_start", 0),
    )


def all_of(place: Place, *found: tuple[int, str]) -> tuple[Look, Look]:
    """What the last readers saw, in both isolations."""
    return look(place, *found), look(place, *found, is_committed=False)


A1, B1, A2 = Part(A, ("a1",), 0), Part(B, ("b1",), 0), Part(A, ("a2",), 2)
OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO
ONE = ended(1, OK, A1, B1)
CUT = Delete(A, 2, 2.5, 2.6, OK)
SEEN = (*all_of(A, (0, "a1")), *all_of(B, (0, "b1")))
NOT_SEEN = (look(A), look(A, (0, "a1"), is_committed=False), look(B), look(B, (0, "b1"), is_committed=False))

ALLOWED: dict[str, list[Any]] = {
    "committed, whole": [ONE, *SEEN],
    "aborted, not shown": [ended(1, FAIL, A1, B1), *NOT_SEEN],
    "unanswered, whole": [ended(1, INFO, A1, B1), *SEEN],
    "unanswered, not there": [ended(1, INFO, A1, B1), *NOT_SEEN],
    "in order": [ONE, ended(2, OK, A2), *all_of(A, (0, "a1"), (2, "a2")), *all_of(B, (0, "b1"))],
    "a batch came before the marker": [
        *(ONE, ended(1, INFO, A2, how=STRAY)),
        *(*all_of(A, (0, "a1"), (2, "a2")), *all_of(B, (0, "b1"))),
    ],
    "half of it is lost": [ONE, Loss(A, 0, 5.0, "disk"), *all_of(A), *all_of(B, (0, "b1"))],
    "lost while it ran, and a later loss": [
        *(ended(1, OK, A1), Loss(A, 0, 1.2, "disk"), Loss(A, 1, 3.0, "disk")),
        *(Loss(("__transaction_state", 0), 0, 3.0, "disk"), *all_of(A)),
    ],
    "before and after a restore": [
        *(ended(1, OK, A1, at_s=1.0), Loss(A, 1, 3.0, ALL_MACHINES), ended(2, OK, A2, at_s=4.0)),
        *all_of(A, (0, "a1"), (2, "a2")),
    ],
    "its coordinator's log is lost": [ONE, Loss(("__transaction_state", 0), 0, 1.7, "disk"), *NOT_SEEN],
    "its offset, and its coordinator lost what it decided": [
        *(replace(ended(1, FAIL, A1, group=1), version=1), Loss(("__transaction_state", 0), 0, 3.0, "disk")),
        *(*NOT_SEEN[:2], GroupLook("x", 1, 9.0, 9.1, True)),
    ],
    "aborted, and both the marker and its coordinator's decision are lost": [
        replace(ended(1, FAIL, A1), version=1),
        *(Loss(place, 0, 3.0, "disk") for place in (A, ("__transaction_state", 0))),
        *all_of(A, (0, "a1")),
    ],
    "its offset": [ended(1, OK, A1, group=1), *all_of(A, (0, "a1")), GroupLook("x", 1, 9.0, 9.1, True)],
    "deleted, half of it": [
        *(CUT, ended(1, OK, Part(A, ("a1", "a2"), 1), B1)),
        *(look(A, (2, "a2"), log_start=2, is_committed=c) for c in (True, False)),
        *all_of(B, (0, "b1")),
    ],
    "deleted, with its offset": [
        *(CUT, ended(1, INFO, A1, group=1), GroupLook("x", 1, 9.0, 9.1, True)),
        *(look(A, log_start=2, is_committed=c) for c in (True, False)),
    ],
    "stable up to what is open": [ended(1, OK, Part(A, ("a1",), 3)), look(A, stable=3, end=3, at_s=1.1, name="r")],
    "stable where an open one was deleted": [
        CUT,
        ONE,
        look(A, stable=2, end=2, start=2, log_start=2, at_s=2.7, name="r"),
    ],
    "stable above an open one that was deleted": [
        *(Delete(A, 2, 1.05, 1.06, OK), ended(1, OK, A1)),
        look(A, stable=4, end=4, start=2, log_start=2, at_s=1.1, name="r"),
    ],
    "a follower's own log is behind what it read in the bucket": [
        *(ONE, *SEEN, look(A, (0, "a1"), end=2, stable=0, at_s=1.4, name="r")),
    ],
    "a life of a topic that is over": [
        ended(1, OK, A1, Part(OLD, ("b1",), 0), group=1),
        *(*all_of(A, (0, "a1")), *all_of(NEW), GroupLook("x", 1, 9.0, 9.1, True)),
    ],
    "nobody knows in which life": [ended(1, OK, Part(SOME, ("b1",), 0)), look(OLD, (0, "b1"), name="r"), *all_of(NEW)],
    "a life that lost its disk": [
        *(ended(1, OK, Part(NEW, ("b1",), 0)), Loss(B, 7, 5.0, "disk")),
        *all_of(NEW),
    ],
    "not asked for before": [ended(1, OK, A1, group=1), *all_of(A, (0, "a1")), GroupLook("x", -1, 1.2, 1.3)],
}

ANOMALIES: dict[str, tuple[str, list[Any]]] = {
    "an aborted record is shown": ("txn-aborted-seen", [ended(1, FAIL, A1), *all_of(A, (0, "a1"))]),
    "shown before anybody asked for a commit": ("txn-dirty", [ONE, *SEEN, look(A, (0, "a1"), at_s=1.1, name="r")]),
    "nobody sent it": ("txn-invented", [*all_of(A, (0, "a1"))]),
    "twice": ("txn-twice", [ONE, *all_of(A, (0, "a1"), (3, "a1")), *all_of(B, (0, "b1"))]),
    "two at one offset": ("txn-two-at-one-offset", [ONE, *SEEN, look(A, (0, "b1"), at_s=10.0, name="r")]),
    "missed by one reader": ("txn-missed", [ONE, *SEEN, look(A, name="r")]),
    "committed, not there": ("txn-lost", [ONE, *NOT_SEEN]),
    "half of an unanswered one": ("txn-fractured", [ended(1, INFO, A1, B1), *SEEN[:2], *NOT_SEEN[2:]]),
    "acknowledged, not there": ("txn-unseen", [ended(1, FAIL, A1), *all_of(A)]),
    "the later one first": (
        "txn-order",
        [ended(1, OK, Part(A, ("a1",), 2)), ended(2, OK, Part(A, ("a2",), 0)), *all_of(A, (0, "a2"), (2, "a1"))],
    ),
    "above the last stable offset": (
        "txn-above-stable",
        [ONE, *SEEN, look(A, (0, "a1"), end=1, stable=0, at_s=1.1, name="r")],
    ),
    "it falls": (
        "txn-stable-regression",
        [ONE, *SEEN, look(A, (0, "a1"), end=1, stable=1, at_s=11.0, name="r")],
    ),
    "a new topic shows what the old one acknowledged": (
        "txn-of-another-topic",
        [ended(1, OK, A1, Part(OLD, ("b1",), 0)), *all_of(A, (0, "a1")), look(NEW, (0, "b1"), name="r")],
    ),
    "the last life lacks what it acknowledged": ("txn-lost", [ended(1, OK, Part(NEW, ("b1",), 0)), *all_of(NEW)]),
    "begun before a restore, committed after it": (
        "txn-across-restore",
        [ended(1, OK, A1), Loss(("__transaction_state", 0), 0, 1.2, ALL_MACHINES), *all_of(A, (0, "a1"))],
    ),
    "copied before a loss, not shown after it": (
        "txn-copied-lost",
        [ended(1, OK, A1), *(Loss(place, 1, 3.0, "disk") for place in (A, ("__transaction_state", 0))), *all_of(A)],
    ),
    "it passes what is open": (
        "txn-stable-passed",
        [ended(1, OK, Part(A, ("a1",), 3)), look(A, end=4, at_s=1.1, name="r", stable=4)],
    ),
    "it passes the rest of what was deleted": (
        "txn-stable-passed",
        [
            *(Delete(A, 2, 1.05, 1.06, OK), ended(1, OK, Part(A, ("a1", "a2"), 1))),
            look(A, stable=4, end=4, start=2, log_start=2, at_s=1.1, name="r"),
        ],
    ),
    "it stays below the log start": (
        "txn-stable-below-start",
        [CUT, ONE, look(A, stable=1, end=1, start=2, log_start=2, at_s=2.7, name="r")],
    ),
    "the log starts where nobody asked for": (
        "txn-start-ahead",
        [CUT, ONE, look(A, start=3, log_start=3, at_s=2.7, name="r"), *SEEN[2:]],
    ),
    "half of it is gone, not by the deletion": (
        "txn-lost",
        [
            *(CUT, ended(1, OK, Part(A, ("a1", "a2"), 2), B1)),
            *(look(A, (3, "a2"), log_start=2, is_committed=c) for c in (True, False)),
            *all_of(B, (0, "b1")),
        ],
    ),
    "the offset of an aborted one": (
        "txn-offset-invented",
        [ended(1, FAIL, A1, group=1), look(A), look(A, (0, "a1"), is_committed=False), GroupLook("x", 1, 9.0, 9.1)],
    ),
    "its offset is gone": (
        "txn-offset-back",
        [ended(1, OK, A1, group=1), *all_of(A, (0, "a1")), GroupLook("x", -1, 9.0, 9.1)],
    ),
    "an offset without its records": (
        "txn-offset-apart",
        [
            *(ended(1, INFO, A1, group=1), look(A), look(A, (0, "a1"), is_committed=False)),
            GroupLook("x", 1, 9.0, 9.1, True),
        ],
    ),
}


@pytest.mark.parametrize("events", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_is_promised_is_allowed(events: list[Any]) -> None:
    assert list(check_transactions(events)) == []


@pytest.mark.parametrize(("kind", "events"), ANOMALIES.values(), ids=ANOMALIES.keys())
def test_each_anomaly_is_found(kind: str, events: list[Any]) -> None:
    assert kind in {found for found, _ in check_transactions(events)}


def compacted(*events: Any) -> list[str]:
    """What is found where all values have one key."""
    return [kind for kind, _ in check_transactions(events, keys=1)]


def test_a_committed_record_supersedes_an_earlier_one_of_its_key() -> None:
    before = look(A, (0, "a1"), at_s=1.6, end=2, name="r")
    assert compacted(ended(1, OK, A1), before, ended(2, OK, A2), *all_of(A, (2, "a2"))) == []


@pytest.mark.parametrize(("outcome", "found"), [(OK, []), (FAIL, ["txn-missed"])])
def test_a_committed_record_that_nobody_saw_supersedes_too(outcome: Outcome, found: list[str]) -> None:
    """A deletion took it before anybody read it."""
    before = look(A, (0, "a1"), at_s=2.1, end=2, name="r")
    after = look(A, at_s=2.4, end=2, name="q")
    newer = ended(2, outcome, A2, at_s=1.2)
    deletion = Delete(A, 3, 2.5, 2.6, OK)
    ends = (look(A, start=3, log_start=3, is_committed=c) for c in (True, False))
    assert compacted(ended(1, OK, A1), before, newer, after, deletion, *ends) == found


def test_an_aborted_record_supersedes_nothing() -> None:
    """Nothing that is committed is left of the key."""
    before = look(A, (0, "a1"), at_s=1.6, end=2, name="r")
    found = compacted(ended(1, OK, A1), before, ended(2, FAIL, A2), *all_of(A))
    assert set(found) == {"txn-missed", "txn-unseen", "txn-lost"}
