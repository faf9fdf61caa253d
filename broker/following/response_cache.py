"""Long answers about the cluster, encoded, for whoever asks the same next.

Owns the bodies of answers by the question. Always true: all that is kept was made at one stamp, and goes when something
asks at another one; no more than `BYTES_MAX` is kept. Must not know what a stamp counts, nor what questions and answers
say: who asks names everything in the question that the answer depends on, but for the stamp.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

BYTES_MIN: Final = 4 << 10
"""Of an answer that is kept. A shorter one is made anew in about 0.2 ms (100 partitions)."""
BYTES_MAX: Final = 8 << 20
"""Of all that is kept: 190 000 partitions of three replicas, 42 bytes each."""
ANSWERS_MAX: Final = 16
"""Each listener, version and flag makes an answer of its own; a cluster's clients have a few of these."""


class ResponseCache:
    """One broker's."""

    def __init__(self, bytes_max: int = BYTES_MAX, answers_max: int = ANSWERS_MAX) -> None:
        self._bytes_max = bytes_max
        self._answers_max = answers_max
        self._stamp: Hashable = None
        self._bodies: dict[Hashable, bytes] = {}  # the one that was asked for last comes last
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def kept_bytes(self) -> int:
        """Of all bodies together."""
        return self._bytes

    def get(self, stamp: Hashable, question: Hashable) -> bytes | None:
        """The body, when one was kept at this stamp; lets go of what was kept at another one."""
        if stamp != self._stamp:
            self._bodies.clear()
            self._bytes = 0
            self._stamp = stamp
        body = self._bodies.pop(question, None)
        if body is not None:
            self._bodies[question] = body
        return body

    def keep(self, stamp: Hashable, question: Hashable, body: bytes) -> None:
        """Unless it is too short, or longer than all that may be kept; those not asked for longest go instead."""
        if not BYTES_MIN <= len(body) <= self._bytes_max:
            return
        self.get(stamp, None)
        self._bytes += len(body) - len(self._bodies.pop(question, b""))
        self._bodies[question] = body
        while self._bytes > self._bytes_max or len(self._bodies) > self._answers_max:
            self._bytes -= len(self._bodies.pop(next(iter(self._bodies))))
