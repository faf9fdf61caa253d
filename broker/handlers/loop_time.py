"""Seconds of the event loop that one request takes: its dispatch, and each step of the task that continues it. A wait
does not count."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any

from broker.net.dispatch import Answer


class LoopTime:
    """The time of one request, in seconds."""

    __slots__ = ("_now_s", "seconds")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.seconds = 0.0

    def timed(self, work: Coroutine[Any, Any, Answer]) -> Coroutine[Any, Any, Answer]:
        """The same work, each step of which counts."""
        return _Timed(self, self._now_s, work)


class _Timed(Coroutine[Any, Any, Answer]):
    __slots__ = ("_now_s", "_time", "_work")

    def __init__(self, time: LoopTime, now_s: Callable[[], float], work: Coroutine[Any, Any, Answer]) -> None:
        self._time = time
        self._now_s = now_s
        self._work = work

    def send(self, value: Any) -> Any:
        began_s = self._now_s()
        try:
            return self._work.send(value)
        finally:
            self._time.seconds += self._now_s() - began_s

    def throw(self, *failure: Any) -> Any:
        return self._work.throw(*failure)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Answer]:
        return self._work.__await__()
