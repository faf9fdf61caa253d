"""Waiting for something to become true, in another process or on the loop, with a deadline and no fixed sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.05


def wait_until(condition: Callable[[], T], what: str, timeout_s: float = 60.0) -> T:
    """Poll until `condition()` is true and return what it returned; AssertionError names `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what} (last seen: {found!r})"
        time.sleep(POLL_S)


async def until(condition: Callable[[], bool], most_s: float = 120.0) -> float:
    """Seconds of the loop until it holds; TimeoutError after `most_s`."""
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(most_s):
        while not condition():
            await asyncio.sleep(POLL_S)
    return asyncio.get_running_loop().time() - began
