"""Memory of this machine."""

from __future__ import annotations

import os


def memory_bytes() -> int:
    """Physical memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
