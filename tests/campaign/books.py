"""What was sent and acknowledged where, and what readers saw of it: exact to the record.

Always true: each number from 0 on is sent once and in order to its partition; every problem has one of `KINDS`, is
counted, and the first few are told in words. One lock a partition, for acknowledgements and readers come from several
threads. Must not know clients.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

KINDS = ("lost", "doubled", "reordered", "changed", "moved")
TOLD_MAX = 6  # of a kind
UNKNOWN, GIVEN_UP = -1, -2
PAUSE_S = 0.25
"""A gap between two acknowledgements of a partition from here on is a pause: the load's own gaps are 20 to 50 ms."""
PADDING = bytes(range(256)) * 8


def value_of(number: int, length: int) -> bytes:
    """A record's value: its number, then bytes that depend on it."""
    head = b"%d " % number
    return (head + PADDING[number % 256 : number % 256 + length])[: max(length, len(head))]


@dataclass
class Problems:
    """Of all books together."""

    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def note(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= TOLD_MAX:
            self.told.append(f"{kind}: {text}")


@dataclass(frozen=True)
class Pause:
    """Nothing of a partition was acknowledged from `began` to `ended`, monotonic seconds."""

    place: str
    began: float
    ended: float


class Book:
    """Of one partition. `is_patient`: its writer's patience is endless, so whatever it gives up was refused."""

    def __init__(self, topic: str, partition: int, problems: Problems, *, is_patient: bool = True) -> None:
        self.is_patient = is_patient
        self.topic, self.partition, self.name = topic, partition, f"{topic}-{partition}"
        self.offsets = array("q")  # by number; UNKNOWN until it is acknowledged, GIVEN_UP when the client said so
        self.problems = problems
        self.acked = 0
        self.given_up = 0
        self.pauses: list[Pause] = []
        self._heard = 0.0
        self._lock = threading.Lock()

    @property
    def sent(self) -> int:
        return len(self.offsets)

    @property
    def unanswered(self) -> int:
        return self.sent - self.acked - self.given_up

    def take_number(self) -> int:
        """The next number, when the client took its record. One producer only."""
        with self._lock:
            self.offsets.append(UNKNOWN)
            return len(self.offsets) - 1

    def acknowledged(self, number: int, offset: int) -> None:
        now = time.monotonic()
        with self._lock:
            if self.offsets[number] >= 0:
                self.problems.note("doubled", f"{self.name}: number {number} was acknowledged twice")
            self.offsets[number] = offset
            self.acked += 1
            if self._heard and now - self._heard >= PAUSE_S:
                self.pauses.append(Pause(self.name, self._heard, now))
            self._heard = now

    def gave_up(self, number: int, reason: str) -> None:
        """The client told its user an error: the record may be there or not. Patience is meant to be endless."""
        with self._lock:
            self.offsets[number] = GIVEN_UP
            self.given_up += 1
            if self.is_patient:
                self.problems.note("given up", f"{self.name}: number {number}: {reason}")


class Reading:
    """One reader's way through one partition from its first offset, each offset once and in order."""

    def __init__(self, book: Book, reader: str) -> None:
        self.book, self.reader = book, reader
        self.position = 0
        self.records = 0
        self._next = 0
        self._skipped: set[int] = set()

    def saw(self, number: int, offset: int, is_right: bool) -> None:
        """`is_right`: the value has exactly the bytes that were sent as `number`."""
        book, note = self.book, self.book.problems.note
        where = f"{book.name}, {self.reader}: number {number} at offset {offset}"
        self.records += 1
        if offset < self.position:
            note("reordered", f"{where} after {self.position - 1}")
        self.position = offset + 1
        if not is_right:
            note("changed", f"{where} has other bytes")
        if number >= book.sent:
            note("changed", f"{where} was never sent")
            return
        at = book.offsets[number]
        if at >= 0 and at != offset:
            note("moved", f"{where} was acknowledged at {at}")
        if number == self._next:
            self._next += 1
        elif number > self._next:
            self._skipped.update(range(self._next, number))
            self._next = number + 1
        elif number in self._skipped:
            self._skipped.discard(number)
            note("reordered", f"{where} after {self._next - 1}")
        else:
            note("doubled", f"{where} was there before")

    def end(self) -> None:
        """It is at the end of the log, and all answers are in: what was acknowledged must have been seen."""
        book = self.book
        missing = [*sorted(self._skipped), *range(self._next, book.sent)]
        for number in missing:
            if book.offsets[number] >= 0:
                at = book.offsets[number]
                book.problems.note("lost", f"{book.name}, {self.reader}: number {number}, acknowledged at {at}")


def percentile(values: Sequence[float], share: float) -> float:
    """0 of nothing."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def longest_by_harm(pauses: Sequence[Pause], began: Sequence[float]) -> list[float]:
    """Seconds of the longest pause within each harm's time, which lasts until the next one begins; `began` ascends. A
    pause belongs to where it began, but for what the load's own gaps hide."""
    found = [0.0] * len(began)
    for pause in pauses:
        index = bisect_right(began, pause.began + 2 * PAUSE_S) - 1
        if index >= 0:
            found[index] = max(found[index], pause.ended - pause.began)
    return found


def table(rows: Mapping[str, Sequence[float]]) -> list[str]:
    """Kind → longest pauses of its faults, a line each."""
    lines = [f"  {'fault':28} {'pauses':>7} {'p50 s':>7} {'p99 s':>7} {'max s':>7}"]
    for kind, found in sorted(rows.items()):
        shown = (percentile(found, 0.5), percentile(found, 0.99), max(found, default=0.0))
        lines.append(f"  {kind:28} {len(found):>7} " + " ".join(f"{seconds:7.2f}" for seconds in shown))
    return lines
