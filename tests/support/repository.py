"""Where the repository lies: tests that read its pages, golden files and programs are moved between folders."""

import ast
import gc
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


def golden(name: str) -> bytes:
    """The bytes of a file of tests/golden."""
    return (GOLDEN / name).read_bytes()


def syntax_tree(path: Path) -> ast.Module:
    """The module at `path`, parsed without garbage collection: a finalizer that runs meanwhile, in a process full of
    other tests' rests, lets CPython 3.11 fail with "AST constructor recursion depth mismatch" (gh-106905)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        if was_enabled:
            gc.enable()
