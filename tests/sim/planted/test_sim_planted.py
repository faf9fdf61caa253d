"""The planted bugs still fit the source: `make planted` then shows that each is caught."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.sim.planted import ROOT, PlantedBug, planted_bugs

BUGS = planted_bugs()


def test_there_are_at_least_twenty() -> None:
    """Fewer would say little of what the simulation can see."""
    assert len(BUGS) >= 20


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_patch_applies_and_compiles(bug: PlantedBug, tmp_path: object) -> None:
    """Its old lines stand in the source exactly once, and what it makes is Python."""
    root = str(tmp_path)
    for path, _, _ in bug.hunks:
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        shutil.copy(os.path.join(ROOT, path), os.path.join(root, path))
    bug.apply(root)
    for path, _, _ in bug.hunks:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            patched = file.read()
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            assert patched != file.read(), "the bug is in"
        compile(patched, path, "exec")
