"""Log lines on stderr: text for people, JSON for collectors, with a rate limit. Times are UTC, in milliseconds.

With several brokers each line names its broker. One line of code logs at most `LINES_MAX` lines per minute; the next
line says how many lines were left out. Audit lines have a separate limit (`broker.security.audit`).
"""

from __future__ import annotations

import json
import logging
import time
from typing import Final

from broker.security import audit

LINES_MAX: Final = 10
WINDOW_S: Final = 60.0


def _utc(record: logging.LogRecord) -> str:
    seconds, fraction = divmod(record.created, 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(fraction * 1000):03d}Z"


class TextLines(logging.Formatter):
    """`2026-01-31T10:00:00.123Z WARNING broker.app: message`; each line begins with `broker` if given."""

    def __init__(self, broker: str | None = None) -> None:
        super().__init__()
        self._before = "" if broker is None else f"{broker} "

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_utc(record)} {record.levelname:7} {record.name}: {record.getMessage()}"
        whole = line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"
        return self._before + whole.replace("\n", f"\n{self._before}") if self._before else whole


class JsonLines(logging.Formatter):
    """One JSON object per line: `time level logger message`, and `exception` and `broker` if present."""

    def __init__(self, broker: str | None = None) -> None:
        super().__init__()
        self._broker = broker

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info is not None:
            shown["exception"] = self.formatException(record.exc_info)
        if self._broker is not None:
            shown["broker"] = self._broker
        return json.dumps(shown, ensure_ascii=False)


class NoFlood(logging.Filter):
    """Passes `LINES_MAX` records of one line of code in `WINDOW_S`, and counts the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[tuple[str, int], tuple[float, int]] = {}  # bounded by the lines of code that log

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == audit.LOGGER:
            return True
        place = (record.pathname, record.lineno)
        began_s, count = self._windows.get(place, (record.created, 0))
        if not 0 <= record.created - began_s < WINDOW_S:
            if count > LINES_MAX:
                record.msg = f"{record.getMessage()} ({count - LINES_MAX} lines like it were left out before)"
                record.args = None
            began_s, count = record.created, 0
        self._windows[place] = (began_s, count + 1)
        return count < LINES_MAX
