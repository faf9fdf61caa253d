"""Parses times of flags: `@1793491200000`, `@2026-11-01`, `@2026-11-01T08:30`, `…Z`, `…+01:00`.

Digits alone are milliseconds since 1970 (UTC). A date without a zone is local time. For ambiguous texts, a note shows
the chosen instant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from logformat.errors import InvalidRequest
from thermocline.cli.terminal.output import note

TIME_HELP: Final = "@ms since 1970 or @2026-11-01T08:30 (local time; Z or +01:00 at its end names another zone)"
_DAY_AND_ZONE: Final = re.compile(r"(\d{4}-\d\d-\d\d)(Z|[+-]\d\d:?\d\d)")  # Python accepts no zone without a time
_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999
_LIKE_SECONDS: Final = range(10**9, 10**10)  # as seconds 2001 to 2286, as milliseconds 12 to 116 days after 1970


@dataclass(frozen=True, slots=True)
class Instant:
    """`ms` since 1970. `meaning`: the chosen instant in words; "" if the text is unambiguous."""

    ms: int
    meaning: str = ""


def noted_ms(instant: Instant) -> int:
    """Its `ms`. If the text is ambiguous, prints the chosen instant on stderr."""
    if instant.meaning:
        note(f"thermocline: {instant.meaning}")
    return instant.ms


def parse_time(text: str) -> Instant:
    """The instant of `@…`. Raises InvalidRequest."""
    if not text.startswith("@"):
        raise InvalidRequest(f"{text!r} is not a time; write {TIME_HELP}")
    if text[1:].isascii() and text[1:].isdigit():
        return _of_digits(text)
    try:
        found = datetime.fromisoformat(_DAY_AND_ZONE.sub(r"\1T00:00\2", text[1:]))
        zoned = found if found.tzinfo else found.astimezone()
        ms = _milliseconds(zoned)
    except (ValueError, OverflowError, OSError) as refused:
        raise InvalidRequest(f"{text!r} is not a time ({refused}); write {TIME_HELP}") from None
    if ms < 0:
        raise InvalidRequest(f"{text!r} is before 1970; write a later time")
    if found.tzinfo:
        return Instant(ms)
    zone = zoned.tzname()
    return Instant(ms, f"{text} is local time, {zoned.isoformat()} ({zone}); end it with Z or +01:00 for another zone")


def _of_digits(text: str) -> Instant:
    ms = int(text[1:]) if len(text) < 20 else _MS_MAX + 1  # int() refuses more than 4 300 digits
    if ms > _MS_MAX:
        raise InvalidRequest(f"{text!r} is after the year 9999; write {TIME_HELP}")
    if ms in _LIKE_SECONDS:
        shown = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
        return Instant(ms, f"{text} is in milliseconds, {shown}; were seconds meant? Then write {text}000")
    return Instant(ms)


def _milliseconds(zoned: datetime) -> int:
    since = zoned - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
