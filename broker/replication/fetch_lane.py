"""Which replicas are asked for together, and at which pace: those that keep up, or those that are behind.

Owns who belongs in which of the two lanes to one leader, and the pace of the second. Always true: who is in sync is in
the first lane from its next answer on, who lacks what is committed and is not in sync in the second; so what producers
wait for never waits for the bytes of a replica that catches up, nor, for most of a minute, for both machines'
turns; where nobody produces at any leader, and who is behind for long, is copied as fast as it goes. Pure. Must not
know sessions, connections, logs, nor who leads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.replication.fetch_session_handler import Key, Limits
from broker.replication.follower import FetchPosition

EASY_BYTES: Final = 256 << 10
"""Of an answer, at first: under a millisecond of work for each of both brokers."""
_PAUSE_S_MAX: Final = 0.005
_EASY_S: Final = 10.0  # until answers are twice as long, and pauses half
_STEPS: Final = 5  # until answers are as long as any, without a pause: or it might never be in sync
_QUIET_MS: Final = 1_000  # without a producer's request anywhere: then nobody is left room
_JOINING_MS: Final = 20  # how long a question of those that keep up is parked while others may join them


class FetchLane:
    """One of the two, of one leader. `is_in_sync`: as the image has it. `quiet_ms` all lanes of a broker share: how
    long no producer has asked the leader, by lane that asks; negative where that is not known. Producers of one leader
    wait for replicas on others, and for this one once it is in sync. `now_s` of each call never goes back."""

    def __init__(self, is_in_sync: Callable[[Key], bool], quiet_ms: dict[FetchLane, int], *, is_behind: bool) -> None:
        self._is_in_sync = is_in_sync
        self._quiet_ms = quiet_ms
        self.is_behind = is_behind
        self._began_s: float | None = None

    def keeps(self, key: Key, at: FetchPosition, high_watermark: int) -> bool:
        """Whether a replica stays in this lane that asks for what is at `at` after an answer with this high watermark
        of its leader's."""
        if self.is_behind:
            return not self._is_in_sync(key)
        return at.offset >= high_watermark or self._is_in_sync(key)

    def rest(self) -> None:
        """There is nobody to ask for: who comes next begins easily again."""
        self._began_s = None
        self._quiet_ms.pop(self, None)

    def heard(self, quiet_ms: int) -> None:
        """For so long no producer has asked the leader for anything. Negative: it does not say."""
        self._quiet_ms[self] = quiet_ms

    def limits(self, of: Limits, now_s: float, *, is_only: bool) -> Limits:
        """Those of the next question. `is_only`: nobody is in the other lane."""
        self._quiet_ms.setdefault(self, -1)
        if not self.is_behind:
            return of if is_only else of._replace(wait_ms=min(of.wait_ms, _JOINING_MS))
        if self._began_s is None:
            self._began_s = now_s
        bytes_max = min(of.bytes_max, EASY_BYTES << self._step(now_s))
        return of._replace(bytes_max=bytes_max, partition_bytes_max=min(of.partition_bytes_max, bytes_max))

    def pause_s(self, came: int, asked_s: float, now_s: float) -> float:
        """How long to leave both machines to others, after an answer of so many bytes to what was asked at `asked_s`:
        as long as that took. Not after a short one: who all but keeps up is to be in sync soon."""
        if not self.is_behind or 2 * came < EASY_BYTES:
            return 0.0
        step = self._step(now_s)
        return 0.0 if step == _STEPS else min(now_s - asked_s, _PAUSE_S_MAX) / (1 << step)

    def _step(self, now_s: float) -> int:
        if self._began_s is None:
            return 0
        if min(self._quiet_ms.values()) >= _QUIET_MS:
            return _STEPS
        return min(int((now_s - self._began_s) / _EASY_S), _STEPS)
