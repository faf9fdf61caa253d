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
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.loads import Run

HEAD = (
    "| row | work | Kafka | Thermocline | unit | ratio | floor | met | broker CPU s/GB | notes |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class Floor:
    """What a row must reach: a ratio ours ÷ peer's, a value of ours, or either of them."""

    ratio: float | None = None
    value: float | None = None
    lower_is_better: bool = False

    def met(self, ratio: float, value: float) -> bool:
        """False where there is no figure."""
        if self.lower_is_better:
            return (self.ratio is not None and ratio <= self.ratio) or (self.value is not None and value <= self.value)
        return (self.ratio is not None and ratio >= self.ratio) or (self.value is not None and value >= self.value)

    def text(self, unit: str) -> str:
        sign = "≤" if self.lower_is_better else "≥"
        wanted = [f"{sign} {self.ratio:g}×"] if self.ratio is not None else []
        wanted += [f"{sign} {self.value:g} {unit}"] if self.value is not None else []
        return " or ".join(wanted)


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
    def met(self) -> bool:
        cheap = self.cpu_floor is None or self.cpu_ratio <= self.cpu_floor
        return cheap and self.floor.met(self.ratio, _median(self.ours))

    @property
    def is_clear(self) -> bool:
        """Whether every round says of the floor what the medians say."""
        return len({self.floor.met(*found) for found in self.rounds}) < 2

    def verdict(self) -> str:
        """yes, no, or unclear: the medians meet the floor, but the rounds differ by more than it is away."""
        if not self.met:
            return "**no**"
        return "yes" if self.is_clear else "unclear"

    def line(self) -> str:
        """As a line of the table."""
        cells = [self.name, self.work, _shown(_median(self.peer)), _shown(_median(self.ours)), self.unit]
        cells += [self._ratio_cell(), self.floor.text(self.unit), self.verdict(), self._cpu_cell()]
        return f"| {' | '.join(cells)} | {self.notes} |"

    def _ratio_cell(self) -> str:
        ratios = [ratio for ratio, _ in self.rounds if not math.isnan(ratio)]
        spread = f" ({min(ratios):.2f}–{max(ratios):.2f})" if len(ratios) > 1 else ""
        return f"{_times(self.ratio)}{spread}"

    def _cpu_cell(self) -> str:
        if math.isnan(_cpu(self.ours)):
            return "–"
        floor = f", floor {self.cpu_floor:g}×" if self.cpu_floor is not None else ""
        ratio = "" if math.isnan(self.cpu_ratio) else f" ({_times(self.cpu_ratio)}{floor})"
        return f"{_shown(_cpu(self.peer))} → {_shown(_cpu(self.ours))}{ratio}"


def merge(old: str, rows: Sequence[Row], names: Sequence[str], rounds: int) -> str:
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
        f"`make bench`, {time.strftime('%Y-%m-%d')}: {os.cpu_count()} cores, Python {platform.python_version()} "
        f"({interpreter_build()}), Linux {platform.release()}; Apache Kafka 4.3.1 (1 GiB heap). Medians of {rounds} "
        "interleaved rounds, of five where they differ by more than 15 % (their ratios in brackets; “unclear”: a floor "
        "that some of them miss); clients share the cores. Only ratios travel. One row: `bench/run.py --only ROW`.",
        "",
        *HEAD,
        *(lines[name] for name in known),
        "",
    ]
    return "\n".join(page) + notes[1] + notes[2] + mark + others


def interpreter_build() -> str:
    """How this Python was built: one without these optimisations is up to a third slower."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    return ", ".join(
        f"{name}" if option in options else f"no {name}"
        for name, option in (("PGO", "--enable-optimizations"), ("LTO", "--with-lto"))
    )


def write(path: Path, rows: Sequence[Row], names: Sequence[str], rounds: int) -> None:
    """`merge` into the file."""
    path.write_text(merge(path.read_text() if path.exists() else "", rows, names, rounds))


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


def _shown(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def _times(ratio: float) -> str:
    return "–" if math.isnan(ratio) else f"{ratio:.2f}×"
