"""How much memory this machine has. Owns that question alone; must not know what the figure is used for."""

from __future__ import annotations

import os


def memory_bytes() -> int:
    """Physical memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
