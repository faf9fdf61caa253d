"""How long producers have asked this broker for nothing.

Owns when their requests were seen to have become more. Always true: what it tells is never too long, and too short by
no more than the time since somebody asked last. Must not know who asks, nor what a request holds.
"""

from __future__ import annotations


class ProduceIdle:
    """Of one broker, since its start."""

    __slots__ = ("_produce_requests", "_since_s")

    def __init__(self) -> None:
        self._produce_requests = -1
        self._since_s = 0.0

    def ms(self, produce_requests: int, now_s: float) -> int:
        """Milliseconds without a request of a producer, of whom there were so many in all. `now_s` never goes back."""
        if produce_requests != self._produce_requests:
            self._produce_requests, self._since_s = produce_requests, now_s
        return int((now_s - self._since_s) * 1000)
