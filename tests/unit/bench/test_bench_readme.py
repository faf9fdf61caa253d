"""bench/README.md: its commands are commands, and it leaves no program out."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "bench" / "README.md").read_text()


def commands() -> list[list[str]]:
    """Lines of the page's shell blocks, as words, without their comments."""
    fences = re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    return [shlex.split(line, comments=True) for fence in fences for line in fence.splitlines()]


def test_every_program_is_named() -> None:
    """Whoever looks for a benchmark finds it there."""
    named = set(re.findall(r"`(\w+\.py)`", PAGE))
    programs = {path.name for path in (ROOT / "bench").glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert programs - {"range_server.py"} <= named


@pytest.mark.not_fast
def test_commands_are_understood() -> None:
    """Every option is one that its program has."""
    assert commands()
    for python, program, *words in commands():
        assert python == ".venv/bin/python"
        for word in [word.partition("=")[0] for word in words if word.startswith("--")]:
            shown = subprocess.run(
                [sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
            )
            assert word in shown.stdout, (program, word)


@pytest.mark.not_fast
def test_the_row_of_the_examples_exists() -> None:
    """`--only` names a row that `--list` lists."""
    listed = subprocess.run(
        [sys.executable, "bench/run.py", "--list"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    rows = [
        words[words.index("--only") + 1]
        for _, program, *words in commands()
        if "run.py" in program and "--only" in words
    ]
    assert rows and set(rows) <= set(listed.stdout.split())
