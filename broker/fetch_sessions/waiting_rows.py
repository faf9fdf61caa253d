"""Bound on the partitions that waiting fetches of clients name together.

A waiting fetch keeps objects of about 400 bytes for each partition of its request, up to a minute, even if its
connection is gone. A fetch above the bound is answered at once, with the records that there are, and its connection
pauses. Small fetches always wait: `max.connections` bounds their memory, 40 KiB each. So do fetches of replicas.
"""

from __future__ import annotations

from typing import Final

from broker.wire.messages import FetchRequest

ROWS_MAX: Final = 200_000
"""80 MB; a session names in each fetch only the partitions that changed."""
SMALL: Final = 100
PAUSE_MS: Final = 100
"""Longest pause after a fetch that could not wait."""


def rows_of(request: FetchRequest) -> int:
    """Partitions that the request names; 0 for a small request."""
    rows = sum(len(topic.partitions) for topic in request.topics)
    rows += sum(len(topic.partitions) for topic in request.forgotten_topics_data)
    return rows if rows > SMALL else 0


class WaitingRows:
    """The count of one broker. Each `take` is followed by one `give`."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self.count = 0

    def has_room(self, rows: int) -> bool:
        return rows == 0 or self.count + rows <= self._rows_max

    def take(self, rows: int) -> None:
        self.count += rows

    def give(self, rows: int) -> None:
        self.count -= rows
        assert self.count >= 0, "more rows were given back than taken"
