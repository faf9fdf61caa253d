"""`--watch`: what a command shows, again every second.

Owns the pace. Always true: ^C is how it is meant to end, so that is no failure; only a terminal is drawn over. Must not
know what is shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from thermocline.cli.outcome import Exit

_INTERVAL_S: Final = 1.0
_HOME, _END_LINE, _END_SCREEN = "\x1b[H", "\x1b[K\n", "\x1b[J"  # drawn over without an empty screen in between


def show(lines: Callable[[], list[str]], *, watch: bool, redraw: bool) -> int:
    """Print them once, or with `watch` until stopped; `redraw`: a picture, which takes the place of the one before."""
    over = watch and redraw and sys.stdout.isatty()
    try:
        while True:
            text = "".join(f"{line}\n" for line in lines())
            if over:
                text = _HOME + text.replace("\n", _END_LINE) + _END_SCREEN
            print(text, end="", flush=True)
            if not watch:
                return Exit.DONE
            time.sleep(_INTERVAL_S)
    except KeyboardInterrupt:
        return Exit.DONE
