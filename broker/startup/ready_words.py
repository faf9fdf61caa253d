"""Values of the ready line, which scripts split into words `name=value` (docs/cli.md).

Whitespace and control characters are percent-encoded as in a URL (`%20`), so that a value is always one word.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

_NO_PART_OF_A_WORD: Final = re.compile(r"[\s\x00-\x1f\x7f]+")
_OR_PERCENT: Final = re.compile(r"[\s\x00-\x1f\x7f%]+")


def url_word(url: str) -> str:
    """A URL as one word. Its meaning does not change, because `%` is already an escape in a URL."""
    return _NO_PART_OF_A_WORD.sub(lambda found: quote(found[0]), url)


def path_word(path: str) -> str:
    """A path as one word. `urllib.parse.unquote` restores it, so `%` is written as `%25`."""
    return _OR_PERCENT.sub(lambda found: quote(found[0]), path)
