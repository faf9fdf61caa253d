"""From a history to findings: the anomalies of docs/GUARANTEES.md that one broker can show.

Pure. Owns what counts as which anomaly, and which losses the promises allow (a lost disk above the remote end; the page
cache of `flush=os` over a power cut): such a loss excuses missing and repeated values, never two values at one offset.
Must not know brokers, seeds or faults.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tests.sim.checks.history import (
    CALM,
    Batch,
    Commit,
    Delete,
    Epoch,
    Event,
    Final,
    Loss,
    Note,
    Outcome,
    Place,
    Poll,
    Send,
)

COMMIT_LOSS_S = 15.0  # group offsets younger than a snapshot interval may go with the disk (G10)
BUCKET_AWAY = ("bucket outage", "credentials refused", "bucket read-only")  # no snapshot is written meanwhile


class Finding(NamedTuple):
    """One anomaly."""

    kind: str
    detail: str


@dataclass
class _Facts:
    """A history, sorted out."""

    sends: list[Send]
    polls: list[Poll]
    deletes: list[Delete]
    commits: list[Commit]
    losses: dict[Place, list[Loss]]
    epochs: list[Epoch]
    finals: list[Final]
    retained: frozenset[str]  # topics whose retention moves the log start by itself
    final_values: dict[Place, dict[int, str]]
    away: list[tuple[float, float]]  # from, to: the bucket took nothing
    several: bool  # brokers, of which one may lag behind another, and say so

    def too_young(self, done_s: float, stopped_s: float) -> bool:
        """Whether the bucket answered for no whole snapshot interval between a commit and the broker's end."""
        away_s = sum(max(min(end, stopped_s) - max(begin, done_s), 0.0) for begin, end in self.away)
        return stopped_s - done_s - away_s < COMMIT_LOSS_S

    def excused(self, place: Place, offset: int, by_s: float) -> bool:
        """Whether what lay at `offset` at `by_s` may have been lost since."""
        return any(loss.start <= offset and loss.at_s >= by_s for loss in self.losses[place])


def check(events: Iterable[Event], retained: Iterable[str] = (), *, several: bool = False) -> list[Finding]:
    """Every anomaly found, in a fixed order. `several`: what a log's ends may not do is asked of each broker alone."""
    facts = _sorted_out(list(events), frozenset(retained), several=several)
    return [finding for judge in _JUDGES for finding in judge(facts)]


def _sorted_out(events: list[Event], retained: frozenset[str], *, several: bool) -> _Facts:
    facts = _Facts([], [], [], [], defaultdict(list), [], [], retained, defaultdict(dict), [], several)
    kinds: dict[type, list] = {  # type: ignore[type-arg]
        Send: facts.sends,
        Poll: facts.polls,
        Delete: facts.deletes,
        Commit: facts.commits,
        Epoch: facts.epochs,
        Final: facts.finals,
    }
    away_since_s: float | None = None
    for event in events:
        if isinstance(event, Loss):
            facts.losses[event.place].append(event)
        elif isinstance(event, Note):
            if event.text in BUCKET_AWAY and away_since_s is None:
                away_since_s = event.at_s
            elif event.text == CALM and away_since_s is not None:
                facts.away.append((away_since_s, event.at_s))
                away_since_s = None
        elif type(event) in kinds:
            kinds[type(event)].append(event)
    for poll in facts.polls:
        if poll.consumer == "final":
            for batch in poll.batches:
                facts.final_values[poll.place].update(enumerate(batch.values, batch.base))
    return facts


def _one_value_an_offset(facts: _Facts) -> Iterable[Finding]:
    """inconsistent-offsets (G2), tier-divergence (G6), duplicate (G4), invented (G3), aborted (G1a)."""
    at: dict[tuple[Place, int], str] = {}
    batches: dict[tuple[Place, int], tuple[Batch, float]] = {}
    first_seen: dict[str, tuple[Place, int, float]] = {}
    known = {value: send for send in facts.sends for value in send.values}

    def see(place: Place, offset: int, value: str, done_s: float) -> Iterable[Finding]:
        before = at.setdefault((place, offset), value)
        if before != value:
            yield Finding("inconsistent-offsets", f"{place} {offset}: {before} and then {value} at {done_s:.3f} s")
        found = first_seen.setdefault(value, (place, offset, done_s))
        if found[:2] != (place, offset) and not (facts.excused(*found) or facts.excused(place, offset, done_s)):
            yield Finding("duplicate", f"{value} at {found[:2]} and at {place} {offset}")

    seen: list[Poll | Send] = [*facts.polls, *facts.sends]
    for event in sorted(seen, key=lambda event: event.done_s):
        if isinstance(event, Send):
            if event.outcome is Outcome.OK and event.offset >= 0:
                for offset, value in enumerate(event.values, event.offset):
                    yield from see(event.place, offset, value, event.done_s)
            continue
        for batch in event.batches:
            old, seen_s = batches.setdefault((event.place, batch.base), (batch, event.done_s))
            if old is batch and seen_s != event.done_s:
                continue
            if old != batch:
                # A lost tail is closed by control batches: no record of theirs, and only where a loss is allowed.
                if batch.values or not facts.excused(event.place, batch.base, seen_s):
                    yield Finding("tier-divergence", f"{event.place} {batch.base}: {old} and then {batch}")
                batches[event.place, batch.base] = (batch, event.done_s)
            for offset, value in enumerate(batch.values, batch.base):
                send = known.get(value)
                if send is None:
                    yield Finding("invented", f"{event.place} {offset}: {value} was never sent")
                elif send.place != event.place:
                    yield Finding("invented", f"{event.place} {offset}: {value} was sent to {send.place}")
                elif send.outcome is Outcome.FAIL:
                    yield Finding("aborted-read", f"{event.place} {offset}: {value} was refused")
                yield from see(event.place, offset, value, event.done_s)


def _nothing_lost(facts: _Facts) -> Iterable[Finding]:
    """lost-write, unseen (G1, G13)."""
    finals = {final.place: final for final in facts.finals}
    places: dict[Place, dict[str, int]] = {}
    for send in facts.sends:
        final = finals.get(send.place)
        if send.outcome is not Outcome.OK or final is None:
            continue
        if send.place not in places:
            places[send.place] = {value: offset for offset, value in facts.final_values[send.place].items()}
        found = places[send.place]
        if send.offset < 0:
            missing = [value for value in send.values if value not in found]
            if missing and final.start == 0 and not facts.losses[send.place]:
                yield Finding("lost-write", f"{send.place}: {missing} acked (offset not told), not there at the end")
            continue
        for offset, value in enumerate(send.values, send.offset):
            if offset < final.start or value in found or facts.excused(send.place, offset, send.done_s):
                continue
            kind = "lost-write" if offset < final.end else "unseen"
            there = facts.final_values[send.place].get(offset)
            yield Finding(
                kind,
                f"{send.place} {offset}: {value}, acked at {send.done_s:.3f} s by {send.node}, is not there at the end "
                f"([{final.start}, {final.end}) was read; there: {there}; in sync were {send.in_sync})",
            )


def _one_log(facts: _Facts) -> Iterable[Finding]:
    """lost-read: whatever anybody polled, of whatever broker, lies at its place in the log that was read at the end
    (G5: what is visible is committed)."""
    finals = {final.place: final for final in facts.finals}
    told: set[tuple[Place, int]] = set()
    for poll in facts.polls:
        final = finals.get(poll.place)
        if final is None:
            continue
        there = facts.final_values[poll.place]
        for batch in poll.batches:
            for offset, value in enumerate(batch.values, batch.base):
                at = (poll.place, offset)
                if offset < final.start or there.get(offset) == value or at in told or poll.done_s > final.done_s:
                    continue
                if facts.excused(poll.place, offset, poll.done_s):
                    continue
                told.add(at)
                yield Finding(
                    "lost-read",
                    f"{poll.place} {offset}: {poll.consumer} read {value} at {poll.done_s:.3f} s from {poll.node}; in "
                    f"the end [{final.start}, {final.end}) has {there.get(offset)} there",
                )


def _in_order(facts: _Facts) -> Iterable[Finding]:
    """nonmonotonic-send: values of one session out of order (G3)."""
    number = {value: (send.session, send.number, i) for send in facts.sends for i, value in enumerate(send.values)}
    for place, values in facts.final_values.items():
        last: dict[str, tuple[int, int]] = {}
        for offset in sorted(values):
            if values[offset] not in number:
                continue
            session, *rank = number[values[offset]]
            if tuple(rank) <= last.get(session, (-1, -1)):
                yield Finding("nonmonotonic-send", f"{place} {offset}: {values[offset]} after {last[session]}")
            last[session] = (rank[0], rank[1])


def _polls_tile(facts: _Facts) -> Iterable[Finding]:
    """seam-gap, seam-overlap (G6), and nothing at or above the high watermark (G5)."""
    for poll in facts.polls:
        at = poll.offset
        for i, batch in enumerate(poll.batches):
            if batch.base > at:
                yield Finding("seam-gap", f"{poll.consumer} {poll.place}: wanted {at}, got {batch.base}")
            elif (batch.base < at and i > 0) or batch.end <= at:
                yield Finding(
                    "seam-overlap", f"{poll.consumer} {poll.place}: wanted {at}, got {batch.base}..{batch.end}"
                )
            at = batch.end
        if poll.batches and at > poll.high_watermark:
            yield Finding("above-watermark", f"{poll.place}: {at} served, high watermark {poll.high_watermark}")


class _HighestBefore:
    """The greatest value known to everybody at a moment: of all operations that were done before another began."""

    def __init__(self) -> None:
        self._done: list[tuple[float, int]] = []
        self._best: list[int] = []

    def add(self, done_s: float, value: int) -> None:
        assert not self._done or self._done[-1][0] <= done_s
        self._done.append((done_s, value))
        self._best.append(max(value, self._best[-1]) if self._best else value)

    def before(self, at_s: float) -> int:
        found = bisect_left(self._done, (at_s, -1))
        return self._best[found - 1] if found else -1


def _never_back(facts: _Facts) -> Iterable[Finding]:
    """watermark-regression (G5), log-start-regression, resurrected-offset, premature-delete (G9)."""
    marks: dict[tuple[Place, str], _HighestBefore] = defaultdict(_HighestBefore)
    starts: dict[tuple[Place, str], _HighestBefore] = defaultdict(_HighestBefore)
    asked: dict[Place, list[Delete]] = defaultdict(list)
    for delete in facts.deletes:
        asked[delete.place].append(delete)
    done: list[Poll | Delete] = [*facts.polls, *(d for d in facts.deletes if d.outcome is Outcome.OK)]
    for event in sorted(done, key=lambda event: event.done_s):
        place = event.place
        if isinstance(event, Delete):
            if not facts.several:
                starts[place, ""].add(event.done_s, event.offset)
            continue
        who = (place, event.node if facts.several else "")
        mark, start = marks[who].before(event.invoked_s), starts[who].before(event.invoked_s)
        if event.high_watermark < mark:
            yield Finding(
                "watermark-regression", f"{place}: {event.high_watermark} at {event.done_s:.3f} s after {mark}"
            )
        if event.log_start < start:
            yield Finding("log-start-regression", f"{place}: {event.log_start} at {event.done_s:.3f} s after {start}")
        if event.batches and event.batches[0].end <= start:
            yield Finding("resurrected-offset", f"{place}: {event.batches[0].base} served below log start {start}")
        allowed = max((d.offset for d in asked[place] if d.invoked_s < event.done_s), default=0)
        if event.log_start > allowed and place[0] not in facts.retained:
            yield Finding("premature-delete", f"{place}: log start {event.log_start}, deletion asked below {allowed}")
        marks[who].add(event.done_s, event.high_watermark)
        starts[who].add(event.done_s, event.log_start)


def _offsets_kept(facts: _Facts) -> Iterable[Finding]:
    """offset-regression: a committed group offset went back, or was never committed (G10)."""
    by_group: dict[tuple[str, Place], list[Commit]] = defaultdict(list)
    for commit in facts.commits:
        by_group[commit.group, commit.place].append(commit)
    lost = sorted({(_stopped_s(loss), loss.at_s) for found in facts.losses.values() for loss in found})
    for (group, place), commits in by_group.items():
        for read in commits:
            if not read.read:
                continue
            floor = -1
            for commit in commits:
                if commit.read or commit.outcome is not Outcome.OK or commit.done_s > read.invoked_s:
                    continue
                if any(
                    facts.too_young(commit.done_s, stopped_s) and commit.done_s <= at_s + 1 for stopped_s, at_s in lost
                ):
                    continue
                floor = max(floor, commit.offset)
            made = {commit.offset for commit in commits if not commit.read}
            if read.offset < floor:
                yield Finding(
                    "offset-regression", f"{group} {place}: {read.offset} at {read.done_s:.3f} s, committed was {floor}"
                )
            elif read.offset >= 0 and read.offset not in made:
                yield Finding("offset-regression", f"{group} {place}: {read.offset} was never committed")


def _stopped_s(loss: Loss) -> float:
    return loss.at_s if loss.stopped_s < 0 else loss.stopped_s


def _no_zombies(facts: _Facts) -> Iterable[Finding]:
    """zombie-visible: an answer of a replaced broker to a request made after its replacement served (G8)."""
    answered: list[Send | Poll] = [*facts.sends, *facts.polls]
    for epoch in facts.epochs:
        for event in answered:
            if isinstance(event, Send) and event.outcome is not Outcome.OK:
                continue
            if event.node == epoch.replaces and event.invoked_s > epoch.at_s:
                yield Finding("zombie-visible", f"{epoch.replaces} answered {event} after {epoch.node} served")


_JUDGES: tuple[Callable[[_Facts], Iterable[Finding]], ...] = (
    _one_value_an_offset,
    _nothing_lost,
    _one_log,
    _in_order,
    _polls_tile,
    _never_back,
    _offsets_kept,
    _no_zombies,
)
