"""Parses sizes (`64MiB`) and durations (`1h30m`) of flags, files and the environment. Kafka's protocol has only plain
numbers."""

from __future__ import annotations

import re
from decimal import Decimal

from logformat.errors import InvalidRequest

_SIZE = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "PIB": 2**50} | {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# Twenty digits are more than any number of bytes or ms needs; Python refuses to print more than 4 300.
_NUMBER = r"(\d{1,20}(?:\.\d{1,20})?)"
_SIZE_PATTERN = re.compile(rf"{_NUMBER}\s*([A-Za-z]*)", re.ASCII)
_DURATION_PART = re.compile(rf"{_NUMBER}(ms|s|m|h|d)", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of `65536`, `64MiB`, `1.5GiB`, `10MB`; InvalidRequest otherwise."""
    found = _SIZE_PATTERN.fullmatch(text.strip())
    scale = _SIZE.get(found[2].upper()) if found else None
    if found is None or scale is None:
        raise InvalidRequest(f"{text!r} is not a size; write bytes, or a number with KiB, MiB, GiB or TiB")
    return int(Decimal(found[1]) * scale)


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `250ms`, `30s`, `5m`, `24h`, `7d` and sums such as `1h30m`; InvalidRequest otherwise."""
    text = text.strip()
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidRequest(f"{text!r} is not a duration; write a number with ms, s, m, h or d, such as 30s or 24h")
    return int(sum(Decimal(number) * _DURATION_MS[unit] for number, unit in parts))


def show_duration(duration_ms: int) -> str:
    """`7d`, `1h30m`, `250ms`: exact, and readable by `parse_duration_ms`."""
    parts, rest = [], duration_ms
    for unit in ("d", "h", "m", "s", "ms"):
        count, rest = divmod(rest, _DURATION_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
