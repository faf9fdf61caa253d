"""Recorded results: one JSON file a run, in docs/reliability, each with its command and the commit it was measured at.

Always true: a figure carries the commit of the code that gave it; `dirty` says that this code was not committed. Must
not know what the figures mean.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "docs", "reliability")
CODE = ("seams", "logformat", "hotstore", "coldstore", "tiering", "broker", "thermocline")


def record(name: str, command: str, figures: Mapping[str, Any]) -> None:
    """Replace the result `name` by `figures`."""
    _write(name, {**_origin(command), "figures": dict(figures)})


def merge_rows(name: str, command: str, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace those of the result's rows that have the same `key`; each row carries its own origin."""
    kept = {row[key]: row for row in (load(name) or {}).get("rows", [])}
    kept |= {row[key]: {**row, **_origin(command)} for row in rows}
    _write(name, {"command": command, "rows": [kept[each] for each in sorted(kept)]})


def load(name: str) -> dict[str, Any] | None:
    """A recorded result; None when that run was never made."""
    try:
        with open(os.path.join(FOLDER, f"{name}.json"), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
            return found
    except FileNotFoundError:
        return None


def _origin(command: str) -> dict[str, Any]:
    changed = _git("status", "--porcelain", "--", *CODE)
    return {
        "command": command,
        "commit": _git("rev-parse", "--short=10", "HEAD"),
        "dirty": bool(changed),
        "python": platform.python_version(),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _write(name: str, content: Mapping[str, Any]) -> None:
    os.makedirs(FOLDER, exist_ok=True)
    path = os.path.join(FOLDER, f"{name}.json")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, ensure_ascii=False)
        file.write("\n")
    os.replace(f"{path}.new", path)
