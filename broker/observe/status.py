"""Health in words: is this broker ready, and what failed lately.

Owns the answers of `/healthz` and `/readyz`. Always true: ready only between the ready line and the stop; failures of
background work stay visible until something newer pushes them out. Must not know HTTP.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_FAILURES_KEPT: Final = 20


class Health:
    """What the broker is doing while it is not ready, and the last failures of its background work."""

    def __init__(self) -> None:
        self.is_ready = False
        self.waiting_for = "starting"
        self.failures: deque[str] = deque(maxlen=_FAILURES_KEPT)

    def starting(self, waiting_for: str) -> None:
        self.is_ready = False
        self.waiting_for = waiting_for

    def ready(self) -> None:
        self.is_ready = True
        self.waiting_for = ""

    def failed(self, name: str, failure: BaseException) -> None:
        self.failures.append(f"{name}: {type(failure).__name__}: {failure}")
