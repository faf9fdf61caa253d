"""Crash points of jobs: SIGKILL of a driver or worker between two steps whose order matters. For tests.

The broker's crash points are in `seams.crash_points`. Nothing is armed without `THERMOCLINE_TESTING=true`. Workers read
the environment themselves, because Spark starts them.
"""

from __future__ import annotations

import os
import signal
from typing import Final

POINTS: Final[dict[str, str]] = {
    "archive.planned": "driver: the step is chosen, but nothing was written",
    "archive.file_open": "worker: a data file was begun, but it is not whole",
    "archive.file_written": "worker: a data file is whole, but the driver does not know it",
    "archive.files_written": "driver: every data file of the step is whole, but no table names them",
    "archive.dead_letters_committed": "driver: the dead-letter table has the step, but the table has not",
    "archive.committed": "driver: the table has the step, but the driver did not read it back",
    "archive.cleaned": "driver: leftovers of the step were deleted, but the next one has not begun",
    "compact.file_written": "worker: a merged file is whole, but the driver does not know it",
    "compact.files_written": "driver: every merged file is whole, but no table names them",
    "compact.committed": "driver: the table has the merged files, but the driver did not read it back",
    "scrub.object_read": "worker: an object was read and judged, but the driver does not know it",
}

CRASH_AT: Final = "THERMOCLINE_CRASH_AT"
TESTING: Final = "THERMOCLINE_TESTING"

_left: int | None = None


def reach(point: str) -> None:
    """Pass a point. If testing is on, the process is killed at the n-th pass of the point in
    `THERMOCLINE_CRASH_AT=<point>[:n]`.

    With a file name in `THERMOCLINE_CRASH_ONCE`, only the process that creates the file is killed.
    """
    global _left
    armed = os.environ.get(CRASH_AT)
    if armed is None or os.environ.get(TESTING) != "true":
        return
    name, _, count = armed.partition(":")
    if name != point:
        return
    _left = (int(count or 1) if _left is None else _left) - 1
    if _left > 0:
        return
    once = os.environ.get("THERMOCLINE_CRASH_ONCE")
    if once is not None:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    os.kill(os.getpid(), signal.SIGKILL)
