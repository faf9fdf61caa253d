"""Event loop time of one request, in seconds: the time of its dispatch and of each step of its task. Waits do not
count.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from broker.net.dispatch import Answer


class LoopTime:
    """The time of one request. It runs between `start` and `stop`, in one turn of the loop."""

    __slots__ = ("_began_s", "_now_s", "_total_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._total_s = 0.0
        self._began_s: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds up to now."""
        return self._total_s if self._began_s is None else self._total_s + self._now_s() - self._began_s

    def start(self) -> bool:
        """Start the clock. Returns False if the clock is running already. Then the caller that started it stops it."""
        if self._began_s is not None:
            return False
        self._began_s = self._now_s()
        return True

    def stop(self) -> None:
        self._total_s = self.seconds
        self._began_s = None

    def timed(self, work: Coroutine[Any, Any, Answer]) -> Coroutine[Any, Any, Answer]:
        """A coroutine that runs `work` and measures every step."""
        return _Timed(self, work)


class _Timed(Coroutine[Any, Any, Answer]):
    __slots__ = ("_time", "_work")

    def __init__(self, time: LoopTime, work: Coroutine[Any, Any, Answer]) -> None:
        self._time = time
        self._work = work

    def send(self, value: Any) -> Any:
        self._time.start()
        try:
            return self._work.send(value)
        finally:
            self._time.stop()

    def throw(self, *failure: Any) -> Any:
        self._time.start()
        try:
            return self._work.throw(*failure)
        finally:
            self._time.stop()

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Answer]:
        return self._work.__await__()
