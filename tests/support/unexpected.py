"""Failures that nobody expected, caught where brokers tell them: in their log, with a trace.

Always true: what disks, stores and networks refuse is told without a trace (`broker.app._report`), so each record that
has one is a bug of ours: an assertion or any other exception, of a task, a callback or a handler.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from logformat.errors import ThermoclineError
from tests.sim.world.loop import PowerCut


class Unexpected(logging.Handler):
    """`found`: each with the place it comes from, at most once."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: dict[str, None] = {}
        self.traces: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        if failure is None or isinstance(failure, PowerCut | ThermoclineError | OSError):
            return
        where = traceback.extract_tb(failure.__traceback__)[-1:]
        at = f" at {where[0].filename.rpartition('/')[2]}:{where[0].lineno}" if where else ""
        text = f"{record.getMessage().partition(chr(10))[0]}: {failure!r}{at}"
        if text not in self.found:
            self.found[text] = None
            self.traces.append("".join(traceback.format_exception(failure)))


@contextmanager
def unexpected_failures() -> Iterator[Unexpected]:
    """While it is entered errors with a trace are kept; nothing is printed of what brokers log, but where all of it is
    to be."""
    root, handler = logging.getLogger(), Unexpected()
    handlers, level = root.handlers[:], root.level
    is_verbose = logging.NOTSET < level <= logging.INFO
    root.handlers = [*handlers, handler] if is_verbose else [handler]
    root.level = level if is_verbose else logging.ERROR
    logging.root.manager._clear_cache()  # type: ignore[attr-defined]  # levels are cached by each logger
    try:
        yield handler
    finally:
        root.handlers, root.level = handlers, level
        logging.root.manager._clear_cache()  # type: ignore[attr-defined]
