"""Ends transactions that no coordinator will end by itself (TX10, TX31 to TX35): transactions with a declared gap, and
transactions open for longer than any time-out allows.

For group offsets it also ends transactions that were restored with a snapshot and are not in the log (TX12).

The outcome is looked up first in the footers of the partition's objects, then at the coordinators. A transaction that
no coordinator knows is aborted and logged. While a coordinator is unavailable the partition serves, and its last stable
offset does not advance.

An election may happen during a round. A marker is therefore appended only for the queried transaction, and only if this
broker still leads the partition in the leader epoch of the query.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

from broker.partition.leading.leader_replica import LeaderReplica
from broker.transactions.interfaces import Decision, TransactionalPartition, TransactionOutcomes
from coldstore.segments.segment_object import TransactionOutcome
from logformat.errors import ThermoclineError
from logformat.transaction_marker import TransactionMarker
from seams.clock import Clock
from tiering.opening.bucket_outcomes import decided_in_bucket

log = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
OVERDUE_MS: Final = 60_000  # after the longest time-out; the coordinator's own abort was sent long before
_AT_ONCE: Final = 8  # partitions checked concurrently
_ROUND_MAX: Final = 1_000  # transactions of one partition in a round
_ASK_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = (5.0, 60.0)  # first and longest pause of a partition after a missing answer


class OpenEnded:
    """The service of one broker. `partitions`: the partitions that it leads. `timeout_max_ms`:
    transaction.max.timeout.ms. `restored` returns the restored transactions of a partition (topic, index): they are in
    a snapshot but perhaps not in the log. The result has the epochs by producer id; it is None while the partition
    loads. A producer is removed when its marker is appended.
    """

    def __init__(
        self,
        partitions: Mapping[tuple[str, int], LeaderReplica],
        outcomes: TransactionOutcomes,
        clock: Clock,
        timeout_max_ms: Callable[[], int],
        restored: Callable[[str, int], MutableMapping[int, int] | None] = lambda *_: {},
    ) -> None:
        self._partitions = partitions
        self._outcomes = outcomes
        self._clock = clock
        self._timeout_max_ms = timeout_max_ms
        self._restored = restored
        self._paused: dict[LeaderReplica, tuple[float, float]] = {}  # end of the pause and its length, in seconds

    async def keep(self) -> None:
        """Check all led partitions periodically until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self.round()

    async def round(self) -> None:
        """End the transactions that can be ended now."""
        due = [partition for partition in self._partitions.values() if self._is_due(partition)]
        self._paused = {of: pause for of, pause in self._paused.items() if of.leading}
        for at in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*[self._try(partition) for partition in due[at : at + _AT_ONCE]])

    def overdue(self, partition: LeaderReplica) -> list[int]:
        """Producers with a transaction that has been open for too long in this log. If the clock of this broker or of
        an earlier leader was set back, a transaction waits at most twice that time."""
        transactions, now_ms = partition.log.producers.transactions, self._clock.wall_ms()
        transactions.begun_by(now_ms)
        return transactions.begun_before(now_ms - self._timeout_max_ms() - OVERDUE_MS)

    def _is_due(self, partition: LeaderReplica) -> bool:
        restored = self._restored(partition.topic, partition.index)
        if not partition.leading or restored is None:
            return False
        if not (
            partition.undecided
            or partition.awaits_coordinators
            or partition.log.producers.transactions.first_offsets
            or restored
        ):
            return False
        until_s, _ = self._paused.get(partition, (0.0, 0.0))
        if self._clock.monotonic_s() < until_s:
            return False
        is_due = partition.undecided or partition.awaits_coordinators or self.overdue(partition)
        return bool(is_due or self._closed_in_log(partition))

    def _closed_in_log(self, partition: LeaderReplica) -> list[tuple[int, int]]:
        """Producer id and epoch of the restored transactions that are not open in the log."""
        opened = partition.log.producers.transactions.first_offsets
        restored = self._restored(partition.topic, partition.index) or {}
        return [(of_id, epoch) for of_id, epoch in restored.items() if of_id not in opened]

    async def _try(self, partition: LeaderReplica) -> None:
        why: object = "a coordinator does not answer, or did not end it yet"
        try:
            async with asyncio.timeout(_ASK_TIMEOUT_S):
                is_done = await self._end(partition)
        except (ThermoclineError, OSError, TimeoutError) as failure:
            is_done, why = False, failure
        if is_done:
            self._paused.pop(partition, None)
        elif partition.leading:
            pause_s = min(max(2 * self._paused.get(partition, (0.0, 0.0))[1], _PAUSE_S[0]), _PAUSE_S[1])
            self._paused[partition] = self._clock.monotonic_s() + pause_s, pause_s
            name = f"{partition.topic}-{partition.index}"
            log.warning("%s: the outcome of a transaction is not known yet: %s", name, why)

    async def _end(self, partition: LeaderReplica) -> bool:
        """End the partition's transactions. Returns whether nothing is left to do now. Raises the errors of
        `decided_in_bucket` and `append_markers`."""
        epoch = partition.leader_epoch
        of = TransactionalPartition(partition.topic, partition.topic_id, partition.index)
        if partition.awaits_coordinators:
            if not await self._outcomes.abort_ongoing(of):
                return False
            if _is_over(partition, epoch):
                return True
            if not await self._end_restored(partition, of):
                # A rewrite will write these transactions to the log, so they must end before producers continue.
                return False
            if _is_over(partition, epoch):
                return True
            partition.awaits_coordinators = False
        transactions, producers = partition.log.producers.transactions, partition.log.producers
        overdue = self.overdue(partition)
        wanted = [of_id for of_id in transactions.first_offsets if of_id in partition.undecided] + overdue
        in_bucket: dict[tuple[int, int], TransactionOutcome] = {}
        firsts = [transactions.first_offsets[of_id] for of_id in wanted]
        if firsts and min(firsts) < partition.tier.remote_end_offset:
            found = await decided_in_bucket(partition.tier.partition_state)
            in_bucket = {(one.producer_id, one.first_offset): one.outcome for one in found}
        is_done = len(wanted) <= _ROUND_MAX
        for producer_id, first_offset in list(zip(wanted, firsts, strict=True))[:_ROUND_MAX]:
            if _is_over(partition, epoch):
                return True
            decision = _DECISIONS.get(in_bucket.get((producer_id, first_offset)))
            producer_epoch = producers.epoch_of(producer_id)
            if decision is None:
                # An overdue transaction may be young: this broker's clock was set forward, or its coordinator allows
                # longer time-outs. So an ongoing one without a gap is left to the time-out of its coordinator.
                aborts = producer_id in partition.undecided
                decision = await self._outcomes.decide(of, producer_id, producer_epoch, aborts=aborts)
            if _is_over(partition, epoch):
                return True
            if transactions.first_offsets.get(producer_id) != first_offset or producers.epoch_of(producer_id) != (
                producer_epoch
            ):
                continue  # the transaction was ended meanwhile
            if decision is None or decision is Decision.ONGOING:
                is_done = False
                continue
            self._append(partition, producer_id, producer_epoch, f"began at offset {first_offset}", decision)
        for producer_id in [of_id for of_id in partition.undecided if of_id not in transactions.first_offsets]:
            del partition.undecided[producer_id]
        return await self._end_restored(partition, of) and is_done

    async def _end_restored(self, partition: LeaderReplica, of: TransactionalPartition) -> bool:
        """End restored transactions that are not open in the log. Returns whether nothing is left to do now. Raises the
        errors of `append_markers`."""
        epoch = partition.leader_epoch
        found = self._closed_in_log(partition)
        is_done = len(found) <= _ROUND_MAX
        for producer_id, producer_epoch in found[:_ROUND_MAX]:
            decision = await self._outcomes.decide(of, producer_id, producer_epoch, aborts=True)
            if _is_over(partition, epoch):
                return True
            if (producer_id, producer_epoch) not in self._closed_in_log(partition):
                continue  # it was ended meanwhile, or the producer continues
            if decision is None or decision is Decision.ONGOING:
                is_done = False
                continue
            known_epoch = max(producer_epoch, partition.log.producers.epoch_of(producer_id))
            self._append(partition, producer_id, known_epoch, "was restored from a snapshot", decision)
            if (restored := self._restored(partition.topic, partition.index)) is not None:
                restored.pop(producer_id, None)
        return is_done

    def _append(
        self, partition: LeaderReplica, producer_id: int, producer_epoch: int, which: str, decision: Decision
    ) -> None:
        """Append a marker by this leader. It has the greatest known coordinator epoch, so that it does not lower a
        fence (TX30)."""
        coordinator_epoch = max(partition.log.producers.coordinator_epoch_of(producer_id), 0)
        is_commit = decision is Decision.COMMITTED
        marker = TransactionMarker(producer_id, producer_epoch, is_commit, coordinator_epoch)
        (result,) = partition.append_markers([marker], self._clock.wall_ms())
        if not isinstance(result, int):
            raise result
        log.warning(
            "%s-%d: the transaction of producer %d that %s is %s by this leader%s",
            partition.topic,
            partition.index,
            producer_id,
            which,
            "committed" if is_commit else "aborted",
            "; no coordinator knows its outcome" if decision is Decision.UNKNOWN else "",
        )


_DECISIONS: Final[Mapping[TransactionOutcome | None, Decision]] = {
    TransactionOutcome.COMMITTED: Decision.COMMITTED,
    TransactionOutcome.ABORTED: Decision.ABORTED,
}


def _is_over(partition: LeaderReplica, epoch: int) -> bool:
    return not partition.leading or partition.leader_epoch != epoch
