"""The look of log lines on stderr: text for people, JSON for collectors.

Owns two formatters. Times are UTC, to the millisecond.
"""

from __future__ import annotations

import json
import logging
import time


def _utc(record: logging.LogRecord) -> str:
    seconds, fraction = divmod(record.created, 1)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(fraction * 1000):03d}Z"


class TextLines(logging.Formatter):
    """`2026-01-31T10:00:00.123Z WARNING broker.app: message`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_utc(record)} {record.levelname:7} {record.name}: {record.getMessage()}"
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


class JsonLines(logging.Formatter):
    """One JSON object a line: `time level logger message`, and `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info is not None:
            shown["exception"] = self.formatException(record.exc_info)
        return json.dumps(shown, ensure_ascii=False)
