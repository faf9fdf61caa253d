"""Leaders' proposals of other in-sync sets, on their way to the controller.

Owns when each led partition is looked at, and what is asked together. Always true: a proposal counts for its leader
before it is sent, and is forgotten only by what the image says (R17), whatever the answer was; one request at a time,
and none counts that it has no room for; a partition of which nothing is to be done costs nothing. Must not know which
set is right (`replication.proposal`), nor who the controller is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

from broker.error_codes import ErrorCode
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.registry import Registry
from broker.replication.isr_policy import Behind, PartitionProposal, wanted
from broker.replication.leader import Held
from logformat.errors import ThermoclineError
from seams.beats import Beats

log = logging.getLogger(__name__)

_AGAIN_MS: Final = 2_000  # until a proposal whose outcome is not applied is followed by one that settles it
_PROPOSALS_MAX: Final = 1_000  # in one request: a row of three is 60 bytes


class IsrProposals:
    """Of one broker. `propose` carries a request, of this session, to the controller; ThermoclineError and OSError: its
    outcome is not known, or it was refused."""

    def __init__(
        self,
        registry: Registry,
        propose: Callable[[list[PartitionProposal]], Awaitable[tuple[ErrorCode, ...]]],
        lag_ms_max: int,
        beats: Beats,
    ) -> None:
        self._registry = registry
        self._propose = propose
        self._lag_ms_max = lag_ms_max
        self._beats = beats
        self._behind: dict[LeaderReplica, tuple[int, Behind]] = {}  # with the leader epoch it is of
        self._proposed_ms: dict[LeaderReplica, int] = {}

    async def keep(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._beats.wait()
            proposals = self.look(int(loop.time() * 1000))
            if not proposals:
                continue
            try:
                codes = await self._propose(proposals)
            except (ThermoclineError, OSError) as unknown:  # ConnectionError and TimeoutError among them
                log.warning("%d in-sync sets were proposed, the outcome is not known: %s", len(proposals), unknown)
                continue
            for proposal, code in zip(proposals, codes, strict=True):
                if code is not ErrorCode.NONE:
                    log.info("in-sync set of %s-%d was refused: %s", *proposal.place, code.name)

    def look(self, now_ms: int) -> list[PartitionProposal]:
        """What is to be proposed now; it counts from now on."""
        for gone in [partition for partition in self._behind if not partition.leading]:
            self._forget(gone)
        # Alone in the set, each says with it that its unclean start is done: it serves when that is a row (R20).
        starting = (of for of in self._registry.starting.values() if self._may(of, now_ms))
        found = [
            self._propose_set(of, of.leader.in_sync.row.in_sync, now_ms) for of in islice(starting, _PROPOSALS_MAX)
        ]
        served = self._registry.partitions
        for partition in tuple(self._registry.restless):
            if len(found) >= _PROPOSALS_MAX:
                break
            if served.get((partition.topic, partition.index)) is not partition:
                continue  # it begins, and is looked at when it serves
            if partition.leader.is_at_rest(Held(partition.log.log_end_offset, partition.log_start_offset)):
                partition.rests()
                self._forget(partition)  # whoever lags from now on has had all of it until now
            elif partition.leader.is_shared and (proposal := self._look_at(partition, now_ms)) is not None:
                found.append(proposal)
        return found

    def _forget(self, partition: LeaderReplica) -> None:
        self._behind.pop(partition, None)
        self._proposed_ms.pop(partition, None)

    def _look_at(self, partition: LeaderReplica, now_ms: int) -> PartitionProposal | None:
        leader, epoch = partition.leader, partition.leader_epoch
        known = self._behind.get(partition)
        if known is None or known[0] != epoch:
            known = self._behind[partition] = epoch, Behind()
        end = partition.log.log_end_offset
        leader.look(now_ms, end)
        start = partition.log_start_offset
        before = known[1].look(now_ms, Held(end, start), self._lag_ms_max)
        target = wanted(leader, before, start)
        return (
            None if target is None or not self._may(partition, now_ms) else self._propose_set(partition, target, now_ms)
        )

    def _may(self, partition: LeaderReplica, now_ms: int) -> bool:
        """Whether the last proposal is settled, or long enough ago."""
        return partition.leader.in_sync.is_settled or now_ms - self._proposed_ms.get(partition, 0) >= _AGAIN_MS

    def _propose_set(self, partition: LeaderReplica, target: frozenset[int], now_ms: int) -> PartitionProposal:
        leader = partition.leader
        self._proposed_ms[partition] = now_ms
        before = sorted(leader.in_sync.row.in_sync)
        at, epochs = leader.propose(target)
        log.debug("%s-%d: in-sync set %s → %s is proposed", partition.topic, partition.index, before, sorted(target))
        members = tuple(sorted(epochs.items()))
        return PartitionProposal((str(partition.topic_id), partition.index), partition.leader_epoch, at, members)
