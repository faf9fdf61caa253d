"""docs/ARCHITECTURE.md and the packages' own paragraphs send a newcomer to files and functions that exist."""

from __future__ import annotations

import ast
import re

from tests.support.repository import ROOT, syntax_tree

HOUSES = ("seams", "logformat", "hotstore", "coldstore", "tiering", "broker", "thermocline")


def test_where_to_look_first_names_what_exists() -> None:
    """Each file is there, and has the class, method, function or table that stands beside it."""
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    section = page[page.index("## Where to look first") :]
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


def test_the_page_is_read_in_ten_minutes_and_names_files_that_exist() -> None:
    page = (ROOT / "docs/ARCHITECTURE.md").read_text()
    assert len(page.split()) <= 2_000
    missing = [path for path in re.findall(r"`([\w/]+/[\w/]*(?:\.py)?)`", page) if not (ROOT / path).exists()]
    assert not missing


def test_packages_name_modules_that_exist() -> None:
    """A package's docstring names a module of its own as `leader.py`, another one by its path from the root."""
    missing = []
    for house in HOUSES:
        for package in (ROOT / house).rglob("__init__.py"):
            told = ast.get_docstring(syntax_tree(package)) or ""
            for name in re.findall(r"`([\w/]+\.py)`", told):
                if not (package.parent / name).exists() and not (ROOT / name).exists():
                    missing.append(f"{package.relative_to(ROOT)}: {name}")
    assert not missing


def names_in(path: str) -> set[str]:
    """The names a module defines, methods with their class."""
    found = set()
    for node in syntax_tree(ROOT / path).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case ast.ClassDef(name=name, body=body):
                members = (one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
                found |= {name, *(f"{name}.{one.name}" for one in members)}
    return found
