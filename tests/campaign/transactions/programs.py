"""How the loop of each client is had: a command, or the reason why it cannot be had here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.support.clients.access import Access

Command = list[str]
"""The program with its access file; what else it is told follows."""


def _confluent(access: Access, folder: Path) -> Command:
    file = access.write_json(folder / "access.json")
    return [sys.executable, "-m", "tests.campaign.transactions.loop_confluent", str(file)]


PROGRAMS: Final[dict[str, Callable[[Access, Path], Command]]] = {"confluent-kafka": _confluent}


def commands(libraries: Sequence[str], access: Access, folder: Path) -> tuple[dict[str, Command], dict[str, str]]:
    """(command by library, why there is none by library)."""
    found: dict[str, Command] = {}
    missing: dict[str, str] = {}
    for library in libraries:
        found[library] = PROGRAMS[library](access, folder)
    return found, missing
