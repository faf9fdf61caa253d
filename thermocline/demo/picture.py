"""Output of the demos: both tiers as bars, remarks, and the seconds of each act. Also runs a demo in a temporary
directory.

Without a terminal nothing is overwritten, and a bar is printed every three seconds at most.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException

from thermocline.cli.clients.http_client import HttpRefused
from thermocline.demo.broker import DemoBroker
from thermocline.demo.keys import Keys
from thermocline.demo.payload import Failed

TICK_S = 0.25
_LOG_CHARS_MAX: Final = 2000  # characters printed from the end of each log


@dataclass
class Picture:
    clock: Callable[[], float] = time.monotonic
    acts: list[tuple[str, float]] = field(default_factory=list)  # name, seconds
    drawn: float = 0.0
    live: bool = field(default_factory=sys.stdout.isatty)

    def __post_init__(self) -> None:
        self.started = self._act_began = self.clock()

    def act(self, name: str) -> None:
        now = self.clock()
        self.acts.append((name, now - self._act_began))
        self._act_began = now

    def seconds(self) -> str:
        rows = [*self.acts, ("all of it", sum(seconds for _, seconds in self.acts))]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {seconds:6.1f} s" for name, seconds in rows)

    def say(self, text: str) -> None:
        self._clear()
        print(f"[{self.clock() - self.started:5.1f} s] {text}", flush=True)

    def draw(self, broker: DemoBroker, what: str) -> None:
        def tiers() -> tuple[int, int]:
            partitions = broker.status()
            return sum(one["local_bytes"] for one in partitions), sum(one["cold_bytes"] for one in partitions)

        self.draw_tiers(tiers, what)

    def draw_tiers(self, tiers: Callable[[], tuple[int, int]], what: str) -> None:
        """Draw (bytes on disks, bytes in the bucket), if it is time."""

        def text() -> str:
            local, cold = tiers()
            return (
                f"{what}  disk {_bar(local, '█')} {local / 1e6:6.0f} MB   bucket {_bar(cold, '░')} {cold / 1e6:6.0f} MB"
            )

        self.tick(text)

    def tick(self, made: Callable[[], str]) -> None:
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
    """A bar for each size, on one scale; a size above zero has at least one mark."""
    width, most = max(len(name) for name, _ in sizes), max(*(size for _, size in sizes), 1)
    marks = "█░▒"
    return [
        f"{name:<{width}}  {marks[at % 3] * max(round(size / most * 48), bool(size))} {size / 1e6:.1f} MB"
        for at, (name, size) in enumerate(sizes)
    ]


def add_secure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--secure", action="store_true", help="the same over TLS and logins, by serve --secure")


def play(demo: Callable[[Path, Keys], None], *, is_secured: bool) -> int:
    """Run a demo in a temporary directory; returns the exit code. After a failure it prints the ends of the processes'
    logs."""
    root = Path(tempfile.mkdtemp(prefix="thermocline-demo-"))
    try:
        demo(root, Keys(root / "keys" if is_secured else None))
    except (Failed, KafkaException, HttpRefused) as failure:
        logs = "\n".join(
            f"{log.name}:\n{log.read_text(errors='replace')[-_LOG_CHARS_MAX:]}" for log in sorted(root.glob("*.log"))
        )
        print(f"\nthe demo failed: {failure}\n{logs}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0
