"""Health in words: is this broker ready, and what failed lately.

Owns the answers of `/healthz` and `/readyz`. Always true: ready only between the ready line and the stop; failures of
background work stay visible until something newer pushes them out; a long wait says every few seconds how far it is.
Must not know HTTP, nor what is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from seams.tasks import Tasks

log = logging.getLogger(__name__)

_FAILURES_KEPT: Final = 20
_TELL_S: Final = 5.0  # between two lines about one long wait


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


class Waits:
    """Long waits of a start or a stop, which count down."""

    def __init__(self, health: Health, tasks: Tasks) -> None:
        self._health = health
        self._tasks = tasks

    @contextmanager
    def counting(self, what: Callable[[], str]) -> Iterator[None]:
        """While this lasts, `what` stands in `/readyz`, and is logged every few seconds."""

        async def tell() -> None:
            while True:
                await asyncio.sleep(_TELL_S)
                self._health.starting(what())
                log.info("%s", self._health.waiting_for)

        self._health.starting(what())
        fitness_reporter = self._tasks.spawn("fitness_reporter", tell())
        try:
            yield
        finally:
            fitness_reporter.cancel()
