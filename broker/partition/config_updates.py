"""Every partition obeys other settings of the broker, some topics a turn of the loop.

Owns which topics are behind. Always true: settings that change meanwhile begin it anew, so that at its end each topic
obeys the last ones; the loop gets its turns in between. Must not know what settings are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from seams.tasks import Tasks
from seams.turns import next_turn

_TOPICS_PER_TURN: Final = 50


class ConfigUpdates:
    """`topics`: ids, as they are at any time; `configure` lets one obey, if it is still there."""

    def __init__(self, topics: Collection[str], configure: Callable[[str], None], tasks: Tasks) -> None:
        self._topics = topics
        self._configure = configure
        self._tasks = tasks
        self._behind: deque[str] = deque()

    def all(self) -> None:
        """Begin. 5 000 partitions take a tenth of a second; the first topics obey when this returns."""
        is_running = bool(self._behind)
        self._behind = deque(self._topics)
        self._some()
        if self._behind and not is_running:
            self._tasks.spawn("follow configs", self._rest())

    def _some(self) -> None:
        for _ in range(min(_TOPICS_PER_TURN, len(self._behind))):
            self._configure(self._behind.popleft())

    async def _rest(self) -> None:
        while self._behind:
            await next_turn()
            self._some()
