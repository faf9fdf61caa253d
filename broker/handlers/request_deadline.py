"""When a request that waits is answered, whatever came true by then.

Owns the bound on the time-out that a client gives. Must not know what is waited for.
"""

from __future__ import annotations

import asyncio
from typing import Final

_TIMEOUT_MAX_S: Final = 120.0  # what a client may make a request wait


def deadline_s(timeout_ms: int) -> float:
    """The loop's time at which a request with this time-out is answered."""
    return asyncio.get_running_loop().time() + min(max(timeout_ms, 0) / 1000, _TIMEOUT_MAX_S)
