"""Decides from polls of `lease.json` whether the lease is free. Pure.

- The lease is free when *successful* polls saw no change of its counter for one lease duration of this process's
  monotonic clock (C19). Failed polls do not count, because otherwise every broker would claim after an outage.
- A released lease is free at once. A claim counts as a bump: the lease of the new controller lasts one lease duration
  from the claim on.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class LeaseSight(Enum):
    WATCHING = "watching"  # successful polls cover less than one lease duration
    STILL = "still"  # the counter did not change for one lease duration, or there is no lease
    RELEASED = "released"
    MOVING = "moving"  # the counter still moved after two lease durations


class Lease(msgspec.Struct, frozen=True):
    """Content of `lease.json`. The active controller bumps `counter`, and sets `released` at the end of a clean stop.
    `lease_ms`: time of silence of its holder before a takeover; a watcher with a shorter lease also waits for this
    time. `cluster_id`: the id under which a lost `cluster.json` is rebuilt; empty when older software wrote the
    lease."""

    controller_epoch: int
    incarnation: str
    counter: int
    released: bool = False
    lease_ms: int = 0
    cluster_id: str = ""


class LeaseWatch:
    """Receives every successful poll; `sight` is the conclusion. `lease_s`: length of a lease in seconds."""

    __slots__ = (
        "_epoch",
        "_last",
        "_lease_s",
        "_look_began_at",
        "_moved_at",
        "_of_holder_s",
        "_polled_at",
        "_started_at",
        "has_moved",
        "sight",
    )

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._last: Lease | None = None
        self._epoch = 0  # the controller's epoch in the last poll
        self._started_at: float | None = None
        self._moved_at = 0.0
        self._polled_at = 0.0
        self._look_began_at: float | None = None  # when the poll in flight, or the failed one, began
        self._of_holder_s = lease_s
        self.sight = LeaseSight.WATCHING
        self.has_moved = False
        """Whether the last polled controller bumped the counter between two polls. If so, the controller serves this
        bucket, and this bucket is not a copy."""

    def poll_begins(self, now_s: float) -> None:
        """A poll begins at monotonic `now_s`. If it succeeds, `polled` gets the same time."""
        self._look_began_at = now_s

    def polled(self, lease: Lease | None, now_s: float, controller_epoch: int = 0) -> LeaseSight:
        """A poll succeeded at monotonic `now_s` and read `lease`; None: there is no lease of the controller that
        `cluster.json` names, of epoch `controller_epoch`."""
        self._look_began_at = None
        if self._started_at is None:
            self._started_at = self._moved_at = self._polled_at = now_s
            self._last = lease
        # The holder's duration counts: a watcher with a shorter configured lease must not replace a healthy holder.
        lease_s = self._lease_s if lease is None else max(self._lease_s, lease.lease_ms / 1000)
        self._of_holder_s = lease_s
        # A gap between polls longer than a lease means that this process slept: earlier polls do not count.
        slept = now_s - self._polled_at > lease_s
        self._polled_at = now_s
        if lease != self._last or slept or controller_epoch > self._epoch:
            self._moved_at = now_s
        if controller_epoch != self._epoch:
            self.has_moved = False
        elif lease is not None and lease.controller_epoch == controller_epoch:
            self.has_moved |= self._last is None or lease.counter > self._last.counter
        self._last, self._epoch = lease, controller_epoch
        if lease is not None and lease.released:
            self.sight = LeaseSight.RELEASED
        elif now_s - self._moved_at >= lease_s:
            self.sight = LeaseSight.STILL
        elif now_s - self._started_at >= 2 * lease_s:
            self.sight = LeaseSight.MOVING
        else:
            self.sight = LeaseSight.WATCHING
        return self.sight

    @property
    def stood_s(self) -> float:
        """Seconds without a change of the counter, as seen by successful polls."""
        return self._polled_at - self._moved_at

    def no_claim_s(self, now_s: float) -> float:
        """Seconds from now in which no poll can find the lease free. No poll shortens this time. If a poll comes more
        than one lease duration after the last poll, the time starts again. A poll in flight counts from its
        beginning."""
        began_s = now_s if self._look_began_at is None else self._look_began_at
        if self._started_at is None or began_s - self._polled_at > self._of_holder_s:
            return self._lease_s
        return max(self._moved_at + self._of_holder_s - now_s, 0.0)

    def left_s(self) -> tuple[float, float]:
        """Seconds from the last poll until an unchanged lease counts as free, and until a changing lease counts as held
        by another broker."""
        still = self._moved_at + self._of_holder_s - self._polled_at
        moving = (self._started_at or 0.0) + 2 * self._of_holder_s - self._polled_at
        return max(still, 0.0), max(moving, 0.0)
