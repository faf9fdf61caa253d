"""Values of the ready line, which scripts split into words of `name=value` (docs/cli.md).

Whitespace and control characters become `%20` and the like, as in a URL, so that a value is always one word.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

_NO_PART_OF_A_WORD: Final = re.compile(r"[\s\x00-\x1f\x7f]+")
_OR_PERCENT: Final = re.compile(r"[\s\x00-\x1f\x7f%]+")


def url_word(url: str) -> str:
    """A URL as one word; it means the same, because `%` in a URL is an escape already."""
    return _NO_PART_OF_A_WORD.sub(lambda found: quote(found[0]), url)


def path_word(path: str) -> str:
    """A path as one word. `urllib.parse.unquote` restores it, so `%` is written as `%25`."""
    return _OR_PERCENT.sub(lambda found: quote(found[0]), path)
