"""`tests/long.txt` and `tests/not_fast.txt` name tests that exist: a renamed one would come back unseen into
`make test` or `make test-fast`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import LONG, NOT_FAST
from tests.support.repository import syntax_tree

ROOT = Path(__file__).parents[3]
DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@pytest.mark.parametrize("listed", [LONG, NOT_FAST], ids=["long", "not_fast"])
def test_every_listed_test_exists(listed: frozenset[str]) -> None:
    names = [line for line in listed if line and not line.startswith("#")]
    assert len(names) > 100
    missing = [name for name in names if not _exists(*name.partition("[")[0].split("::"))]
    assert not missing


def _exists(path: str, *names: str) -> bool:
    if not (ROOT / path).is_file():
        return False
    scope: list[ast.stmt] = syntax_tree(ROOT / path).body
    for name in names:
        found = [node for node in scope if isinstance(node, DEFINITIONS) and node.name == name]
        if not found:
            return any(isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name for node in scope)
        if isinstance(found[0], ast.ClassDef) and found[0].bases:
            return True  # its tests may be inherited
        scope = found[0].body
    return True
