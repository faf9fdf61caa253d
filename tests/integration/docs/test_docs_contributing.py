"""CONTRIBUTING.md is true: its commands run, its targets, folders and files exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from tests.support.repository import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PYTHON = ".venv/bin/python"
COMMANDS = [
    line
    for fence in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    for line in fence.splitlines()
    if line and not line.startswith("#")
]


def recipe(command: str) -> str:
    """What `make` would run once the environment stands."""
    done = subprocess.run(
        [*shlex.split(command), "--dry-run", "--no-print-directory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str) -> None:
    arguments = shlex.split(recipe(command) if command.startswith("make ") else command)
    assert arguments[0] == PYTHON
    done = subprocess.run(
        [sys.executable, *arguments[1:]], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_target_is_one() -> None:
    targets = re.findall(r"`make ([a-z-]+)`", PAGE)
    assert "test-fast" in targets
    for target in set(targets):
        assert PYTHON in recipe(f"make {target}") or ".venv/bin/" in recipe(f"make {target}"), target


def test_every_file_and_folder_exists() -> None:
    named = re.findall(r"`((?:[a-z_0-9]+/)+(?:[\w.]+)?)`", PAGE) + re.findall(r"\]\(([\w./]+)\)", PAGE)
    assert len(named) > 30
    for name in named:
        assert (ROOT / name).exists(), name


def test_every_folder_of_tests_is_described() -> None:
    """But the ones that a make target describes."""
    described = set(re.findall(r"^\| `tests/(\w+)/`", PAGE, re.M))
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders - described == {"pages", "reliability", "soak"}
