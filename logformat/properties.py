"""Text format of `java.util.Properties`, used by `meta.properties` and `server.properties`.

Reading what `format_properties` wrote gives the same pairs in the same order. As in Java, MalformedEscape is the only
error. Source: the Javadoc of `Properties.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from logformat.errors import InvalidRequest


class MalformedEscape(InvalidRequest):
    """A `\\u` without four hex digits after it, or half of a surrogate pair, which a text cannot hold."""


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
# A key ends at the first separator that has no backslash before it. A separator is `=` or `:` with optional white space
# around it, or white space alone.
_PAIR: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*((?:\\.|[^\\])*)", re.DOTALL)
_ESCAPE_SEQUENCE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)


def format_properties(properties: Mapping[str, str]) -> bytes:
    """A properties file without comment and date, in the mapping's order, so that equal mappings give equal bytes."""
    return "".join(
        f"{_escape(key, every_space=True)}={_escape(value, every_space=False)}\n" for key, value in properties.items()
    ).encode("ascii")


def properties_in(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values in the text's order, duplicate keys included. Raises MalformedEscape.

    An escaped surrogate pair is decoded to its one character."""
    for line in _logical_lines(text):
        match = _PAIR.fullmatch(line)
        assert match is not None, f"the line is not a pair of key and value: {line[:80]!r}"
        yield _unescape(match[1]), _unescape(match[2])


def _logical_lines(text: str) -> Iterator[str]:
    """The logical lines, without comments, blank lines and leading white space. A line that ends with an odd number of
    backslashes continues on the next line."""
    parts: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not parts and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            parts.append(line[:-1])
            continue
        yield "".join((*parts, line))
        parts = []
    if parts:
        yield "".join(parts)


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise MalformedEscape(f"malformed \\uXXXX escape in {text[:80]!r}")
        return _ESCAPES.get(match[2], match[2])

    # \uXXXX is UTF-16: a surrogate pair is one character.
    joined = _ESCAPE_SEQUENCE.sub(plain, text)
    try:
        return joined.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise MalformedEscape(f"half a surrogate pair in {text[:80]!r}") from None


def _escape(text: str, *, every_space: bool) -> str:
    out: list[str] = []
    for place, char in enumerate(text):
        if char in _ESCAPED:
            out.append(_ESCAPED[char])
        elif char in "=:#!" or (char == " " and (every_space or place == 0)):
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be")
            out.extend(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
    return "".join(out)
