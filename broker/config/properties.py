"""Kafka's `server.properties` syntax: what `java.util.Properties` reads.

Owns comments, continuation lines, separators and escapes. Always true: never raises for odd text, as Java does not,
except for a broken `\\u` escape. Must not know which names exist. Source: the Javadoc of `Properties.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from broker.config.values import InvalidConfig

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE = re.compile(r"[0-9A-Fa-f]{4}")


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a properties file; the last of equal keys wins. InvalidConfig for a malformed \\uXXXX."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        key, value = _split(line)
        found[_unescape(key, line)] = _unescape(value, line)
    return found


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            continue
        line = pending + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
            continue
        pending = ""
        yield line
    if pending:
        yield pending


def _split(line: str) -> tuple[str, str]:
    """Key and value, still escaped: the key ends at the first unescaped `=`, `:` or blank."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:at], rest


def _unescape(text: str, line: str) -> str:
    if "\\" not in text:
        return text
    out, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\":
            out.append(char)
            continue
        char = text[at : at + 1]
        at += 1
        if char == "u":
            if not _UNICODE.fullmatch(digits := text[at : at + 4]):
                raise InvalidConfig(f"malformed \\uXXXX escape in line {line!r}")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return "".join(out)
