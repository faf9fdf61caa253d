"""Health of the broker for `/healthz` and `/readyz`: readiness, the present wait, and recent failures."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from seams.loop.tasks import Tasks

log = logging.getLogger(__name__)

_FAILURES_KEPT: Final = 20
_TELL_S: Final = 5.0


class Health:
    """The health of the broker. `is_ready` only between the ready line and the stop. The last 20 failures of background
    work remain visible."""

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
    """Reports the progress of long waits of a start or stop."""

    def __init__(self, health: Health, tasks: Tasks) -> None:
        self._health = health
        self._tasks = tasks

    @contextmanager
    def reporting(self, what: Callable[[], str]) -> Iterator[None]:
        """During the wait, `/readyz` shows `what`, and `what` is logged every 5 s."""

        async def report() -> None:
            while True:
                await asyncio.sleep(_TELL_S)
                self._health.starting(what())
                log.info("%s", self._health.waiting_for)

        self._health.starting(what())
        reporter = self._tasks.spawn("progress", report())
        try:
            yield
        finally:
            reporter.cancel()
