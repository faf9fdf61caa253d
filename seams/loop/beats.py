"""Common times for periodic checks, so that an idle process wakes once for all of them.

A beat is the phase plus a whole multiple of its period. If a shorter period divides a longer one, the beats of the
longer period are thus also beats of the shorter. Without beats, each idle broker of a cluster of three woke 30 times a
second (bench/RESULTS.md). The phase differs between processes, so that brokers of one machine, or of one simulation, do
not check at the same time.
"""

from __future__ import annotations

import asyncio
from math import floor
from typing import Final

import msgspec

BEAT_S: Final = 0.5
"""The period of which others are multiples."""


class Beats(msgspec.Struct, frozen=True):
    """`phase_s`: the offset of the beats in the loop's time, less than `BEAT_S`."""

    phase_s: float = 0.0

    def after(self, now_s: float, period_s: float = BEAT_S) -> float:
        """The loop's time of the next beat."""
        return (floor((now_s - self.phase_s) / period_s + _CLOSE) + 1) * period_s + self.phase_s

    def until(self, deadline_s: float, now_s: float) -> float:
        """The last beat at or before `deadline_s`; `deadline_s` itself if there is no beat before it."""
        last_s = floor((deadline_s - self.phase_s) / BEAT_S + _CLOSE) * BEAT_S + self.phase_s
        return last_s if last_s > now_s else deadline_s

    async def wait(self, period_s: float = BEAT_S) -> None:
        """Sleep until the next beat."""
        now_s = asyncio.get_running_loop().time()
        await asyncio.sleep(self.after(now_s, period_s) - now_s)


_CLOSE: Final = 1e-6
"""Tolerance, as a part of a period: a task that wakes slightly before a beat, because its clock rounds, waits for the
next beat."""
