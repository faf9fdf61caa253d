"""Who wrote what, who was told what, who saw what: the books of one partition under load, exact to the record.

Always true: every number from 0 on is sent once, in order, by one producer; `problems` holds what no log may do, in
words. Memory does not grow with time: a record is forgotten once it was acknowledged and seen. One lock a partition,
because acknowledgements and sightings come from different threads. Must not know clients.
"""

from __future__ import annotations

import threading

PROBLEMS_MAX = 20


class Books:
    """Of one partition. Numbers are there in order, without a hole; `exactly_once`: and never again."""

    def __init__(self, name: str, exactly_once: bool) -> None:
        self.name = name
        self.exactly_once = exactly_once
        self.sent = 0
        self.acked = 0
        self.seen = 0
        self.duplicates = 0
        self.problems: list[str] = []
        self._next = 0  # number the reader expects
        self.position = 0  # offset the reader expects at least
        self._acked: dict[int, int] = {}  # number → offset, not seen yet
        self._seen: dict[int, int] = {}  # number → offset, not acknowledged yet
        self._lock = threading.Lock()

    def take_number(self) -> int:
        """The next number to send. One producer only."""
        self.sent += 1
        return self.sent - 1

    def acknowledged(self, number: int, offset: int) -> None:
        with self._lock:
            self.acked += 1
            at = self._seen.pop(number, None)
            if at is None:
                self._acked[number] = offset
            else:
                self._compare(number, offset, at)

    def saw(self, number: int, offset: int) -> None:
        """The reader met `number` at `offset`; it reads every offset in order."""
        with self._lock:
            if offset < self.position:
                self._note(f"offset {offset} was seen after {self.position - 1}")
            self.position = offset + 1
            self.seen += 1
            if not self._is_new(number, offset):
                return
            at = self._acked.pop(number, None)
            if at is None:
                self._seen[number] = offset
            else:
                self._compare(number, at, offset)

    def _compare(self, number: int, acknowledged: int, seen: int) -> None:
        # Without idempotence the first of two copies is seen first, and the last one may be the acknowledged one.
        if acknowledged != seen and self.exactly_once:
            self._note(f"number {number} was acknowledged at {acknowledged} and seen at {seen}")

    def _is_new(self, number: int, offset: int) -> bool:
        if number < self._next:
            self.duplicates += 1
            self._acked.pop(number, None)
            if self.exactly_once:
                self._note(f"number {number} is there again at offset {offset}")
            return False
        if number > self._next:
            self._note(f"numbers {self._next} to {number - 1} are missing before offset {offset}")
        self._next = number + 1
        return True

    def failed(self, number: int, reason: str) -> None:
        """The client gave a record up: nobody may, its patience is endless."""
        with self._lock:
            self._note(f"number {number} was given up: {reason}")

    def note(self, problem: str) -> None:
        with self._lock:
            self._note(problem)

    def unseen(self) -> list[str]:
        """After the last drain: acknowledged and never seen, or sent and never acknowledged."""
        with self._lock:
            found = [f"{self.name}: number {n}, acknowledged at {o}, was never seen" for n, o in self._acked.items()]
            if self.acked != self.sent:
                found.append(f"{self.name}: {self.sent - self.acked} of {self.sent} were never acknowledged")
            return found[:PROBLEMS_MAX]

    def _note(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"{self.name}: {problem}")
