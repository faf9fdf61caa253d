"""How the loop of each client is had: a command, or the reason why it cannot be had here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.support.clients.access import Access
from tests.support.clients.go_modules import go, needs_go
from tests.support.clients.lives import life_programs
from tests.support.kafka.kafka_tools import SCRIPT, class_path, require_kafka

_COMPILED_S: Final = 120.0
Command = list[str]
"""The program with its access file; what else it is told follows."""


def _confluent(access: Access, folder: Path) -> Command:
    file = access.write_json(folder / "access.json")
    return [sys.executable, "-m", "tests.campaign.transactions.loop_confluent", str(file)]


def _java(access: Access, folder: Path) -> Command:
    require_kafka()
    source, places = Path(__file__).with_name("Loop.java"), f"{SCRIPT.parent / 'conf'}:{class_path()}"
    compiled = ["javac", "-d", str(folder), "-cp", places, str(source)]
    subprocess.run(compiled, check=True, timeout=_COMPILED_S)
    file = access.write_java(folder / "access.properties")
    # Many lives are short: the quick compiler alone, and the collector without threads.
    flags = ["-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    return ["java", *flags, "-cp", f"{folder}:{places}", "Loop", str(file)]


def _franz(access: Access, folder: Path) -> Command:
    program = folder / "franz-loop"
    with needs_go("franz-go's programs"):
        go(Path(life_programs.__file__).parent / "franz", "build", "-o", str(program), "./loop")
    return [str(program), str(access.write_json(folder / "access.json"))]


PROGRAMS: Final[dict[str, Callable[[Access, Path], Command]]] = {
    "confluent-kafka": _confluent,
    "java": _java,
    "franz-go": _franz,
}


def commands(libraries: Sequence[str], access: Access, folder: Path) -> tuple[dict[str, Command], dict[str, str]]:
    """(command by library, why there is none by library). One of them at least can be had: ValueError."""
    found: dict[str, Command] = {}
    missing: dict[str, str] = {}
    for library in libraries:
        try:
            found[library] = PROGRAMS[library](access, folder)
        except pytest.skip.Exception as skipped:
            missing[library] = str(skipped)
    if not found:
        raise ValueError(f"no loop can be had: {missing}")
    return found, missing
