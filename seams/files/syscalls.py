"""System calls without a name in the standard library.

The interpreter's lock is kept, so only calls that do not block may be made.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Final

MACHINE: Final = platform.machine() if platform.system() == "Linux" and sys.maxsize > 1 << 32 else ""
"""Architecture whose system call numbers are known here; else empty."""

# Getting the lock back from a busy loop costs more than any call made here.
_LIBC: Final = ctypes.PyDLL(None, use_errno=True)


def call(number: int, *arguments: object) -> int:
    """Raises OSError with the call's errno."""
    result: int = _LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
