"""When `consume` waits for records that are there: the first ten seconds of silence, and why the broker is silent.

Owns the count of those seconds. Always true: a silence is told once, on stderr, and a partition that was read to its
end is not silent. (librdkafka asks again and again and says nothing.) Must not know how records are read.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from thermocline.cli.terminal.output import note
from thermocline.cli.tier.broker_says import said_by_broker

TOLD_AFTER_S = 10.0
_NAMED_MAX = 3


class Silence:
    """Of one topic, as one command reads it."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._since_s = time.monotonic()
        self._told = False

    def broken(self) -> None:
        """A record came, or nothing was to come."""
        self._since_s, self._told = time.monotonic(), False

    def lasts(self, partitions: Collection[int]) -> None:
        """Nothing came from these partitions, which have records or were not asked for their end yet."""
        if self._told or time.monotonic() - self._since_s < TOLD_AFTER_S:
            return
        self._told = True
        first = [f"{self._topic}-{partition}" for partition in sorted(partitions)[:_NAMED_MAX]]
        more = f" and {len(partitions) - _NAMED_MAX} more" if len(partitions) > _NAMED_MAX else ""
        why = said_by_broker(self._bootstrap, self._topic) or "; the broker names no reason: see its log"
        note(f"thermocline: nothing came from {', '.join(first)}{more} for {TOLD_AFTER_S:.0f} s{why}; still waiting")
