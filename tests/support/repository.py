"""Where the repository lies: tests that read its pages, golden files and programs are moved between folders."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


def golden(name: str) -> bytes:
    """The bytes of a file of tests/golden."""
    return (GOLDEN / name).read_bytes()
