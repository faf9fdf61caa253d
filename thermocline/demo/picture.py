"""Two tiers, drawn over one another on a terminal; a line now and then elsewhere.

Owns the demo's stdout until its table. Always true: where nobody looks (no terminal) nothing is overwritten, and a line
comes every three seconds at most. Must not know the acts.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

from thermocline.demo.broker import Broker

TICK_S = 0.25


@dataclass
class Picture:
    """Two tiers, drawn over one another on a terminal, a line now and then elsewhere."""

    started: float = field(default_factory=time.monotonic)
    drawn: float = 0.0
    live: bool = field(default_factory=sys.stdout.isatty)
    acts: list[tuple[str, float]] = field(default_factory=list)  # name, when it began

    def say(self, text: str) -> None:
        self._clear()
        print(f"[{time.monotonic() - self.started:5.1f} s] {text}", flush=True)

    def begin(self, act: str) -> None:
        """What the time from now on goes to, until another act begins."""
        self.acts.append((act, time.monotonic()))

    def where_the_time_went(self) -> str:
        """Seconds of each act so far."""
        ends = [began for _, began in self.acts[1:]] + [time.monotonic()]
        return ", ".join(f"{act} {end - began:.0f}" for (act, began), end in zip(self.acts, ends, strict=True))

    def draw(self, broker: Broker, what: str) -> None:
        now = time.monotonic()
        if now - self.drawn < (TICK_S if self.live else 3.0):
            return
        self.drawn = now
        partitions = broker.status()
        local = sum(partition["local_bytes"] for partition in partitions)
        cold = sum(partition["cold_bytes"] for partition in partitions)
        text = f"{what}  disk {_bar(local, '█')} {local / 1e6:6.0f} MB   bucket {_bar(cold, '░')} {cold / 1e6:6.0f} MB"
        if self.live:
            print(f"\r\033[K[{now - self.started:5.1f} s] {text}", end="", flush=True)
        else:
            print(f"[{now - self.started:5.1f} s] {text}", flush=True)

    def _clear(self) -> None:
        if self.live:
            print("\r\033[K", end="")


def _bar(size: int, mark: str) -> str:
    return mark * min(round(size / 50e6), 24)
