"""Who was sent to a replica and came back for the same offset: a replica that does not serve it (KIP-392).

Owns that memory, of one connection. Always true: who comes back within `STAY_S` is served by the leader for as long,
then sent again: a replica whose broker was killed a moment ago, or that does not reach the bucket, costs a reader one
way, and never keeps it where it is (Kafka's leader sends it there again and again). It is bounded; what is forgotten is
sent once more. Pure. Must not know replicas, nor what a client reads.
"""

from __future__ import annotations

from typing import Final, NamedTuple

STAY_S: Final = 10.0
PLACES_MAX: Final = 1_000

Place = tuple[str, int]


class _Sent(NamedTuple):
    offset: int
    at_s: float
    stays: bool  # it came back: served here since


class RedirectMemory:
    """Of one connection. Times are seconds of one clock that never goes back."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: dict[Place, _Sent] = {}  # the oldest first

    def may_go(self, place: Place, offset: int, now_s: float) -> bool:
        """Whether to send a reader of `place` away who wants `offset`; if so, it is."""
        known = self._sent.pop(place, None)
        is_recent = known is not None and now_s - known.at_s < STAY_S
        if known is not None and is_recent and (known.stays or known.offset == offset):
            self._sent[place] = known if known.stays else _Sent(offset, now_s, True)
            return False
        self._sent[place] = _Sent(offset, now_s, False)
        if len(self._sent) > PLACES_MAX:
            del self._sent[next(iter(self._sent))]
        return True
