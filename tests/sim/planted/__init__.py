"""Planted bugs: patches that break one promise each, to prove that the simulation can see.

Owns the patch files and how they are applied. A patch begins with what it breaks and who catches it (`sim`, with its
options, or the name of a test), then a unified diff against the source tree. Always true: a hunk
applies where its old lines stand exactly once, or not at all; line numbers are not looked at, so patches outlive edits
elsewhere in a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


class DoesNotApply(Exception):
    """The source tree has no such lines, or has them twice: write the patch again."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One patch: `hunks` are (path, old lines, new lines)."""

    name: str
    breaks: str
    caught_by: str
    hunks: tuple[tuple[str, str, str], ...]

    def apply(self, root: str) -> None:
        """Change the tree below `root`. Raises DoesNotApply, having changed nothing."""
        texts: dict[str, str] = {}
        for path, old, new in self.hunks:
            if path not in texts:
                with open(os.path.join(root, path), encoding="utf-8") as file:
                    texts[path] = file.read()
            if texts[path].count(old) != 1:
                raise DoesNotApply(f"{self.name}: {path} has these lines {texts[path].count(old)} times:\n{old}")
            texts[path] = texts[path].replace(old, new)
        for path, text in texts.items():
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)


def planted_bugs() -> list[PlantedBug]:
    """All of them, in order of their names."""
    return [_read(name) for name in sorted(os.listdir(HERE)) if name.endswith(".patch")]


def _read(name: str) -> PlantedBug:
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    breaks, caught_by = lines[0].strip(), lines[1].removeprefix("Caught by: ").strip()
    hunks: list[tuple[str, str, str]] = []
    path, old, new = "", [], []  # type: ignore[var-annotated]

    def close() -> None:
        if old or new:
            hunks.append((path, "".join(old), "".join(new)))
            old.clear()
            new.clear()

    for line in lines[2:]:
        if line.startswith(("--- ", "@@")):
            close()
        elif line.startswith("+++ b/"):
            path = line.removeprefix("+++ b/").strip()
        elif path and line[:1] in " -+":
            if line[0] in " -":
                old.append(line[1:])
            if line[0] in " +":
                new.append(line[1:])
    close()
    assert path and hunks, f"{name} holds no diff"
    return PlantedBug(name.removesuffix(".patch"), breaks, caught_by, tuple(hunks))
