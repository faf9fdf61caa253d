"""`--watch`: repeats a command's output every second until ^C. A terminal is redrawn in place."""

from __future__ import annotations

import locale
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from thermocline.cli.terminal.outcome import Exit

_INTERVAL_S: Final = 1.0
_HOME, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K\n", "\x1b[J"  # overwrite without clearing, which would flicker


def fitting(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """The lines that fit a terminal of `rows`, counting wrapped lines, so that the head does not scroll away. `rows` is
    0 if unknown.
    """
    height = [max(-(-len(line) // columns), 1) if columns > 0 else 1 for line in lines]
    if rows <= 0 or sum(height) < rows:  # the cursor needs a row
        return list(lines)
    shown, left = [], rows - 2
    for line, taken in zip(lines, height, strict=True):
        if taken > left:
            break
        shown.append(line)
        left -= taken
    return [*shown, f"… and {len(lines) - len(shown)} lines more: enlarge the window, or leave --watch out"[:columns]]


def is_ascii_only() -> bool:
    """Whether the terminal cannot draw block characters."""
    is_utf_8 = locale.getencoding().lower().replace("-", "") == "utf8"
    return not is_utf_8 or os.environ.get("TERM", "") in ("", "dumb", "linux")


def show(lines: Callable[[], list[str]], *, watch: bool, redraw: bool) -> int:
    """Print the lines once, or with `watch` until stopped; `redraw`: overwrite the previous output."""
    over = watch and redraw and sys.stdout.isatty()
    try:
        while True:
            text = "".join(f"{line}\n" for line in lines())
            if over:
                shown = fitting(text.splitlines(), *os.get_terminal_size(sys.stdout.fileno()))
                text = _HOME + "".join(f"{line}{_END_LINE}" for line in shown) + _END_SCREEN
            print(text, end="", flush=True)
            if not watch:
                return Exit.DONE
            time.sleep(_INTERVAL_S)
    except KeyboardInterrupt:
        return Exit.DONE
