"""docs/ARCHITECTURE.md sends a newcomer to files and functions that exist."""

from __future__ import annotations

import ast
import re

from tests.support.repository import ROOT


def test_where_to_look_first_names_what_exists() -> None:
    """Each file is there, and has the class, method, function or table that stands beside it."""
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    section = page[page.index("## Where to look first") : page.index("## A record's way in")]
    rows = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| question")]
    assert len(rows) >= 5
    for row in rows:
        path = ""
        named = 0
        for quoted in re.findall(r"`([^` ]+)`", row):
            if quoted.endswith((".py", "/")):
                path = quoted
                assert (ROOT / path).exists(), path
            else:
                named += 1
                assert quoted in names_in(path), f"{path} has no {quoted}"
        assert named >= 2, row


def names_in(path: str) -> set[str]:
    """The names a module defines, methods with their class."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case ast.ClassDef(name=name, body=body):
                members = (one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
                found |= {name, *(f"{name}.{one.name}" for one in members)}
    return found
