"""bench/produce_path.py on a whole broker: it says a figure a row, and only after the broker wrote all it was given."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "bench" / "produce_path.py"


@pytest.mark.not_fast
@pytest.mark.parametrize(
    "way", [["--idempotent", "--acks", "all"], ["--sockets", "--partitions", "2", "--version", "9"]]
)
def test_a_figure_for_each_row(way: list[str]) -> None:
    """Whoever lands a change to the produce path measures with it: it has to follow every such change."""
    words = [sys.executable, str(PROGRAM), *way, "--only", "100 B", "--runs", "1", "5", "--chunks", "3"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^100 B in runs of (\d) +([\d.]+) µs \([\d.]+–[\d.]+\)$", done.stdout, re.MULTILINE)
    assert [run for run, _ in found] == ["1", "5"]
    assert all(0.1 < float(figure) < 100_000 for _, figure in found)
