"""What a watcher may conclude from polling `lease.json`: a pure machine.

Owns the rule "the counter stood still over a whole lease of *successful* polls, by my own monotonic clock" (C19:
after an outage everyone would think so). Always true: failed polls prove nothing; a released lease is free at once; a
claim is a sign of life, too: who claimed has a whole lease from then on, though it has not bumped yet.
Must not know the store.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class LeaseSight(Enum):
    """What watching `lease.json` has shown so far."""

    WATCHING = "watching"  # not yet watched over a whole lease by successful polls
    STILL = "still"  # the counter stood still over a whole lease, or there is no lease
    RELEASED = "released"
    MOVING = "moving"  # it still moved after two leases


class Lease(msgspec.Struct, frozen=True):
    """Content of `lease.json`.

    `counter` is bumped by the active controller; `released` is its last act of a clean stop.
    """

    controller_epoch: int
    incarnation: str
    counter: int
    released: bool = False
    lease_ms: int = 0
    """How long its holder must be silent before anybody may take over.

    A watcher with a shorter lease waits for this.
    """
    cluster_id: str = ""
    """Whose it is; empty: written by older software. A lost `cluster.json` is made anew in its name."""


class LeaseWatch:
    """Feed it every successful poll; `sight` says what is known. `lease_s`: length of a lease in seconds."""

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
        self._epoch = 0  # of the controller, as polled last
        self._started_at: float | None = None
        self._moved_at = 0.0
        self._polled_at = 0.0
        self._look_began_at: float | None = None  # of a look under way, or of one that failed
        self._of_holder_s = lease_s
        self.sight = LeaseSight.WATCHING
        self.has_moved = False
        """Whether the controller that was polled last bumped the counter between two polls: this bucket is the one that
        it serves, and no copy."""

    def look_begins(self, now_s: float) -> None:
        """A look at the lease begins at monotonic `now_s`; where it succeeds, `polled` gets the same time."""
        self._look_began_at = now_s

    def polled(self, lease: Lease | None, now_s: float, controller_epoch: int = 0) -> LeaseSight:
        """A poll succeeded at monotonic `now_s` and read `lease` (None: there is none, or none of the controller that
        `cluster.json` names, which is of `controller_epoch`)."""
        self._look_began_at = None
        if self._started_at is None:
            self._started_at = self._moved_at = self._polled_at = now_s
            self._last = lease
        # The length belongs to the bucket: a watcher configured with a shorter one must not oust a healthy holder.
        lease_s = self._lease_s if lease is None else max(self._lease_s, lease.lease_ms / 1000)
        self._of_holder_s = lease_s
        # A gap between polls longer than a lease means we slept: what we saw before it says nothing about now.
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
        """Seconds for which successful polls have seen the counter stand still."""
        return self._polled_at - self._moved_at

    def no_claim_s(self, now_s: float) -> float:
        """For how many seconds from now the lease cannot be seen to stand still: no poll brings that forward; where the
        last one lies a lease back, the next one begins anew. A look under way counts from when it began."""
        began_s = now_s if self._look_began_at is None else self._look_began_at
        if self._started_at is None or began_s - self._polled_at > self._of_holder_s:
            return self._lease_s
        return max(self._moved_at + self._of_holder_s - now_s, 0.0)

    def left_s(self) -> tuple[float, float]:
        """Seconds from the last poll until the lease counts as still, when it does not move, and until it counts as
        another's, when it goes on to."""
        still = self._moved_at + self._of_holder_s - self._polled_at
        moving = (self._started_at or 0.0) + 2 * self._of_holder_s - self._polled_at
        return max(still, 0.0), max(moving, 0.0)
