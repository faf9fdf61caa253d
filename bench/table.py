"""The table: what a row is, medians and floors, and the first section of bench/RESULTS.md.

Pure but for `write`. Always true: a line of a row that was not measured stays as it was, and so does every section
after the first table.
"""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

from bench.loads import Run

HEAD = (
    "| row | work | Kafka | Thermocline | unit | ratio | floor | met | broker CPU s/GB | notes |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


class Verdict(IntEnum):
    """What rounds say of a floor, worst first."""

    NO = 0
    UNCLEAR = 1
    YES = 2


SHOWN: Final = {Verdict.NO: "**no**", Verdict.UNCLEAR: "unclear", Verdict.YES: "yes"}


def judge(bound: float, median: float, rounds: Sequence[float], *, lower_is_better: bool) -> Verdict:
    """YES only where the rounds differ by no more (greatest − least) than `median` is on the good side of `bound`."""
    margin = bound - median if lower_is_better else median - bound
    if not margin >= 0:  # nan: there is no figure
        return Verdict.NO
    return Verdict.YES if max(rounds) - min(rounds) <= margin else Verdict.UNCLEAR


@dataclass(frozen=True, slots=True)
class Floor:
    """What a row must reach: a ratio ours ÷ peer's, a value of ours, or either of them; with neither it is reported."""

    ratio: float | None = None
    value: float | None = None
    lower_is_better: bool = False

    @property
    def is_none(self) -> bool:
        return self.ratio is None and self.value is None

    def verdict(self, row: Row) -> Verdict:
        """The better one of its two ways to be met."""
        ratios, values = zip(*row.rounds, strict=True) if row.rounds else ((), ())
        found = [Verdict.NO]
        for bound, median, rounds in ((self.ratio, row.ratio, ratios), (self.value, _median(row.ours), values)):
            if bound is not None:
                found.append(judge(bound, median, rounds, lower_is_better=self.lower_is_better))
        return max(found)

    def text(self, unit: str) -> str:
        sign = "≤" if self.lower_is_better else "≥"
        wanted = [f"{sign} {self.ratio:g}×"] if self.ratio is not None else []
        wanted += [f"{sign} {self.value:g} {unit}"] if self.value is not None else []
        return " or ".join(wanted) or "–"


@dataclass(frozen=True, slots=True)
class Measured:
    """A side's figure of one round, and what a GB cost its broker (nan: not asked)."""

    value: float
    cpu_s_per_gb: float = math.nan

    @classmethod
    def speed(cls, run: Run) -> Measured:
        return cls(run.mb_per_s, run.cpu_s_per_gb)

    @classmethod
    def requests(cls, run: Run) -> Measured:
        return cls(run.requests_per_s, run.cpu_s_per_gb)

    @classmethod
    def p99(cls, run: Run) -> Measured:
        return cls(run.p99_ms, run.cpu_s_per_gb)


@dataclass
class Row:
    """One line: the figures of each side, a round each. `cpu_floor`: the most of its CPU ours may take."""

    name: str
    work: str
    unit: str
    floor: Floor
    cpu_floor: float | None = None
    peer: list[Measured] = field(default_factory=list)
    ours: list[Measured] = field(default_factory=list)
    notes: str = ""
    python: str = ""  # what our broker ran on

    @property
    def ratio(self) -> float:
        return _median(self.ours) / _median(self.peer)

    @property
    def cpu_ratio(self) -> float:
        return _cpu(self.ours) / _cpu(self.peer)

    @property
    def rounds(self) -> list[tuple[float, float]]:
        """(ratio, our value) of each round; the ratio is nan where there is no peer."""
        peers = [one.value for one in self.peer] or [math.nan] * len(self.ours)
        return [(ours.value / peer, ours.value) for peer, ours in zip(peers, self.ours, strict=False)]

    @property
    def spread(self) -> float:
        """By how much the rounds of a side differ at most: greatest ÷ least − 1."""
        sides = [[one.value for one in found] for found in (self.peer, self.ours) if found]
        return max((max(values) / min(values) - 1 for values in sides), default=0.0)

    @property
    def cpu_rounds(self) -> list[float]:
        """Ours ÷ the peer's CPU of each round."""
        return [ours.cpu_s_per_gb / peer.cpu_s_per_gb for peer, ours in zip(self.peer, self.ours, strict=False)]

    def verdict(self) -> Verdict:
        """Of the floor and of that of the CPU: the worse one."""
        found = self.floor.verdict(self)
        if self.cpu_floor is None:
            return found
        return min(found, judge(self.cpu_floor, self.cpu_ratio, self.cpu_rounds, lower_is_better=True))

    def forget(self) -> None:
        """The rounds so far were to warm up."""
        self.peer.clear()
        self.ours.clear()

    def line(self) -> str:
        """As a line of the table."""
        cells = [self.name, self.work, _shown(_median(self.peer)), _shown(_median(self.ours)), self.unit]
        met = "–" if self.floor.is_none else SHOWN[self.verdict()]
        cells += [self._ratio_cell(), self.floor.text(self.unit), met, self._cpu_cell()]
        return f"| {' | '.join(cells)} | {'; '.join(filter(None, (self.notes, self.python)))} |"

    def _ratio_cell(self) -> str:
        return f"{_times(self.ratio)}{_spread([ratio for ratio, _ in self.rounds])}"

    def _cpu_cell(self) -> str:
        if math.isnan(_cpu(self.ours)):
            return "–"
        floor = f", floor {self.cpu_floor:g}×" if self.cpu_floor is not None else ""
        spread = _spread(self.cpu_rounds)
        ratio = "" if math.isnan(self.cpu_ratio) else f" ({_times(self.cpu_ratio)}{spread}{floor})"
        return f"{_shown(_cpu(self.peer))} → {_shown(_cpu(self.ours))}{ratio}"


def merge(old: str, rows: Sequence[Row], names: Sequence[str], rounds: int, python: str) -> str:
    """The page `old` with the lines of `rows` in place; rows stand in the order of `names`."""
    first, mark, others = old.partition("\n## ")
    lines = _named_lines(first) | {row.name: row.line() for row in rows}
    known = [
        name for name in sorted(lines, key=lambda name: _place(name, names)) if _place(name, names)[0] < len(names)
    ]
    notes = first.partition("\nBelow their floors")
    page = [
        "# Benchmarks",
        "",
        f"`make bench`, {time.strftime('%Y-%m-%d')}: {os.cpu_count()} cores, Linux {platform.release()}; our brokers "
        f"on {python} (a row's notes name its own); Apache Kafka 4.3.1 (1 GiB heap). Medians of {rounds} interleaved "
        "rounds after one to warm up, of five where they differ by more than 15 %; the rounds' ratios in brackets. "
        "“unclear”: they differ by more than the median is away from the floor. Clients share the cores; only ratios "
        "travel. [README.md](README.md) says how to read and repeat this.",
        "",
        *HEAD,
        *(lines[name] for name in known),
        "",
    ]
    return "\n".join(page) + notes[1] + notes[2] + mark + others


def write(path: Path, rows: Sequence[Row], names: Sequence[str], rounds: int, python: str) -> None:
    """`merge` into the file."""
    path.write_text(merge(path.read_text() if path.exists() else "", rows, names, rounds, python))


def _named_lines(text: str) -> dict[str, str]:
    return {found[1]: found[0] for found in re.findall(r"^(\| ([a-z0-9/-]+) \|.*)$", text, re.MULTILINE)}


def _place(name: str, names: Sequence[str]) -> tuple[int, str]:
    """Where a row stands: at its benchmark, `BENCHMARK` or `BENCHMARK/part`."""
    benchmark = name.partition("/")[0]
    return (names.index(benchmark) if benchmark in names else len(names), name)


def _median(found: Sequence[Measured]) -> float:
    return statistics.median(one.value for one in found) if found else math.nan


def _cpu(found: Sequence[Measured]) -> float:
    return statistics.median(one.cpu_s_per_gb for one in found) if found else math.nan


def _spread(ratios: Sequence[float]) -> str:
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    return f" ({min(known):.2f}–{max(known):.2f})" if len(known) > 1 else ""


def _shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _times(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"{ratio:.2f}×"
