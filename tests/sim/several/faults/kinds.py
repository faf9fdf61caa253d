"""What can break in a world of several brokers, and for how long. Owns names and times, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Fault kinds; those of the bucket have their own names in `tests.support.store.faulty_store`."""

    KILL = "kill -9"
    RESTART = "clean restart"
    POWER_CUT = "power cut"
    PAUSE = "pause"
    DISK_LOSS = "disk loss"
    REPLACE = "replaced by an empty directory"
    FULL = "disk full"
    FSYNC = "fsync EIO"
    ISOLATED = "partition, both ways"
    ONE_WAY = "partition, one way"
    SLOW_LINK = "partition, slow"
    FLAPPING = "partition, flapping"
    STORE_AWAY = "store away for one"
    OUTAGE = "bucket outage"
    TOXIC = "bucket toxics"
    SLOW = "slow fsync"
    CLOCK = "wall clock jump"
    CUT = "connection cut"
    MINIMUM = "another min.insync.replicas"
    CONFIGS = "other topic configs"
    MOVE = "reassignment"
    LAG = "a follower that lags"
    DRAIN = "drained, and back empty"
    UNREADABLE = "disk refuses a log"
    DENIED = "bucket denies one"
    ROTTEN = "a log damaged among whole ones"


LASTING = (
    *(Kind.ISOLATED, Kind.ONE_WAY, Kind.SLOW_LINK, Kind.FLAPPING, Kind.LAG),
    *(Kind.STORE_AWAY, Kind.OUTAGE, Kind.TOXIC, Kind.SLOW, Kind.FULL, Kind.FSYNC),
    *(Kind.DENIED, Kind.UNREADABLE),
)
"""What comes first, so that processes die and start among it."""

OF_PROCESSES = (
    *(Kind.KILL, Kind.RESTART, Kind.POWER_CUT, Kind.PAUSE),
    *(Kind.DISK_LOSS, Kind.REPLACE),
)
OF_REFUSALS = (Kind.UNREADABLE, Kind.DENIED)
DRAWN_APART = (Kind.CONFIGS, Kind.MOVE, Kind.LAG, Kind.DRAIN, *OF_REFUSALS, Kind.ROTTEN)
"""Kinds that came later: whether a run has them is drawn by an rng of their own, so that all else stays as it was."""

OF_LINKS = (Kind.ISOLATED, Kind.ONE_WAY, Kind.SLOW_LINK, Kind.FLAPPING)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: how long a broker is down or paused, and how long faults last until the next. A session of 1.5 s, a lag
    of 3 s and a lease of 4 s outlive some of each."""

    down: tuple[tuple[float, float], ...] = ((0.05, 0.5), (1.0, 3.0), (4.0, 9.0))
    paused: tuple[tuple[float, float], ...] = ((0.1, 0.8), (1.0, 3.0), (4.0, 9.0))
    until_next: tuple[tuple[float, float], ...] = ((0.4, 1.5), (1.5, 5.0), (5.0, 10.0))
