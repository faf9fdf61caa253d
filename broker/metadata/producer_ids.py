"""Producer ids: made from the broker epoch and a counter in memory. Pure.

An id is unique in the cluster, because its broker epoch was committed for one session only. The broker does not need a
store to allocate an id.
"""

from __future__ import annotations

from typing import Final

PER_EPOCH: Final = 1 << 36
BROKER_EPOCHS: Final = 1 << 27  # sessions whose ids fit an int64


class ProducerIds:
    def __init__(self, broker_epoch: int) -> None:
        self._next = broker_epoch * PER_EPOCH
        self._end = self._next + PER_EPOCH

    def give(self) -> int:
        """A new id, never given before."""
        given = self._next
        # At a million ids a second, the ids of a session last 19 hours. A broker answers InitProducerId more than a
        # hundred times slower.
        assert given < self._end, "the session has no producer ids left"
        self._next = given + 1
        return given


def first_epoch_above(end: int) -> int:
    """The first broker epoch whose producer ids are all at or above `end`."""
    return -(-end // PER_EPOCH)
