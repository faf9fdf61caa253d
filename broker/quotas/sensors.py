"""Sensors, which measure the use of each client. A kind of quota has at most `SENSORS_MAX` of them.

A sensor expires after an hour without use, as in Kafka. Above the bound the least recently used sensor is dropped, and
its client starts with an unused quota. Clients that always send new ids thus cost time, not memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from broker.quotas.limits import SensorKey

SENSORS_MAX: Final = 10_000  # 1.7 KB each with eleven windows: 17 MB at most
IDLE_MS_MAX: Final = 3_600_000

T = TypeVar("T")


class Sensors(Generic[T]):
    __slots__ = ("_count_max", "_found")

    def __init__(self, count_max: int = SENSORS_MAX) -> None:
        self._count_max = count_max
        self._found: OrderedDict[SensorKey, tuple[int, T]] = OrderedDict()  # in the order of their last use

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: SensorKey, now_ms: int, make: Callable[[], T]) -> T:
        """The sensor of `key`, created if there is none. `now_ms` never goes back."""
        found = self._found
        used = found.get(key)
        sensor = make() if used is None or now_ms - used[0] >= IDLE_MS_MAX else used[1]
        found[key] = now_ms, sensor
        found.move_to_end(key)
        if used is None:
            self._forget(now_ms)
        return sensor

    def clear(self) -> None:
        self._found.clear()

    def _forget(self, now_ms: int) -> None:
        """Drop at most two idle or surplus sensors. This runs once for each new sensor, so idle sensors disappear
        faster than new ones appear."""
        found = self._found
        for _ in range(2):
            oldest = next(iter(found))
            if len(found) <= self._count_max and now_ms - found[oldest][0] < IDLE_MS_MAX:
                break
            del found[oldest]
