"""When the root of a partition is looked at again, and when it is looked at no more.

Owns these times. Always true: what somebody waits for is looked at soonest; the more roots there are to look at, the
longer each waits, so that the bucket gets `LOOKS_PER_S` requests a second for them, until none waits longer than an
idle one. Pure.
"""

from __future__ import annotations

from typing import Final

SOON_S: Final = 5.0
"""Of a partition that somebody reads."""
SELDOM_S: Final = 30.0
"""Of one that was read lately."""
USED_S: Final = 10.0  # so long it counts as being read
KEPT_S: Final = 300.0
"""Nobody asked for so long: it is looked at when somebody does."""
LOOKS_PER_S: Final = 100  # conditional GETs; $3.50 a day at S3's list price


def next_look_s(idle_s: float, count: int, *, is_waited_for: bool) -> float | None:
    """In how many seconds; None: no more. `idle_s`: since somebody asked last; `count`: how many are looked at."""
    if not is_waited_for and idle_s >= KEPT_S:
        return None
    if is_waited_for or idle_s < USED_S:
        return min(max(SOON_S, count / LOOKS_PER_S), SELDOM_S)
    return SELDOM_S
