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
_CLEAR: Final = "\x1b[H\x1b[2J"  # cursor home, screen empty


def show(lines: Callable[[], list[str]], *, watch: bool, redraw: bool) -> int:
    """Print them once, or with `watch` until stopped; `redraw`: a picture, which takes the place of the one before."""
    clear = _CLEAR if watch and redraw and sys.stdout.isatty() else ""
    try:
        while True:
            text = "".join(f"{line}\n" for line in lines())
            print(f"{clear}{text}", end="", flush=True)
            if not watch:
                return Exit.DONE
            time.sleep(_INTERVAL_S)
    except KeyboardInterrupt:
        return Exit.DONE
