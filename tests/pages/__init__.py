"""Pages of docs/ that are written from the code they describe: `make pages`, or `python -m tests.pages`.

Owns nothing but their list. Always true: `test_pages.py` fails while one of them is not what this would write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.pages import compatibility, configuration

ROOT = Path(__file__).parents[2]
PAGES: Mapping[str, Callable[[], str]] = {
    "docs/configuration.md": configuration.render,
    "docs/compatibility.md": compatibility.render,
}


def write_pages() -> None:
    """Replace the pages in this tree."""
    for name, render in PAGES.items():
        (ROOT / name).write_text(render(), encoding="utf-8")
