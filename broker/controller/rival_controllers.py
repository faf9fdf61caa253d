"""Whether another broker may have become the controller by now, as the one of an epoch can know (R25). Pure.

Owns two proofs that nobody has: nobody claims before the lease stood still for as long as it lasts, which counts from
its last bump; and each heartbeat says for how long its sender claims nothing (`membership.lease_watch`), so a
controller that cannot bump while the store is away from everybody goes by what they say. Always true: each proof ends
before the first claim can land that it rules out. Must not know clocks, nor what follows.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.config.times import ClusterTimes


class RivalControllers:
    """Of one controller epoch. All times are seconds of the boot clock. `bumped_s`: when the claim was sent, or before;
    −inf: that is not known. `others`, of each call: the other brokers in session."""

    def __init__(self, bumped_s: float, times: ClusterTimes) -> None:
        self._bumped_s = bumped_s
        self._late_s = float("-inf")  # when a bump was sent that proved nothing
        self._interval_s = times.interval_s
        # Who gives the lease away before it is over ends nobody's session, so that is the shorter of both.
        self._proof_s = min(times.lease_s, times.session_s)
        self._free_s: dict[int, float] = {}  # from when on each may claim, as it said last

    def heard(self, node_id: int, no_claim_s: float, now_s: float) -> None:
        """A broker in session said that it claims nothing for so long."""
        # A read of the lease that was under way then counts from when it began: an interval before, at most.
        self._free_s[node_id] = now_s + min(no_claim_s, self._proof_s) - self._interval_s

    def bumped(self, sent_s: float, others: Collection[int], now_s: float) -> None:
        """The lease was bumped, by what was sent at `sent_s`, after `cluster.json` was read there."""
        if self.may_have_claimed(others, now_s):
            # Who read the lease just before this one may be about to claim: only the next one shows that nobody did.
            since_s = sent_s - self._late_s
            if since_s >= self._proof_s:
                self._late_s = sent_s
            if not self._interval_s / 2 <= since_s < self._proof_s:
                return
        self._bumped_s = sent_s

    def may_have_claimed(self, others: Collection[int], now_s: float) -> bool:
        """Whether one of them can have."""
        if now_s - self._bumped_s < self._proof_s:
            return False
        return any(self._free_s.get(node_id, float("-inf")) <= now_s for node_id in others)
