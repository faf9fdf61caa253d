"""What the broker's process costs, sampled from /proc while it lives, and whether that grows.

Always true: a sample belongs to one life (a process between start and kill); slopes are least squares over the samples
after a life's warm-up. Must not know the load.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

INTERVAL_S = 1.0
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """`at_s` since the life began; `cpu_s` used by it so far."""

    life: int
    at_s: float
    rss_mib: float
    fds: int
    threads: int
    cpu_s: float


class Sampler:
    """Samples the processes that `pids_of` names, once a second, in a thread of its own."""

    def __init__(self, pids_of: Callable[[], Mapping[int, int]]) -> None:
        """`pids_of`: life → pid of the brokers that serve."""
        self._pids_of = pids_of
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._began: dict[int, float] = {}
        self.samples: list[Sample] = []

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            for life, pid in self._pids_of().items():
                began = self._began.setdefault(life, time.monotonic())
                try:
                    self.samples.append(_look(life, pid, time.monotonic() - began))
                except (FileNotFoundError, ProcessLookupError):
                    continue  # killed this instant


def _look(life: int, pid: int, at_s: float) -> Sample:
    with open(f"/proc/{pid}/statm") as file:
        rss = int(file.read().split()[1]) * PAGE / 2**20
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    return Sample(life, at_s, rss, len(os.listdir(f"/proc/{pid}/fd")), int(fields[17]), cpu_s)


@dataclass(frozen=True)
class Growth:
    """Of one quantity: smallest, median, greatest; and per minute, within lives and (medians) across lives."""

    low: float
    middle: float
    high: float
    per_minute_within: float
    per_life_across: float


def growth(samples: Sequence[Sample], quantity: Callable[[Sample], float], warm_up_s: float) -> Growth:
    """`samples` of lives; those before `warm_up_s` of each do not count."""
    warm = [sample for sample in samples if sample.at_s >= warm_up_s]
    lives: dict[int, list[Sample]] = {}
    for sample in warm:
        lives.setdefault(sample.life, []).append(sample)
    if not warm:
        return Growth(0, 0, 0, 0, 0)
    values = [quantity(sample) for sample in warm]
    within = slope_within([[(s.at_s / 60, quantity(s)) for s in life] for life in lives.values()])
    across = slope([(number, median(map(quantity, lives[life]))) for number, life in enumerate(sorted(lives))])
    return Growth(min(values), median(values), max(values), within, across)


def curve(samples: Sequence[Sample], quantity: Callable[[Sample], float], every_s: float = 120.0) -> list[float]:
    """Medians of `quantity` over pieces of `every_s` of the life with the most samples."""
    lives = [sample.life for sample in samples]
    longest = [sample for sample in samples if sample.life == max(set(lives), key=lives.count)]
    pieces: dict[int, list[float]] = {}
    for sample in longest:
        pieces.setdefault(int(sample.at_s // every_s), []).append(quantity(sample))
    return [round(median(pieces[piece]), 1) for piece in sorted(pieces)]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares; 0 for fewer than two places."""
    return slope_within([points])


def slope_within(groups: Sequence[Sequence[tuple[float, float]]]) -> float:
    """One slope common to all groups, each with a level of its own."""
    above = below = 0.0
    for points in groups:
        if not points:
            continue
        x_mean = sum(x for x, _ in points) / len(points)
        y_mean = sum(y for _, y in points) / len(points)
        above += sum((x - x_mean) * (y - y_mean) for x, y in points)
        below += sum((x - x_mean) ** 2 for x, _ in points)
    return above / below if below else 0.0
