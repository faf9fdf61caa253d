"""What the loops' output may show at read_committed: each input record once, in order, of whole committed transactions.

Always true: what was acknowledged to the input's writer is expected, whatever the loops were told; every problem has
one of `COPY_KINDS`. Must not know clients.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from tests.campaign.books import PAUSE_S, Book, Pause, value_of

COPY_KINDS = ("lost", "doubled", "reordered", "changed", "aborted", "torn")
"""Beside those of the books: a record of a transaction that was to be aborted, and a transaction of which a
part is missing."""


class Copies:
    """One reader's way through one output topic from its first offsets; `books` are of the input, by partition."""

    def __init__(self, topic: str, books: Sequence[Book], reader: str, value_bytes: int) -> None:
        self._topic, self._books, self._reader, self._value_bytes = topic, books, reader, value_bytes
        self._problems = books[0].problems
        self._next = [0] * len(books)
        self._skipped: list[set[int]] = [set() for _ in books]
        self._offset = [-1] * len(books)
        self._heard = [0.0] * len(books)
        self.pauses: list[Pause] = []
        self.records = 0
        self.transactions: Counter[str] = Counter()
        """Records seen, by label."""
        self._counts: dict[str, int] = {}

    @property
    def have_all(self) -> bool:
        """Of what was sent so far."""
        return self._next == [book.sent for book in self._books] and not any(self._skipped)

    @property
    def position(self) -> list[int]:
        """The number that each partition shows next."""
        return list(self._next)

    def saw(self, partition: int, offset: int, value: bytes) -> None:
        note = self._problems.note
        fate, count, label, copied = value.split(b" ", 3)
        number = int(copied[: copied.index(b" ")])
        name = label.decode()
        where = f"{self._topic}-{partition}, {self._reader}: number {number} of {name} at offset {offset}"
        self.records += 1
        self._note_pause(partition)
        if offset <= self._offset[partition]:
            note("reordered", f"{where} after offset {self._offset[partition]}")
        self._offset[partition] = offset
        if fate != b"c":
            note("aborted", f"{where} was in a transaction that was to be aborted")
            return
        self.transactions[name] += 1
        self._counts[name] = int(count)
        if copied != value_of(number, self._value_bytes):
            note("changed", f"{where} has other bytes")
        if number >= self._books[partition].sent:
            note("changed", f"{where} was never sent")
            return
        self._saw_number(partition, number, where)

    def _saw_number(self, partition: int, number: int, where: str) -> None:
        due, skipped = self._next[partition], self._skipped[partition]
        if number >= due:
            skipped.update(range(due, number))
            self._next[partition] = number + 1
        elif number in skipped:
            skipped.discard(number)
            self._problems.note("reordered", f"{where} after {due - 1}")
        else:
            self._problems.note("doubled", f"{where} was there before")

    def _note_pause(self, partition: int) -> None:
        now, heard = time.monotonic(), self._heard[partition]
        self._heard[partition] = now
        if heard and now - heard >= PAUSE_S:
            self.pauses.append(Pause(f"{self._topic}-{partition}", heard, now))

    def end(self) -> None:
        """The reader is at the end of the log: everything must have been seen."""
        note = self._problems.note
        for partition, book in enumerate(self._books):
            for number in (*sorted(self._skipped[partition]), *range(self._next[partition], book.sent)):
                if book.offsets[number] >= 0:
                    at = book.offsets[number]
                    note("lost", f"{self._topic}-{partition}, {self._reader}: number {number}, input offset {at}")
        for label, seen in self.transactions.items():
            if seen != self._counts[label]:
                note("torn", f"{self._topic}, {self._reader}: {label} shows {seen} of {self._counts[label]} records")
