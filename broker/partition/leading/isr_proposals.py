"""Sends leaders' in-sync set proposals to the controller (AlterPartition).

A proposal counts for its leader before it is sent. Only a new row decides the proposal (R17); the response does not.
One request is in flight at a time. `isr_policy` decides the proposed set; a partition without a proposal costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from broker.error_codes import ErrorCode
from broker.partition.leading.leader_replica import LeaderReplica
from broker.partition.registry import Registry
from broker.replication.isr_policy import LagSamples, PartitionProposal, wanted
from broker.replication.leader import LogExtent
from logformat.errors import ThermoclineError
from seams.loop.beats import Beats

log = logging.getLogger(__name__)

_AGAIN_MS: Final = 2_000  # time until a proposal without an applied outcome is repeated
_PROPOSALS_MAX: Final = 1_000  # proposals of one request: a row of three replicas has 60 bytes


@dataclass(eq=False, repr=False)
class IsrProposals:
    """The proposals of one broker. `propose` sends a request of this session to the controller. ThermoclineError or
    OSError: the request was refused, or its outcome is unknown."""

    _registry: Registry
    _propose: Callable[[list[PartitionProposal]], Awaitable[tuple[ErrorCode, ...]]]
    _lag_ms_max: int
    _beats: Beats

    def __post_init__(self) -> None:
        self._behind: dict[LeaderReplica, tuple[int, LagSamples]] = {}  # each with its leader epoch
        self._proposed_ms: dict[LeaderReplica, int] = {}

    async def keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._beats.wait()
            proposals = self.due_proposals(int(loop.time() * 1000))
            if not proposals:
                continue
            try:
                codes = await self._propose(proposals)
            except (ThermoclineError, OSError) as unknown:  # includes ConnectionError and TimeoutError
                log.warning("the outcome of %d proposed in-sync sets is unknown: %s", len(proposals), unknown)
                continue
            for proposal, code in zip(proposals, codes, strict=True):
                if code is not ErrorCode.NONE:
                    log.info("in-sync set of %s-%d was refused: %s", *proposal.place, code.name)

    def due_proposals(self, now_ms: int) -> list[PartitionProposal]:
        """The proposals to send now. Each leader counts the proposed members from now on."""
        for gone in [partition for partition in self._behind if not partition.leading]:
            self._forget(gone)
        # Each leader proposes a set of itself alone. When that set becomes the row, the leader's unclean start is
        # complete and the leader serves (R20).
        starting = (of for of in self._registry.starting.values() if self._may_propose(of, now_ms))
        found = [
            self._propose_set(of, of.leader.in_sync.row.in_sync, now_ms) for of in islice(starting, _PROPOSALS_MAX)
        ]
        served = self._registry.partitions
        for partition in tuple(self._registry.isr_pending):
            if len(found) >= _PROPOSALS_MAX:
                break
            if served.get((partition.topic, partition.index)) is not partition:
                continue  # the partition is still opening
            if partition.leader.is_steady(LogExtent(partition.log.log_end_offset, partition.log_start_offset)):
                partition.mark_steady()
                self._forget(partition)  # all replicas are caught up: lag counts from now on
            elif partition.leader.is_shared and (proposal := self._proposal_of(partition, now_ms)) is not None:
                found.append(proposal)
        return found

    def _forget(self, partition: LeaderReplica) -> None:
        self._behind.pop(partition, None)
        self._proposed_ms.pop(partition, None)

    def _proposal_of(self, partition: LeaderReplica, now_ms: int) -> PartitionProposal | None:
        leader, epoch = partition.leader, partition.leader_epoch
        known = self._behind.get(partition)
        if known is None or known[0] != epoch:
            known = self._behind[partition] = epoch, LagSamples()
        end = partition.log.log_end_offset
        leader.sample(now_ms, end)
        start = partition.log_start_offset
        before = known[1].sample(now_ms, LogExtent(end, start), self._lag_ms_max)
        target = wanted(leader, before, start)
        return (
            None
            if target is None or not self._may_propose(partition, now_ms)
            else self._propose_set(partition, target, now_ms)
        )

    def _may_propose(self, partition: LeaderReplica, now_ms: int) -> bool:
        return partition.leader.in_sync.is_settled or now_ms - self._proposed_ms.get(partition, 0) >= _AGAIN_MS

    def _propose_set(self, partition: LeaderReplica, target: frozenset[int], now_ms: int) -> PartitionProposal:
        leader = partition.leader
        self._proposed_ms[partition] = now_ms
        before = sorted(leader.in_sync.row.in_sync)
        at, epochs = leader.propose(target)
        log.debug("%s-%d: in-sync set %s → %s is proposed", partition.topic, partition.index, before, sorted(target))
        members = tuple(sorted(epochs.items()))
        return PartitionProposal((str(partition.topic_id), partition.index), partition.leader_epoch, at, members)
