"""Two tiers, drawn over one another on a terminal; a line now and then elsewhere; and what the seconds were spent on.

Owns the demos' stdout until their tables. Always true: where nobody looks (no terminal) nothing is overwritten, and a
line comes every three seconds at most; the seconds of the acts add up to the whole. Must not know what the acts are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from thermocline.demo.broker import DemoBroker

TICK_S = 0.25


@dataclass
class Picture:
    """Two tiers, drawn over one another on a terminal, a line now and then elsewhere."""

    clock: Callable[[], float] = time.monotonic
    acts: list[tuple[str, float]] = field(default_factory=list)  # name, seconds
    drawn: float = 0.0
    live: bool = field(default_factory=sys.stdout.isatty)

    def __post_init__(self) -> None:
        self.started = self._act_began = self.clock()

    def act(self, name: str) -> None:
        """What was done since the last act, or since the start, was this."""
        now = self.clock()
        self.acts.append((name, now - self._act_began))
        self._act_began = now

    def seconds(self) -> str:
        """Each act with its seconds, and their sum, the whole demo."""
        rows = [*self.acts, ("all of it", sum(seconds for _, seconds in self.acts))]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {seconds:6.1f} s" for name, seconds in rows)

    def say(self, text: str) -> None:
        self._clear()
        print(f"[{self.clock() - self.started:5.1f} s] {text}", flush=True)

    def draw(self, broker: DemoBroker, what: str) -> None:
        """What a broker's disk holds, and what the bucket."""

        def tiers() -> tuple[int, int]:
            partitions = broker.status()
            return sum(one["local_bytes"] for one in partitions), sum(one["cold_bytes"] for one in partitions)

        self.draw_tiers(tiers, what)

    def draw_tiers(self, tiers: Callable[[], tuple[int, int]], what: str) -> None:
        """Bytes on disks and in the bucket, asked for when it is time to draw."""

        def text() -> str:
            local, cold = tiers()
            return (
                f"{what}  disk {_bar(local, '█')} {local / 1e6:6.0f} MB   bucket {_bar(cold, '░')} {cold / 1e6:6.0f} MB"
            )

        self.tick(text)

    def tick(self, made: Callable[[], str]) -> None:
        """A line that is drawn over, when it is time for one."""
        now = self.clock()
        if now - self.drawn < (TICK_S if self.live else 3.0):
            return
        self.drawn = now
        text = made()
        if self.live:
            print(f"\r\033[K[{now - self.started:5.1f} s] {text}", end="", flush=True)
        else:
            print(f"[{now - self.started:5.1f} s] {text}", flush=True)

    def _clear(self) -> None:
        if self.live:
            print("\r\033[K", end="")


def _bar(size: int, mark: str) -> str:
    return mark * min(round(size / 50e6), 24)


def scaled(*sizes: tuple[str, int]) -> list[str]:
    """A bar for each, all to one scale; what is not nothing has a mark at least."""
    width, most = max(len(name) for name, _ in sizes), max(*(size for _, size in sizes), 1)
    marks = "█░▒"
    return [
        f"{name:<{width}}  {marks[at % 3] * max(round(size / most * 48), bool(size))} {size / 1e6:.1f} MB"
        for at, (name, size) in enumerate(sizes)
    ]
