"""The two lanes to one leader, in-sync and catch-up, and the pace of the catch-up lane. Pure.

- The in-sync lane has the replicas in sync. The catch-up lane has the replicas that are not in sync and lack committed
  records. A replica changes its lane after its next response. In-sync fetches thus never queue behind catch-up bytes.
- Responses of the catch-up lane start at 256 KiB and double every 10 s, so they leave CPU to producers. After 50 s, or
  while no producer is active on any leader, catch-up has full speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.replication.fetch_session_handler import Key, Limits
from broker.replication.follower import FetchPosition

EASY_BYTES: Final = 256 << 10  # size of the first responses: under 1 ms of work for both brokers
_PAUSE_S_MAX: Final = 0.005
_EASY_S: Final = 10.0  # time until responses double and pauses halve
_STEPS: Final = 5  # doublings until full speed without pauses; at a slower pace a replica might never be in sync
_QUIET_MS: Final = 1_000  # time without any produce request after which catch-up has full speed
_JOINING_MS: Final = 20  # how long an in-sync fetch is parked while the other lane has replicas


class FetchLane:
    """One lane to one leader. `is_in_sync`: whether the image has the replica in sync. `quiet_ms`: time without a
    produce request at the leader, by lane; negative while unknown. All lanes of a broker share `quiet_ms`, because a
    producer of one leader may wait for replicas on other brokers. `now_s` never goes back between calls.
    """

    def __init__(self, is_in_sync: Callable[[Key], bool], quiet_ms: dict[FetchLane, int], *, is_behind: bool) -> None:
        self._is_in_sync = is_in_sync
        self._quiet_ms = quiet_ms
        self.is_behind = is_behind
        self._began_s: float | None = None

    def keeps(self, key: Key, at: FetchPosition, high_watermark: int) -> bool:
        """Whether a replica that fetches `at` next stays in this lane, after a response with this high watermark."""
        if self.is_behind:
            return not self._is_in_sync(key)
        return at.offset >= high_watermark or self._is_in_sync(key)

    def rest(self) -> None:
        """Reset the pace, because no replica is left in the lane. The next replica starts slowly again."""
        self._began_s = None
        self._quiet_ms.pop(self, None)

    def heard(self, quiet_ms: int) -> None:
        """Note the time since the leader's last produce request; a negative time is unknown."""
        self._quiet_ms[self] = quiet_ms

    def limits(self, of: Limits, now_s: float, *, is_only: bool) -> Limits:
        """Limits of the next fetch. `is_only`: the other lane is empty."""
        self._quiet_ms.setdefault(self, -1)
        if not self.is_behind:
            return of if is_only else of._replace(wait_ms=min(of.wait_ms, _JOINING_MS))
        if self._began_s is None:
            self._began_s = now_s
        bytes_max = min(of.bytes_max, EASY_BYTES << self._step(now_s))
        return of._replace(bytes_max=bytes_max, partition_bytes_max=min(of.partition_bytes_max, bytes_max))

    def pause_s(self, came: int, asked_s: float, now_s: float) -> float:
        """Pause after a response of `came` bytes to a fetch sent at `asked_s`, at most as long as that fetch took. It
        is 0 after a short response, so that a replica that nearly keeps up is in sync soon."""
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
