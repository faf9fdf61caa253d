"""Where the repository lies: tests that read its pages, golden files and programs are moved between folders."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
